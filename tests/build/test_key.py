"""Which input changes which artefact: every key of the spec, and everything else that a build reads."""

from __future__ import annotations

import dataclasses
import json
import shutil
import types
import typing
from pathlib import Path

import pytest
from pydantic import BaseModel

from engineroom.catalog import resources
from engineroom.lanes import LANES as LANE_LIST
from engineroom.lanes.base import Attachment
from engineroom.names import LaneName
from engineroom.pipeline import build_key, open_job
from engineroom.pipeline.build_key import inputs_of
from engineroom.pipeline.quantize import Checkpoint, _inputs, find
from engineroom.runner import files
from engineroom.spec import DeploymentSpec
from tests.build.common import LANES, TARGETS, changed, data
from tests.conftest import TINY, write_spec

ALL = {"checkpoint", *LANES}
LORA = {"adapters": [{"name": "a", "source": "adapter", "task_id": 1}], "max_rank": 8}
SPECULATIVE = {"mode": "ngram", "max_draft_tokens": 3}
NOTHING: set[str] = set()

# (key, another value, what is made anew; `checkpoint` also makes anew whatever reads what changed in it)
SPEC: list[tuple[str, object, set[str]]] = [
    ("name", "another-name", NOTHING),
    ("model.trust_remote_code", True, {"checkpoint", "llmapi", "vllm"}),
    ("model.revision", "main", NOTHING),
    ("precision.weights", "bf16", {"checkpoint", "engine", "vllm"}),
    ("precision.kv_cache", "auto", ALL),
    ("calibration.samples", 9, {"checkpoint"}),
    ("calibration.seq_len", 64, {"checkpoint"}),
    ("calibration.batch_size", 2, {"checkpoint"}),
    ("calibration.seed", 1, {"checkpoint"}),
    ("calibration.eval_documents", 4, {"checkpoint"}),
    ("targets.*.tensor_parallel", 2, set(LANES)),
    ("targets.*.pipeline_parallel", 2, set(LANES)),
    ("targets.*.driver", "580.65.06", NOTHING),
    ("targets.*.profile", "latency", NOTHING),
    ("targets.*.limits.max_batch_size", 4, set(LANES)),
    ("targets.*.limits.max_num_tokens", 4096, set(LANES)),
    ("targets.*.limits.max_seq_len", 512, set(LANES)),
    ("targets.*.limits.max_beam_width", 2, {"llmapi", "engine"}),
    ("targets.*.limits.opt_num_tokens", 64, {"engine"}),
    ("targets.*.gpu_device_ids", [[0], [1]], {"llmapi"}),
    ("workload.chat", {"input_tokens": {"p50": 9, "p95": 99}, "output_tokens": {"p50": 9, "p95": 99},
                       "concurrency": 3}, NOTHING),
    ("slo", {"ttft_ms": 100}, NOTHING),
    ("serving.kv_block_reuse", False, set(LANES)),
    ("serving.chunked_context", True, {"llmapi", "vllm"}),
    ("serving.attention_backend", "FLASHINFER", {"llmapi"}),
    ("serving.kv_cache_free_gpu_mem_fraction", 0.8, {"llmapi"}),
    ("serving.gpu_memory_utilization", 0.8, {"vllm"}),
    ("serving.scheduler_policy", "max_utilization", {"llmapi"}),
    ("serving.streaming", False, NOTHING),
    ("serving.stream_interval", 2, {"llmapi", "vllm"}),
    ("serving.merge_events", False, NOTHING),
    ("serving.stop_ids", [2], NOTHING),
    ("serving.fronts", ["bls"], NOTHING),
    ("serving.process_mode", "orchestrator", NOTHING),
    ("serving.max_queue_size", 5, NOTHING),
    ("serving.max_queue_delay_microseconds", 5, NOTHING),
    ("serving.priority_levels", 5, NOTHING),
    ("serving.features.chat", False, NOTHING),
    ("serving.features.bad_words", False, NOTHING),
    ("serving.features.log_probs", False, NOTHING),
    ("serving.features.sequences", False, NOTHING),
    ("serving.features.usage", False, NOTHING),
    ("serving.features.perf_metrics", False, NOTHING),
    ("serving.features.kv_retention", False, NOTHING),
    ("serving.features.context_logits", True, {"engine"}),
    ("serving.features.generation_logits", True, {"engine", "llmapi"}),
    ("serving.features.guided_decoding", "xgrammar", set(LANES)),
    ("serving.features.multimodal", {"max_bytes": 5}, NOTHING),
    ("serving.vllm.block_size", 32, {"vllm"}),
    ("serving.vllm.enforce_eager", True, {"vllm"}),
    ("serving.vllm.enable_sleep_mode", True, {"vllm"}),
    ("serving.vllm.cpu_offload_gb", 2, {"vllm"}),
    ("serving.vllm.report_metrics", False, {"vllm"}),
    ("serving.vllm.health_check", True, NOTHING),
    ("deploy", {"namespace": "other", "replicas": 3, "image": "my/image:1",
                "storage": {"size": "5Gi", "access_mode": "ReadWriteMany"}}, NOTHING),
]  # fmt: skip


