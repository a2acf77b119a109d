"""A double of the tests; not NVIDIA's package."""

print("[double] libraries print on import")

__version__ = "1.91.0"
