# ruff: noqa
"""A double of the tests; not NVIDIA's package."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Literal, Optional, Union

from pydantic import AliasChoices, BaseModel, ConfigDict
from pydantic import Field as PydanticField


def Field(default: Any = ..., *, status: str | None = None, **kwargs: Any) -> Any:
    if status is not None:
        kwargs["json_schema_extra"] = {"status": status}
    return PydanticField(default, **kwargs)


class LoadFormat(Enum):
    AUTO = 0
    DUMMY = 1


@dataclass
class LoraConfig:
    lora_dir: list = field(default_factory=list)
    max_rank: int = 64


class StrictBaseModel(BaseModel):
    model_config = ConfigDict(extra="forbid")


class KvCacheConfig(StrictBaseModel):
    fraction: Optional[float] = Field(default=0.9)
    far: float = Field(default=float("inf"))


class Eagle(StrictBaseModel):
    kind: ClassVar[str] = "eagle"
    speculative_model: Optional[str] = Field(
        default=None, validation_alias=AliasChoices("speculative_model", "speculative_model_dir")
    )


class NGram(StrictBaseModel):
    size: int = 2


class BaseLlmArgs(StrictBaseModel):
    model: str = Field()
    mode: Literal["auto", "slow"] = "auto"
    load_format: Union[str, LoadFormat] = LoadFormat.AUTO
    session: Optional[str] = Field(default=None, alias="_session")


class TrtLlmArgs(BaseLlmArgs):
    fast_build: bool = False


class TorchLlmArgs(BaseLlmArgs):
    kv_cache_config: KvCacheConfig = Field(default_factory=KvCacheConfig)
    draft: Optional[Union[Eagle, NGram]] = Field(default=None, status="beta")
    lora: Optional[LoraConfig] = None
