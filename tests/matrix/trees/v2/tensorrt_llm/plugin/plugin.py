# ruff: noqa
from typing import Literal, Optional

from pydantic import BaseModel, Field, PrivateAttr

Usual = Literal["auto", "float16", None]


class PluginConfig(BaseModel):
    dtype: str = Field(default="float16")
    wide_plugin: Optional[Usual] = Field(default="auto", description="Wide.")
    gemm_plugin: Optional[Literal["auto", "fp8", None]] = Field(default=None)
    _explicit: bool = PrivateAttr(default=False)
    other_plugin: Optional[Usual] = Field(default=None)
    fused: bool = Field(default=False)
    block: int = Field(default=32)
    hidden_plugin: Optional[Usual] = Field(default=None)


cli_plugin_args = ["wide_plugin", "gemm_plugin", "other_plugin", "fused", "block"]


def add_plugin_argument(parser):
    for name, info in PluginConfig.model_fields.items():
        if name in cli_plugin_args:
            default = info.default if name == "gemm_plugin" else info.default or "disable"
            parser.add_argument("--" + name, type=str, default=default)
    return parser
