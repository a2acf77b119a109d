# ruff: noqa
import argparse

from tensorrt_llm.builder import BuildConfig
from tensorrt_llm.kinds import CacheType
from tensorrt_llm.logger import severity_map
from tensorrt_llm.plugin.plugin import add_plugin_argument


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--max_batch_size", type=int, default=BuildConfig.model_fields["max_batch_size"].default
    )
    parser.add_argument("--cache", type=CacheType, default=argparse.SUPPRESS)
    parser.add_argument("--log_level", type=str, default="info", choices=severity_map.keys())
    parser.add_argument("--computed", type=int, default=len("computed"))
    add_plugin_argument(parser.add_argument_group("Plugin config arguments"))
    return parser