@pytest.fixture(scope="module")
def made(quantized, tmp_path_factory):
    """A folder with the checkpoint of the base spec, and that checkpoint."""
    folder = tmp_path_factory.mktemp("key")
    files.link_tree(quantized("fp8").out / "checkpoints", folder / "out/checkpoints")
    job = open_job(write_spec(folder, data()), out=folder / "out")
    found = find(job)
    # Layouts for two ranks, by name alone: what is in them is tested with what makes them.
    more = {f"trtllm-tp{tp}pp{pp}/config.json": "0" * 64 for tp, pp in ((2, 1), (1, 2))}
    content = {**found.manifest, "files": {**found.manifest["files"], **more}}
    return folder, dataclasses.replace(found, manifest=content)


def keys(made, spec=None, catalog=None) -> dict[str, str]:
    """The key of the checkpoint, and of each lane's artefact on the base spec's checkpoint."""
    folder, checkpoint = made
    job = open_job(write_spec(folder, spec or data()), out=folder / "out", catalog=catalog)
    found = {str(i.target.lane): inputs_of(job, i, checkpoint).key for i in job.targets}
    inputs = _inputs(job, TINY)
    return {**found, "checkpoint": files.sha256_json(inputs)}


def differ(one: dict[str, str], other: dict[str, str]) -> set[str]:
    return {name for name in one if one[name] != other[name]}


@pytest.fixture(scope="module")
def base(made):
    return keys(made)


@pytest.mark.parametrize(("path", "value", "anew"), SPEC, ids=[row[0] for row in SPEC])
def test_a_key_of_the_spec_changes_exactly_what_reads_it(made, base, path, value, anew):
    assert differ(base, keys(made, changed(data(), path, value))) == anew


def leaves(model: type[BaseModel], prefix: str = "") -> list[str]:
    found: list[str] = []
    for name, field in model.model_fields.items():
        inner: list[type[BaseModel]] = []

        def walk(kind: object, inner=inner) -> None:
            if isinstance(kind, type) and not isinstance(kind, types.GenericAlias):
                inner.extend([kind] if issubclass(kind, BaseModel) else [])
            for part in typing.get_args(kind):
                walk(part)

        walk(field.annotation)
        path = f"{prefix}{name}"
        found += [leaf for kind in inner for leaf in leaves(kind, f"{path}.")] or [path]
    return found


ELSEWHERE = {
    "schema_version": "only 1 is valid",
    "model.source": "test_every_other_input: model",
    "model.tokenizer": "test_every_other_input: tokenizer",
    "precision.group_size": "AWQ only: test_group_size_and_recipe",
    "precision.recipe": "test_group_size_and_recipe",
    "calibration.dataset": "test_every_other_input: calibration text",
    "targets.sku": "test_every_other_input: sku",
    "targets.lane": "each lane is a target of the base spec",
    "targets.stack": "test_every_other_input: version, image",
    "serving.features.lora": "test_lora_and_speculative",
    "serving.features.speculative": "test_lora_and_speculative",
    "targets.engine": "test_settings_of_one_lane",
    "targets.llmapi": "test_settings_of_one_lane",
}


def test_every_key_of_the_spec_has_a_row():
    """A new key must say what it makes anew."""
    rows = {path.replace("*.", "") for path, *_ in SPEC} | set(ELSEWHERE)
    rows |= {"workload"}
    missing = [
        leaf
        for leaf in leaves(DeploymentSpec)
        if not any(leaf == row or leaf.startswith(f"{row}.") for row in rows)
    ]
    assert missing == []


def test_settings_of_one_lane_leave_the_others_alone(made, base):
    """`targets[].engine` and `targets[].llmapi`, as far as this version of the spec has them."""
    target = DeploymentSpec.model_fields["targets"].annotation
    fields = typing.get_args(target)[0].model_fields
    for lane in {"engine", "llmapi"} & set(fields):
        spec = data()
        spec["targets"][LANES.index(lane)][lane] = {"tokens_per_block": 64}
        assert differ(base, keys(made, spec)) == {lane}


