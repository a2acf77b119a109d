# ruff: noqa
__version__ = "2.0.0rc1"
