# ruff: noqa
# A tree of the tests: the form of early versions, one dataclass and flat fields.
from dataclasses import dataclass, field
from typing import List, Literal, Optional

from ..common import LIMIT


@dataclass
class CalibConfig:
    device: Literal["cuda", "cpu"] = "cuda"
    samples: int = 1 << 9


@dataclass
class LlmArgs:
    model: str
    dtype: str = "auto"
    use_cuda_graph: bool = False
    kv_fraction: Optional[float] = 0.9
    sizes: Optional[List[int]] = None
    limit: int = LIMIT * 2
    calib: Optional[CalibConfig] = None
    extra: dict = field(default_factory=dict)
    seed: int = field(default=-1)
