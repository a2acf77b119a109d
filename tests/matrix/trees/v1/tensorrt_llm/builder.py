# ruff: noqa
from dataclasses import dataclass


@dataclass
class BuildConfig:
    max_batch_size: int = 256
