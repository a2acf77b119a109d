"""Is an engine build worth its complexity here: verdicts for concrete situations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from engineroom.catalog import Catalog
from engineroom.catalog.lane_facts import load_lane_facts
from engineroom.checks import codes
from engineroom.cli.advice_text import advice_lines
from engineroom.names import LaneName, Support
from engineroom.pipeline import Job, open_job
from engineroom.pipeline.advice import advise
from engineroom.pipeline.advice_subjects import BY_KEY, RULES, asked
from engineroom.planning.advice import decide
from engineroom.spec import load_spec
from engineroom.types import ModelShape
from engineroom.types.advice import Advice, EngineBuild, Fact, LaneAnswer, Reason, Subject
from tests.conftest import ROOT, run_cli, spec_data, write_spec

ENGINE, LLMAPI, VLLM = LaneName.ENGINE, LaneName.LLMAPI, LaneName.VLLM
YES, NO, UNKNOWN = Support.YES, Support.NO, Support.UNKNOWN


def model(folder: Path, name: str, **changes: Any) -> Path:
    """A folder with the config.json of a published model, or of one that differs from it."""
    data = json.loads((ROOT / f"tests/data/configs/{name}.json").read_text("utf-8"))["config"]
    folder = folder / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**data, **changes}), encoding="utf-8")
    return folder


LLAMA8, LLAMA70, QWEN_MOE = (
    "meta-llama--Llama-3.1-8B", "meta-llama--Llama-3.1-70B", "Qwen--Qwen3-30B-A3B",
)  # fmt: skip
FP8 = {"weights": "fp8", "kv_cache": "fp8"}
AWQ = {"weights": "w4a16_awq", "kv_cache": "auto"}
NVFP4 = {"weights": "nvfp4", "kv_cache": "fp8"}


@pytest.fixture
def make(tmp_path: Path, catalog: Catalog) -> Any:
    """As `make_job`, with a catalog that has read its files already: advice asks for many of them."""

    def job(data: dict[str, Any]) -> Job:
        path = tmp_path / "engineroom.yaml"
        path.write_text(yaml.safe_dump(data), encoding="utf-8")
        return Job(load_spec(path), catalog, tmp_path / "out")

    return job


@pytest.fixture
def one(make: Any, tmp_path: Path) -> Any:
    """The advice for one target on the config of a named model."""

    def get(target: dict[str, Any], name: str = LLAMA8, changes: Any = None, **spec: Any) -> Advice:
        folder = model(tmp_path, name, **(changes or {}))
        spec.setdefault("precision", FP8)
        found = advise(make(spec_data(folder, targets=[target], **spec)))
        assert len(found) == 1
        json.dumps(found[0].as_dict(), allow_nan=False)
        return found[0]

    return get


def test_fp8_llama_on_h100_needs_no_engine(one: Any):
    advice = one({"sku": "h100-sxm", "lane": "engine", "stack": "26.07"})
    assert (advice.choice, advice.engine_build) == (LLMAPI, EngineBuild.NOT_WORTH)
    assert [a.support for a in advice.lanes] == [YES, YES, YES]
    assert {
        Reason.NO_BUILD, Reason.STAYS_UPSTREAM, Reason.OTHER_LANE_IN_SPEC, Reason.ENGINE_FROZEN,
        Reason.ENGINE_REMOVED, Reason.REBUILD_PER_SKU, Reason.REBUILD_PER_VERSION,
        Reason.BUILD_TIME_UNKNOWN, Reason.GAIN_NOT_COMPARABLE,
    } <= set(advice.codes)  # fmt: skip
    assert Reason.GAIN_UNKNOWN not in advice.codes
    figures = {(f.lane, f.version, f.input_tokens): f.value for f in advice.figures}
    assert figures[ENGINE, "0.17", 128] == 28836.77  # perf-overview.md @ 258c7540c035
    assert figures[LLMAPI, "1.0", 128] == 28312  # perf-overview.md @ 00f37686aa85
    gain = next(n for n in advice.reasons if n.code is Reason.GAIN_NOT_COMPARABLE)
    assert "differ in version" in gain.text
    assert "258c7540c035" in gain.source


def test_figures_are_of_the_same_sizes_format_sku_and_tp(one: Any):
    advice = one({"sku": "h100-sxm", "lane": "llmapi", "stack": "26.07"}, LLAMA70)
    assert advice.figures == ()  # the published ones have TP 2
    assert Reason.GAIN_UNKNOWN in advice.codes


def test_figures_of_70b_at_tp_2(one: Any):
    target = {"sku": "h100-sxm", "lane": "llmapi", "stack": "26.07", "tensor_parallel": 2}
    advice = one(target, LLAMA70)
    assert {(f.lane, f.value) for f in advice.figures if f.input_tokens == 1000} == {
        (ENGINE, 4390.53), (LLMAPI, 4205),
    }  # fmt: skip


def test_awq_on_l4_with_1_2_1(one: Any):
    """Both TensorRT-LLM lanes run it on Ada; vLLM does not load ModelOpt's AWQ."""
    advice = one({"sku": "l4", "lane": "llmapi", "stack": "26.07"}, precision=AWQ)
    assert (advice.choice, advice.engine_build) == (LLMAPI, EngineBuild.NOT_WORTH)
    assert advice.lane(ENGINE).of(Subject.WEIGHTS) is YES
    assert (advice.lane(VLLM).support, advice.lane(VLLM).of(Subject.WEIGHTS)) == (NO, NO)
    assert Reason.GAIN_NOT_COMPARABLE not in advice.codes