def test_group_size_and_recipe(made, tmp_path):
    awq = changed(data(), "precision", {"weights": "w4a16_awq", "kv_cache": "fp8"})
    awq["targets"] = [t for t in awq["targets"] if t["lane"] == "llmapi"]
    start = keys(made, awq)
    # The group size is a fact of the checkpoint's files alone.
    assert differ(start, keys(made, changed(awq, "precision.group_size", 64))) == {"checkpoint"}
    # A recipe of another name with the same content: its id is in the checkpoint's own config.
    overlay = tmp_path / "overlay/build/recipes/weights"
    overlay.mkdir(parents=True)
    shipped = resources.data_root() / "build/recipes/weights/fp8.yaml"
    text = shipped.read_text().replace("id: fp8", "id: mine")
    (overlay / "mine.yaml").write_text(text)
    spec = changed(data(), "precision.recipe", "mine")
    found = keys(made, spec, tmp_path / "overlay")
    assert differ(keys(made), found) == {"checkpoint"}
    # What is only said about it decides nothing.
    (overlay / "mine.yaml").write_text(
        text.replace("confidence: high", "confidence: low") + "# a remark\n"
    )
    assert keys(made, spec, tmp_path / "overlay") == found


def test_lora_and_speculative(made, base):
    folder, _ = made
    adapter = folder / "adapter"
    adapter.mkdir(exist_ok=True)
    (adapter / "adapter_config.json").write_text(json.dumps({"r": 8, "target_modules": ["q_proj"]}))
    (adapter / "adapter_model.safetensors").write_bytes(b"\x08" + bytes(7) + b"{}      ")
    lora = changed(data(), "serving.features.lora", LORA)
    start = keys(made, lora)
    assert differ(base, start) == set(LANES)
    rank = changed(lora, "serving.features.lora.max_rank", 16)
    assert differ(start, keys(made, rank)) == set(LANES)
    # The number by which requests name it is the repository's; where it lies is nobody's.
    number = changed(lora, "serving.features.lora.adapters.task_id", 2)
    assert differ(start, keys(made, number)) == NOTHING
    shutil.copytree(adapter, folder / "moved", dirs_exist_ok=True)
    moved = changed(lora, "serving.features.lora.adapters.source", "moved")
    assert differ(start, keys(made, moved)) == NOTHING
    ngram = changed(data(), "serving.features.speculative", SPECULATIVE)
    ngram["targets"] = [t for t in ngram["targets"] if t["lane"] != "engine"]
    plain = {k: v for k, v in base.items() if k != "engine"}
    assert differ(plain, keys(made, ngram)) == {"llmapi", "vllm"}


# ---- everything but the spec
def altered(checkpoint: Checkpoint, prefix: str) -> Checkpoint:
    """The checkpoint with another digest of the first file below `prefix`."""
    listing = dict(checkpoint.manifest["files"])
    name = next(n for n in sorted(listing) if n.startswith(prefix))
    listing[name] = "0" * 64
    content = {**checkpoint.manifest, "files": listing, "digest": files.digest_of(listing)}
    return dataclasses.replace(checkpoint, manifest=content)


def contract_overlay(folder: Path, change) -> Path:
    """A catalog overlay with one contract changed."""
    path = folder / "deploy/contracts/trtllm/1.2.1.json"
    path.parent.mkdir(parents=True)
    content = json.loads((resources.data_root() / path.relative_to(folder)).read_text())
    change(content)
    path.write_text(json.dumps(content))
    return folder


def remark(content):
    content["note"] = "a remark that decides nothing"
    content["verified_on"] = "2026-01-01"


def unused_flag(content):
    flags = content["trtllm_build"]["flags"]
    flags["--log_level"] = {**flags.get("--log_level", {"type": "str"}), "default": "other"}


def used_argument(content):
    """Written out where the version has it."""
    del content["llm_api"]["fields"]["enable_iter_perf_stats"]


CHECKPOINT_PARTS = [
    ("hf/model", {"llmapi", "vllm"}),
    ("trtllm/", {"engine"}),
    ("hf/tokenizer.json", {"llmapi", "vllm"}),
]


@pytest.mark.parametrize(("prefix", "anew"), CHECKPOINT_PARTS)
def test_a_file_of_the_checkpoint_changes_what_reads_it(made, base, prefix, anew):
    folder, checkpoint = made
    found = keys((folder, altered(checkpoint, prefix)))
    assert differ(base, found) == anew


def test_where_the_checkpoint_lies_is_no_input(made, base):
    folder, checkpoint = made
    other = checkpoint.path.with_name("another-name")
    moved = dataclasses.replace(checkpoint, path=other)
    assert keys((folder, moved)) == base


