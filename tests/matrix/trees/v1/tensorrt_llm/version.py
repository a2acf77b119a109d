# ruff: noqa
__version__ = "0.90.0"
