"""An engine's own config.json against what was asked for."""

from __future__ import annotations

import copy

import pytest

from engineroom.checks.engine_output import Wanted, differences

WANTED = Wanted("1.2.1", 2, 1, 8, 8192, 1, 1024, "FP8", "FP8")
CONFIG = {
    "version": "1.2.1",
    "pretrained_config": {
        "mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
    },
    "build_config": {
        "max_batch_size": 8, "max_num_tokens": 8192, "max_seq_len": 1024, "max_beam_width": 1,
    },
}  # fmt: skip


def test_what_was_asked_for():
    assert differences(CONFIG, WANTED) == []


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("version",), "1.2.0", "version is '1.2.0', not 1.2.1"),
        (("version",), None, "version is None, not 1.2.1"),
        (("pretrained_config", "mapping", "tp_size"), 1, "pretrained_config.mapping.tp_size is 1, not 2"),
        (("pretrained_config", "mapping", "pp_size"), None, "pretrained_config.mapping.pp_size is None, not 1"),
        (("pretrained_config", "quantization", "kv_cache_quant_algo"), None,
         "pretrained_config.quantization.kv_cache_quant_algo is None, not FP8"),
        (("build_config", "max_batch_size"), 4, "build_config.max_batch_size is 4, not 8"),
        (("build_config", "max_seq_len"), 512, "build_config.max_seq_len is 512, not 1024"),
        (("build_config", "max_beam_width"), True, "build_config.max_beam_width is True, not 1"),
        (("build_config", "max_num_tokens"), 8191, "build_config.max_num_tokens is 8191, not 8192"),
    ],
)  # fmt: skip
def test_each_difference(place, value, words):
    config = copy.deepcopy(CONFIG)
    inner = config
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    assert differences(config, WANTED) == [words]


@pytest.mark.parametrize(
    "config", [None, [], "x", {}, {"pretrained_config": 3, "build_config": []}]
)
def test_any_shape_is_answered(config):
    assert differences(config, WANTED)


def test_the_builder_cuts_the_token_budget():
    """max_num_tokens above max_seq_len x max_batch_size is reduced: _common.py check_max_num_tokens."""
    wanted = Wanted("1.2.1", 2, 1, 8, 16384, 1, 1024, "FP8", "FP8")
    assert differences(CONFIG, wanted) == []