def test_nvfp4_on_b200(one: Any):
    b200 = one({"sku": "b200-sxm", "lane": "llmapi", "stack": "26.07"}, precision=NVFP4)
    assert (b200.choice, b200.engine_build) == (LLMAPI, EngineBuild.NOT_WORTH)
    assert b200.lane(VLLM).of(Subject.KV_CACHE) is UNKNOWN
    assert b200.lane(LLMAPI).of(Subject.WEIGHTS) is YES


def test_nvfp4_on_h100(one: Any):
    """TensorRT-LLM has no NVFP4 on Hopper; vLLM takes the weights alone."""
    advice = one({"sku": "h100-sxm", "lane": "llmapi", "stack": "26.07"}, precision=NVFP4)
    assert [a.of(Subject.WEIGHTS) for a in (advice.lane(LLMAPI), advice.lane(ENGINE))] == [NO, NO]
    assert (advice.choice, advice.engine_build) == (VLLM, EngineBuild.IMPOSSIBLE)
    assert Reason.ONLY_LANE in advice.codes


def test_awq_on_b200_has_no_lane(one: Any):
    advice = one({"sku": "b200-sxm", "lane": "engine", "stack": "26.07"}, precision=AWQ)
    assert (advice.choice, advice.provisional) == (None, None)
    assert advice.engine_build is EngineBuild.IMPOSSIBLE
    assert advice.codes[0] is Reason.NO_LANE


def test_experts_that_no_engine_list_names(one: Any):
    """Qwen3 MoE: in the PyTorch list, not in the list of engine models that was read."""
    advice = one({"sku": "h200-sxm", "lane": "llmapi", "stack": "26.07"}, QWEN_MOE)
    assert advice.choice is LLMAPI
    assert advice.lane(LLMAPI).of(Subject.MODEL) is YES
    assert advice.lane(ENGINE).of(Subject.MODEL) is UNKNOWN
    # No checkpoint of it can be written for the engine lane, which settles what the list leaves open.
    assert advice.engine_build is EngineBuild.IMPOSSIBLE
    assert advice.lane(ENGINE).of(Subject.CHECKPOINT) is Support.NOT_IMPLEMENTED


def test_gpt_oss_has_no_engine(one: Any):
    advice = one(
        {"sku": "b200-sxm", "lane": "engine", "stack": "26.07"},
        changes={"architectures": ["GptOssForCausalLM"]},
    )
    assert (advice.lane(ENGINE).of(Subject.MODEL), advice.engine_build) == (
        NO, EngineBuild.IMPOSSIBLE,
    )  # fmt: skip
    assert advice.choice is LLMAPI
    fact = next(f for f in advice.lane(ENGINE).facts if f.subject is Subject.MODEL)
    assert "#8633" in fact.source


