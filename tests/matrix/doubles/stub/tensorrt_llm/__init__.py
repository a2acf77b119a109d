"""A double of the tests: a package without content, as the one on PyPI."""

__version__ = "1.0.0"
