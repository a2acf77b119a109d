# ruff: noqa
from dataclasses import dataclass, field
from typing import List


@dataclass
class LoraConfig:
    lora_dir: List[str] = field(default_factory=list)
    max_rank: int = 64