def test_a_model_that_nobody_lists_is_never_a_yes(one: Any):
    advice = one(
        {"sku": "h100-sxm", "lane": "llmapi", "stack": "26.07"},
        changes={"architectures": ["BrandNewForCausalLM"]},
    )
    assert (advice.choice, advice.provisional) == (None, LLMAPI)
    assert {a.of(Subject.MODEL) for a in advice.lanes} == {UNKNOWN}
    assert advice.codes[0] is Reason.NOT_KNOWN
    assert "BrandNewForCausalLM" in advice.reasons[0].text


def test_model_that_is_not_here(make: Any):
    target = {"sku": "h100-sxm", "lane": "llmapi", "stack": "26.07"}
    advice = advise(make(spec_data("some-org/some-model", targets=[target])))[0]
    assert (advice.choice, advice.provisional) == (None, LLMAPI)
    assert "config.json is not on this machine" in advice.reasons[0].text


def test_encoder_and_decoder(one: Any):
    advice = one(
        {"sku": "h100-sxm", "lane": "engine", "stack": "26.07"},
        changes={"architectures": ["BartForConditionalGeneration"]},
    )
    assert advice.choice is advice.provisional is None
    assert {a.of(Subject.ENCODER_DECODER) for a in advice.lanes} == {Support.NOT_IMPLEMENTED}


def test_1_4_has_llmapi_only(one: Any):
    stack = {"trtllm": "1.4.0rc4", "image": "my/image"}
    advice = one({"sku": "h100-sxm", "lane": "llmapi", "stack": stack})
    assert (advice.choice, advice.engine_build) == (LLMAPI, EngineBuild.IMPOSSIBLE)
    assert advice.lane(ENGINE).of(Subject.LANE) is NO
    assert advice.lane(VLLM).runtime == "not on this stack"
    assert advice.codes[0] is Reason.ONLY_LANE
    assert Reason.BUILD_TIME_UNKNOWN not in advice.codes  # nothing is built


def test_a_version_without_contract_is_unknown(one: Any):
    """26.03 carries 1.2.0, of which there is no contract."""
    advice = one({"sku": "h100-sxm", "lane": "engine", "stack": "26.03"})
    assert advice.lane(ENGINE).of(Subject.LANE) is UNKNOWN
    assert advice.lane(LLMAPI).support is UNKNOWN
    assert advice.engine_build is EngineBuild.UNKNOWN
    assert LLMAPI not in (advice.choice,)


LOOKAHEAD = {
    "mode": "lookahead", "lookahead_window_size": 7, "lookahead_ngram_size": 7,
    "lookahead_verification_set_size": 7,
}  # fmt: skip


def test_lookahead_needs_an_engine(one: Any):
    serving = {"features": {"speculative": LOOKAHEAD}}
    advice = one({"sku": "h100-sxm", "lane": "llmapi", "stack": "26.07"}, serving=serving)
    assert (advice.choice, advice.engine_build) == (ENGINE, EngineBuild.NEEDED)
    assert advice.codes[0] is Reason.ONLY_LANE
    assert {Reason.FEATURE_ONLY_HERE, Reason.OTHER_LANE_IN_SPEC, Reason.ENGINE_FROZEN} <= set(
        advice.codes
    )
    assert Reason.NO_BUILD not in advice.codes
    only = next(n for n in advice.reasons if n.code is Reason.FEATURE_ONLY_HERE)
    assert only.text.startswith("speculative (`serving.features.speculative.mode`)")
    assert advice.lane(LLMAPI).of(Subject.SPECULATIVE) is NO


def test_mtp_is_of_llmapi_alone(one: Any):
    serving = {"features": {"speculative": {"mode": "mtp"}}}
    advice = one({"sku": "h100-sxm", "lane": "llmapi", "stack": "26.07"}, serving=serving)
    assert (advice.choice, advice.engine_build) == (LLMAPI, EngineBuild.IMPOSSIBLE)
    assert [a.of(Subject.SPECULATIVE) for a in advice.lanes] == [YES, NO, NO]


