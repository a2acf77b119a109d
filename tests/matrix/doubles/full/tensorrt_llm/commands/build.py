"""A double of the tests; not NVIDIA's package."""

import argparse
from enum import Enum


class Cache(str, Enum):
    PAGED = "paged"
    OFF = "disabled"


def parse_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_batch_size", type=int, default=2048)
    parser.add_argument("--cache", type=Cache, default=argparse.SUPPRESS)
    parser.add_argument("--strip", "--strip_plan", action="store_true")
    lora = parser.add_argument_group("LoRA arguments")
    lora.add_argument("--lora_dir", nargs="+", default=None)
    plugins = parser.add_argument_group("Plugin config arguments")
    plugins.add_argument("--fused", type=str, default="enable", choices=["enable", "disable"])
    return parser
