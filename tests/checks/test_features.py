"""Rules about features: silent on defaults, one alarm a fault, and what they say."""

from __future__ import annotations

import json

import pytest

from engineroom.errors import UsageError
from engineroom.names import Severity
from engineroom.pipeline import check
from tests.checks.feature_examples import DATA, ENGINE, FEATURE_EXAMPLES, LLMAPI, lora, on, release
from tests.checks.feature_examples import features as with_features
from tests.conftest import SMOLLM2_CONFIG, spec_data

CODES = {code for code, _, _ in FEATURE_EXAMPLES}


def found(make_job, changes):
    job = make_job(spec_data(changes.pop("model", {}).get("source", SMOLLM2_CONFIG), **changes))
    return [f for f in check(job) if f.code in CODES]


@pytest.mark.parametrize(
    "target", [ENGINE, LLMAPI, release(LLMAPI, "1.4.0rc4")], ids=["e", "l", "new"]
)
def test_defaults_are_silent(make_job, target):
    assert found(make_job, on(target)) == []


@pytest.mark.parametrize(
    "changes",
    [
        with_features(LLMAPI, guided_decoding="llguidance", context_logits=True),
        with_features(ENGINE, guided_decoding="xgrammar", generation_logits=True),
        on(ENGINE, serving={"fronts": ["bls"], "stream_interval": 4, "max_queue_size": 8}),
        on(ENGINE, serving={"process_mode": "orchestrator"}, gpu_device_ids=[[0], [1], [2]]),
        on(LLMAPI, gpu_device_ids=[[0], [1]]),
    ],
)  # fmt: skip
def test_sound_specs_are_silent(make_job, changes):
    assert found(make_job, changes) == []


def test_an_adapter_with_two_faults_gets_two_findings(make_job, tmp_path):
    config = {"peft_type": "LORA", "r": 64, "target_modules": ["q_proj", "o_proj"]}
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(config))
    changes = lora(LLMAPI)
    adapters = [{"name": "both", "source": "adapter", "task_id": 1}]
    changes["serving"]["features"]["lora"]["adapters"] = adapters
    by_code = {f.code: f for f in found(make_job, changes)}
    assert set(by_code) == {"lora-rank-over-maximum", "lora-module-not-a-target"}
    rank, modules = by_code["lora-rank-over-maximum"], by_code["lora-module-not-a-target"]
    assert rank.key == modules.key == "serving.features.lora.adapters[0].source"
    assert "rank 64" in rank.reason
    assert "max_rank: 64" in rank.fix
    assert "attn_dense" in modules.fix
    assert "attn_q" not in modules.fix


def test_the_largest_rank_of_an_adapter_counts(make_job):
    """`rank_pattern` gives one module 16."""
    changes = lora(
        LLMAPI,
        "all-modules",
        max_rank=8,
        target_modules=["attn_q", "attn_k", "attn_v", "mlp_4h_to_h"],
    )
    assert [f.code for f in found(make_job, changes)] == ["lora-rank-over-maximum"]


@pytest.mark.parametrize("rank", [0, -1, "8", True, 10**9])
def test_an_adapter_whose_rank_is_none(make_job, tmp_path, rank):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps({"r": rank}))
    changes = lora(LLMAPI)
    adapters = [{"name": "a", "source": "adapter", "task_id": 1}]
    changes["serving"]["features"]["lora"]["adapters"] = adapters
    with pytest.raises(UsageError, match="is no rank"):
        found(make_job, changes)


def test_adapters_of_the_head_are_judged_by_the_rule_that_lint_has(make_job, tmp_path):
    (tmp_path / "adapter").mkdir()
    config = {"r": 8, "target_modules": ["q_proj", "lm_head"]}
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps(config))
    changes = lora(LLMAPI)
    changes["serving"]["features"]["lora"]["adapters"] = [
        {"name": "a", "source": "adapter", "task_id": 1}
    ]
    codes = [f.code for f in check(make_job(spec_data(SMOLLM2_CONFIG, **changes)))]
    assert codes.count("lora-module-outside-layers") == 1


@pytest.mark.parametrize(
    ("mode", "lane", "code"),
    [
        ("medusa", LLMAPI, "speculative-mode-not-in-lane"),
        ("lookahead", LLMAPI, "speculative-mode-not-in-lane"),
        ("redrafter", LLMAPI, "speculative-mode-not-in-lane"),
        ("mtp", ENGINE, "speculative-mode-not-in-lane"),
        ("mtp", LLMAPI, None), ("ngram", LLMAPI, None),
        ("redrafter", ENGINE, "speculative-checkpoint-not-implemented"),
        ("eagle", ENGINE, "speculative-checkpoint-not-implemented"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("version", ["0.21.0", "1.0.0", "1.2.1"])
def test_modes_by_lane_and_version(make_job, mode, lane, code, version):
    changes = with_features(release(lane, version), speculative={"mode": mode})
    errors = [f.code for f in found(make_job, changes) if f.severity is Severity.ERROR]
    assert errors == ([code] if code else [])


@pytest.mark.parametrize(
    ("version", "code"), [("0.21.0", "speculative-arguments-unknown"), ("1.4.0rc4", None)]
)
def test_unknown_is_not_yes(make_job, version, code):
    """The contract of 0.21 lists the mode and nothing that it takes; 1.4's lists both."""
    changes = with_features(release(LLMAPI, version), speculative={"mode": "mtp"})
    job = make_job(spec_data(SMOLLM2_CONFIG, **changes))
    codes = [f.code for f in check(job) if "speculative" in f.code]
    assert codes == ([code] if code else [])


def test_a_folder_without_any_tokenizer_says_nothing_about_it(make_job):
    """Only the config.json is here: whether the model has a tokenizer.json is unknown."""
    changes = with_features(ENGINE, guided_decoding="xgrammar")
    assert found(make_job, changes) == []
    changes = with_features(ENGINE, guided_decoding="xgrammar")
    changes["model"] = {"source": str(DATA / "slow-tokenizer")}
    assert [f.code for f in found(make_job, changes)] == ["guided-decoding-tokenizer"]
