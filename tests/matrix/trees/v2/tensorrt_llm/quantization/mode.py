# ruff: noqa
from enum import auto

from strenum import StrEnum


class QuantAlgo(StrEnum):
    W4A16_AWQ = auto()
    FP8 = auto()
    INT8 = auto()
    NVFP4 = auto()


QUANT_ALGO_LIST = list(set(QuantAlgo) - {QuantAlgo.INT8})
KV_CACHE_QUANT_ALGO_LIST = [QuantAlgo.FP8, QuantAlgo.INT8, QuantAlgo.NVFP4]
