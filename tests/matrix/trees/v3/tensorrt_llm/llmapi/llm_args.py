# ruff: noqa
# A tree of the tests: the engine lane is gone, unions are written with a bar.
from enum import StrEnum, auto
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Queue(StrEnum):
    FIFO = auto()
    PRIORITY = auto()


class StrictBaseModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class DecodeGraph(StrictBaseModel):
    mode: Literal["decode"] = "decode"
    max_batch_size: int = 0


class EncodeGraph(StrictBaseModel):
    mode: Literal["encode"] = "encode"
    max_tokens: int = 0


GraphConfig = Annotated[DecodeGraph | EncodeGraph, Field(discriminator="mode")]


class TorchLlmArgs(StrictBaseModel):
    model: str
    graph_config: GraphConfig | None = Field(default_factory=DecodeGraph)
    queue: Queue = Queue.FIFO
    renamed_fraction: float | None = Field(default=0.9, alias="kv_fraction")
    backend: Literal["pytorch"] = "pytorch"
