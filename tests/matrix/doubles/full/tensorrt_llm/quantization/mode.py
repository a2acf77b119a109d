"""A double of the tests; not NVIDIA's package."""

from enum import Enum


class QuantAlgo(str, Enum):
    FP8 = "FP8"
    INT8 = "INT8"


QUANT_ALGO_LIST = [QuantAlgo.FP8]
KV_CACHE_QUANT_ALGO_LIST = [QuantAlgo.FP8, QuantAlgo.INT8]