def test_beams_are_not_vllm_s(one: Any):
    target = {"sku": "h100-sxm", "lane": "vllm", "stack": "26.07", "limits": {"max_beam_width": 4}}
    advice = one(target)
    assert advice.choice is LLMAPI
    assert [a.of(Subject.BEAM_SEARCH) for a in advice.lanes] == [YES, YES, NO]
    assert Reason.OTHER_LANE_IN_SPEC in advice.codes


def test_images_are_llmapi_s_and_kv_retention_is_the_engine_s(one: Any):
    features = {"multimodal": {"allowed_hosts": ["example.com"]}, "kv_retention": True}
    advice = one(
        {"sku": "h100-sxm", "lane": "llmapi", "stack": "26.07"}, serving={"features": features}
    )
    assert advice.choice is None
    alone = [n.text.split(" ")[0] for n in advice.reasons if n.code is Reason.FEATURE_ONLY_HERE]
    assert alone == ["multimodal", "kv-retention"]


def test_vllm_stack(one: Any):
    stack = {"vllm": "0.24.0", "image": "my/image"}
    advice = one({"sku": "h100-sxm", "lane": "vllm", "stack": stack})
    assert (advice.choice, advice.engine_build) == (VLLM, EngineBuild.IMPOSSIBLE)
    assert advice.lane(LLMAPI).of(Subject.LANE) is NO
    assert Reason.STAYS_UPSTREAM not in advice.codes


def test_the_spec_s_own_lane_without_a_build_stays(one: Any):
    """What vLLM refuses of the spec's values is named to be mended; it is no verdict about the lane."""
    advice = one({"sku": "h100-sxm", "lane": "vllm", "stack": "26.07"})
    assert (advice.choice, advice.engine_build) == (VLLM, EngineBuild.NOT_WORTH)
    assert [f.asked for f in advice.lane(VLLM).mend] == ["targets[0].limits.max_num_tokens"]
    assert advice.lane(LLMAPI).mend == ()


def test_logits_and_lora(one: Any):
    features = {"context_logits": True, "lora": {"max_rank": 8}}
    advice = one(
        {"sku": "h100-sxm", "lane": "engine", "stack": "26.07"}, serving={"features": features}
    )
    assert advice.choice is LLMAPI
    assert advice.lane(VLLM).of(Subject.LOGITS) is Support.NOT_IMPLEMENTED
    assert advice.lane(VLLM).of(Subject.LORA) is NO  # no adapter is named
    assert advice.lane(ENGINE).of(Subject.LORA) is YES


def test_only_what_is_asked_is_weighed(make: Any):
    job = make(spec_data())
    assert asked(job, job.targets[0]) == {}
    job = make(spec_data(serving={"features": {"perf_metrics": True}, "stop_ids": [2]}))
    assert asked(job, job.targets[1]) == {
        Subject.STOP_WORDS: "serving.stop_ids",
        Subject.METRICS: "serving.features.perf_metrics",
    }


def test_fleet_counts_engines_by_sku_and_packages_by_version(make: Any):
    targets = [
        {"sku": sku, "lane": "llmapi", "stack": stack}
        for sku, stack in (
            ("l4", "26.07"),
            ("h100-sxm", "26.07"),
            ("h200-sxm", "26.07"),
            ("l4", "26.02"),
        )
    ]
    targets.append({"sku": "l4", "lane": "vllm", "stack": "26.07"})
    fleet = next(
        n for n in advise(make(spec_data(targets=targets)))[0].reasons if n.code is Reason.FLEET
    )
    assert "would need 4 engine(s), or 2 different LLM-API package(s)" in fleet.text


# ---- the rules alone
def answer(lane: LaneName, support: Support) -> LaneAnswer:
    return LaneAnswer(lane, "", support, (Fact(Subject.LANE, support, "x", "y"),))


