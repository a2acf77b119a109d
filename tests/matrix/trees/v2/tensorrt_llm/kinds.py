# ruff: noqa
from enum import Enum


class CacheType(str, Enum):
    PAGED = "paged"
    OFF = "disabled"
