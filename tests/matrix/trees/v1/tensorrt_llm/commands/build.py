# ruff: noqa
import argparse

from ..builder import BuildConfig
from ..plugin.plugin import add_plugin_argument


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint_dir", type=str, default=None, help="Where the weights are.")
    parser.add_argument("--max_batch_size", type=int, default=BuildConfig.max_batch_size)
    parser.add_argument("--strip", "--strip_plan", action="store_true")
    parser.add_argument("--old", type=str, default=argparse.SUPPRESS, help="Deprecated: drop it.")
    lora = parser.add_argument_group("LoRA arguments")
    lora.add_argument("--lora_dir", nargs="+", default=None)
    lora.add_argument("--origin", default="hf", choices=["hf", "nemo"])
    add_plugin_argument(parser.add_argument_group("Plugin config arguments"))
    return parser
