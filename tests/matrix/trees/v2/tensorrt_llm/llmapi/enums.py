# ruff: noqa
from enum import auto

from strenum import StrEnum


class Policy(StrEnum):
    FIRST = auto()
    LAST = auto()


class Sampler(StrEnum):
    Torch = "TorchSampler"
    auto = "auto"
