# ruff: noqa
# A tree of the tests: pydantic models, inheritance, aliases, nested types.
from enum import Enum
from typing import Any, ClassVar, Dict, List, Literal, Optional, TypeAlias, Union

from pydantic import AliasChoices, BaseModel, PositiveInt, PrivateAttr
from pydantic import Field as PydanticField

from tensorrt_llm.lora import LoraConfig

from ..builder import BuildConfig
from .enums import Policy, Sampler


def Field(default: Any = ..., *, status: Optional[str] = None, **kwargs: Any) -> Any:
    if status is not None:
        kwargs["json_schema_extra"] = {**kwargs.get("json_schema_extra", {}), "status": status}
    return PydanticField(default, **kwargs)


class StrictBaseModel(BaseModel):
    class Config:
        extra = "forbid"


class LoadFormat(Enum):
    AUTO = 0
    DUMMY = 1


class GraphConfig(StrictBaseModel):
    sizes: Optional[List[int]] = Field(default=None)
    padding: bool = False


class KvCacheConfig(StrictBaseModel):
    fraction: Optional[float] = Field(default=0.9, description="Share of free memory.")
    dtype: str = "auto"
    graph: GraphConfig = Field(default_factory=GraphConfig)
    budget: float = Field(default_factory=lambda: float("inf"))


class DraftBase(StrictBaseModel):
    kind: ClassVar[str] = "base"
    max_draft_len: Optional[int] = None
    speculative_model: Optional[str] = Field(
        default=None, validation_alias=AliasChoices("speculative_model", "speculative_model_dir")
    )
    _warned: bool = PrivateAttr(default=False)

    @classmethod
    def from_dict(cls, data):
        return {"Eagle": EagleDraft, "Eagle2": EagleDraft, "NGram": NGramDraft}[
            data.pop("decoding_type")
        ](**data)


class EagleDraft(DraftBase):
    decoding_type: ClassVar[str] = "Eagle_One"
    max_draft_len: Optional[int] = 4
    layers: "Optional[int]" = None


class NGramDraft(DraftBase):
    ngram: PositiveInt = 2


Draft: TypeAlias = Optional[Union[EagleDraft, NGramDraft]]


class BaseLlmArgs(StrictBaseModel):
    model_config = {"arbitrary_types_allowed": True, "extra": "forbid"}

    model: Union[str, bytes] = Field(description="Path or name.")
    mode: Literal["auto", "slow"] = Field(default="auto")
    max_batch_size: Optional[int] = Field(default=None, description="Unset.")
    load_format: Union[str, LoadFormat] = LoadFormat.AUTO
    draft: Draft = Field(default=None)
    lora: Optional[LoraConfig] = Field(default=None)
    session: Optional[object] = Field(
        default=None, json_schema_extra={"type": "Optional[pkg.Session]"}, alias="_session"
    )
    env: Optional[Dict[str, str]] = Field(default=None, status="prototype")
    made: int = Field(default_factory=__import__)


class TrtLlmArgs(BaseLlmArgs):
    fast_build: bool = False
    build_config: Optional[BuildConfig] = None


class TorchLlmArgs(BaseLlmArgs):
    max_batch_size: Optional[int] = Field(default=2048)
    kv_cache_config: KvCacheConfig = Field(default_factory=KvCacheConfig)
    graph_config: Optional[GraphConfig] = Field(default_factory=GraphConfig, status="beta")
    policy: Policy = Policy.FIRST
    sampler: Union[str, Sampler] = Field(default=Sampler.auto, status="beta")
    old: Optional[str] = Field(default=None, status="deprecated")
