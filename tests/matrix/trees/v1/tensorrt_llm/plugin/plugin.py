# ruff: noqa
from dataclasses import dataclass, field, fields

DEFAULT_PLUGIN_DTYPE_OPTIONS = ["auto", "float16", None]
PLUGIN_DTYPE_OPTIONS_MAP = {"narrow_plugin": ["fp8", None]}


@dataclass
class PluginConfig:
    _dtype: str = field(default="float16", init=False)
    _wide_plugin: str = field(default="auto", init=False)
    _narrow_plugin: str = field(default=None, init=False)
    _fused: bool = field(default=True, init=False)
    _block: int = field(default=64, init=False)
    _hidden_plugin: str = field(default=None, init=False)


cli_plugin_args = ["wide_plugin", "narrow_plugin", "fused", "block"]


def add_plugin_argument(parser):
    for item in fields(PluginConfig()):
        parser.add_argument("--" + item.name.lstrip("_"))
    return parser
