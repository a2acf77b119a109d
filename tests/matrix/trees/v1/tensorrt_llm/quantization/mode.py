# ruff: noqa
from strenum import StrEnum


class QuantAlgo(StrEnum):
    FP8 = "FP8"
    INT8 = "INT8"


QUANT_ALGO_LIST = list(set(QuantAlgo) - {QuantAlgo.INT8})
KV_CACHE_QUANT_ALGO_LIST = [QuantAlgo.FP8, QuantAlgo.INT8]