@pytest.mark.parametrize(
    ("llmapi", "engine", "vllm", "own", "expected"),
    [
        (YES, YES, YES, ENGINE, (LLMAPI, None, EngineBuild.NOT_WORTH)),
        (UNKNOWN, YES, NO, ENGINE, (ENGINE, None, EngineBuild.ONLY_KNOWN)),
        (NO, YES, NO, LLMAPI, (ENGINE, None, EngineBuild.NEEDED)),
        (NO, YES, YES, ENGINE, (VLLM, None, EngineBuild.NOT_WORTH)),
        (UNKNOWN, UNKNOWN, UNKNOWN, VLLM, (None, VLLM, EngineBuild.UNKNOWN)),
        (UNKNOWN, NO, UNKNOWN, ENGINE, (None, LLMAPI, EngineBuild.IMPOSSIBLE)),
        (Support.VERSION_BOUND, NO, NO, LLMAPI, (None, None, EngineBuild.IMPOSSIBLE)),
        (YES, Support.NOT_IMPLEMENTED, NO, ENGINE, (LLMAPI, None, EngineBuild.IMPOSSIBLE)),
        (NO, UNKNOWN, NO, ENGINE, (None, ENGINE, EngineBuild.UNKNOWN)),
    ],
)
def test_decide(llmapi: Support, engine: Support, vllm: Support, own: LaneName, expected: Any):
    answers = [answer(LLMAPI, llmapi), answer(ENGINE, engine), answer(VLLM, vllm)]
    assert decide(answers, own) == expected


def test_codes_of_rules_exist():
    known = codes.register()
    assert set(BY_KEY) <= set(known)
    assert set(RULES) <= set(known)


def test_codes_are_stable():
    assert {str(r) for r in Reason} == {
        "no-build", "stays-upstream", "only-lane", "only-known-lane", "feature-only-here", "no-lane",
        "not-known", "other-lane-in-spec", "engine-frozen", "engine-removed", "rebuild-per-sku",
        "rebuild-per-version", "build-time-unknown", "host-memory", "host-memory-unknown", "fleet",
        "cold-start-unknown", "upgrade-path", "gain-unknown", "gain-not-comparable",
    }  # fmt: skip


def test_lists_of_models_end_where_they_were_read(catalog: Any):
    facts = load_lane_facts(catalog)
    for lane, version in ((ENGINE, "1.2.1"), (LLMAPI, "1.2.1"), (VLLM, "0.24.0")):
        assert facts.model(lane, version, "LlamaForCausalLM")[0] is YES
    assert facts.model(LLMAPI, "1.5.0", "LlamaForCausalLM")[0] is UNKNOWN
    assert facts.model(VLLM, "0.25.0", "LlamaForCausalLM")[0] is UNKNOWN
    assert facts.model(ENGINE, "1.2.1", "Gemma3ForCausalLM")[0] is UNKNOWN


# ---- command line
def test_plan_prints_and_writes_the_advice(tmp_path: Path):
    path = write_spec(tmp_path, spec_data())
    done = run_cli("plan", "-f", str(path), "--format", "json")
    assert done.returncode == 0, done.stderr
    advice = json.loads(done.stdout)["advice"]
    assert [(a["choice"], a["engine_build"]) for a in advice] == [("llmapi", "not-worth")] * 2
    assert advice[0]["lanes"][0]["facts"][0]["subject"] == "lane"
    text = "\n".join(advice_lines(advise(open_job(path))))
    assert "use llmapi; an engine build is not worth its complexity here" in text
    assert text.count("engine-frozen:") == 1


def test_docs_say_what_the_code_says(catalog: Catalog):
    """The figures and codes of docs/lanes.md are those of the data."""
    text = (ROOT / "docs/lanes.md").read_text("utf-8")
    for code in Reason:
        assert f"`{code}`" in text
    for subject in Subject:
        assert f"`{subject}`" in text
    shape = ModelShape.from_config(
        json.loads((ROOT / f"tests/data/configs/{LLAMA8}.json").read_text("utf-8"))["config"]
    )
    rows: dict[str, dict[LaneName, float]] = {}
    for f in load_lane_facts(catalog).figures(shape, "h100-sxm", "fp8", 1):
        rows.setdefault(f"{f.input_tokens}/{f.output_tokens}", {})[f.lane] = f.value
    assert len(rows) == 3
    for io, row in rows.items():
        assert f"| {io} | {row[ENGINE]:.2f} | {row[LLMAPI]:g} |" in text
