# ruff: noqa
__version__ = "1.90.0"
