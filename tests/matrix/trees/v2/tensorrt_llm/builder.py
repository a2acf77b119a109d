# ruff: noqa
from typing import Optional

from pydantic import BaseModel, Field


class BuildConfig(BaseModel):
    max_batch_size: int = Field(default=2048, description="Requests.")
    max_seq_len: Optional[int] = Field(default=None)