@pytest.mark.parametrize(
    ("change", "anew"),
    [(remark, NOTHING), (unused_flag, NOTHING), (used_argument, {"llmapi"})],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_of_a_contract_only_what_is_used_counts(made, base, tmp_path, change, anew):
    overlay = contract_overlay(tmp_path / "overlay", change)
    found = keys(made, catalog=overlay)
    assert differ(base, found) == anew


def stack(**facts):
    return lambda spec: [
        target.update(stack=facts) for target in spec["targets"] if target["lane"] != "vllm"
    ]


OTHERS = {
    "sku": (lambda spec: spec["targets"][0].update(sku="l40s"), {"llmapi"}),
    "version": (stack(trtllm="1.1.0", image="i"), {"llmapi", "engine"}),
    "image": (stack(trtllm="1.2.1", image="a@sha256:" + "1" * 64), {"llmapi", "engine"}),
    "calibration text": (
        lambda spec: spec["calibration"].update(dataset="other.jsonl"), {"checkpoint"},
    ),
    "tokenizer": (lambda spec: spec["model"].update(tokenizer="tokenizer"), {"checkpoint"}),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_input(made, base, name):
    folder, _ = made
    change, anew = OTHERS[name]
    (folder / "other.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    shutil.copytree(TINY, folder / "tokenizer", dirs_exist_ok=True)
    spec = data()
    change(spec)
    assert differ(base, keys(made, spec)) == anew


def test_the_same_version_by_another_name_differs_by_its_image_only(made):
    """A Triton release and an explicit version with the same image are one input."""
    image = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
    spec = data()
    stack(trtllm="1.2.1", image=image)(spec)
    assert differ(keys(made), keys(made, spec)) == NOTHING


def test_the_model_files_are_inputs_of_the_checkpoint(made, base, tmp_path):
    folder, _ = made
    shutil.copytree(TINY, tmp_path / "model")
    (tmp_path / "model/tokenizer.json").write_text("{}")
    job = open_job(write_spec(folder, data()), out=folder / "out")
    inputs = _inputs(job, tmp_path / "model")
    assert files.sha256_json(inputs) != base["checkpoint"]
    # A copy elsewhere is the same model.
    shutil.copytree(TINY, tmp_path / "copy")
    assert files.sha256_json(_inputs(job, tmp_path / "copy")) == base["checkpoint"]


def test_layout_of_artefacts_is_an_input(made, base, monkeypatch):
    monkeypatch.setattr(build_key, "LAYOUT", build_key.LAYOUT + 1)
    assert differ(base, keys(made)) == set(LANES)


def test_settings_of_an_action_are_inputs(made):
    """The tokenizer file of guided decoding is made in this process: no command has its settings."""
    spec = changed(data(), "serving.features.guided_decoding", "xgrammar")
    start = keys(made, spec)
    found = keys(made, changed(spec, "serving.stop_ids", [2]))
    assert differ(start, found) == {"engine"}
    # It reads the ids from generation_config.json, unless the spec names them.
    folder, checkpoint = made
    other = altered(checkpoint, "hf/generation_config.json")
    assert differ(start, keys((folder, other), spec)) == {"llmapi", "vllm", "engine"}


def test_reasons_and_estimates_are_no_inputs(made, base, monkeypatch):
    lane = LANE_LIST[LaneName.ENGINE]
    steps = lane.steps

    def other(request):
        return [
            dataclasses.replace(step, reasons={"--x": "said otherwise"}, host_memory_bytes=1)
            for step in steps(request)
        ]

    monkeypatch.setattr(type(lane), "steps", lambda self, request: other(request))
    assert keys(made) == base


def test_attachments_count_by_their_bytes(made, base, monkeypatch, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one/weights").write_text("w")
    (tmp_path / "one/.git").mkdir()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (tmp_path / "two/.git/HEAD").write_text("hidden files do not travel")
    places = {"source": str(tmp_path / "one")}

    def attachments(self, request):
        return (Attachment("draft-model", "draft", places["source"], "slo", "draft"),)

    monkeypatch.setattr(type(LANE_LIST[LaneName.LLMAPI]), "attachments", attachments)
    start = keys(made)
    assert differ(base, start) == {"llmapi"}
    places["source"] = str(tmp_path / "two")
    assert keys(made) == start
    (tmp_path / "two/weights").write_text("W")
    assert differ(start, keys(made)) == {"llmapi"}


def test_place_of_an_artefact(made):
    folder, checkpoint = made
    job = open_job(write_spec(folder, data()), out=folder / "out")
    for item, target in zip(job.targets, TARGETS, strict=True):
        found = inputs_of(job, item, checkpoint)
        name, lane, version, sku, size, digest = found.path.relative_to(
            folder / "out/artifacts"
        ).parts
        assert (name, lane, sku, size) == ("tiny", target["lane"], target["sku"], "1x1")
        assert version == ("0.24.0" if lane == "vllm" else "1.2.1")
        assert digest == found.key[:16]
        assert found.key == files.sha256_json(found.facts)
