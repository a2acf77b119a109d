"""Hostile inputs: real files with damage, and known keys with values of any kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from engineroom.reading import Evidence, facts, files
from tests.conftest import ROOT, TINY, spec_data

GOLDEN = ROOT / "tests/render/golden"

odd_text = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["", " ", "\x00", "\ufeff", "${x}", "${", "{{ .Values.a }}", "!!python/object:os.system", "../../x",
         "1e999", "-0", "0x10", "1_000", "yes", "null", "9" * 400, "\u202e", "\U0001f600", "a" * 5000,
         "'", '"', "$(id)", "`id`", "%s%n", "[[[[", "}}}}", "&a *a", "<<", "\r\n", "{" * 300]
    ),
)  # fmt: skip
scalar = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    odd_text,
    st.sampled_from([0, 1, -1, 2**31, 2**63, 0.9, "fp8", "26.07", "1.2.1", "enable", "true"]),
)
value = st.recursive(
    scalar,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(odd_text, inner, max_size=4)
    ),
    max_leaves=12,
)


def damaged(base: str) -> st.SearchStrategy[str]:
    """A text with pieces cut out, doubled, or replaced by odd text."""
    place = st.integers(0, max(0, len(base)))

    def apply(edits: list[tuple[int, int, str]]) -> str:
        text = base
        for at, length, new in edits:
            text = text[:at] + new + text[at + length :]
        return text

    edit = st.tuples(place, st.integers(0, 40), odd_text)
    return st.lists(edit, min_size=1, max_size=6).map(apply)


def replaced(base: Any) -> st.SearchStrategy[Any]:
    """A structure with one or more of its parts replaced by any value."""
    paths: list[tuple[Any, ...]] = []

    def walk(node: Any, path: tuple[Any, ...]) -> None:
        if path:
            paths.append(path)
        if isinstance(node, dict):
            for key, inner in node.items():
                walk(inner, (*path, key))
        elif isinstance(node, list):
            for index, inner in enumerate(node):
                walk(inner, (*path, index))

    walk(base, ())

    def apply(changes: list[tuple[tuple[Any, ...], Any]]) -> Any:
        copy = json.loads(json.dumps(base))
        for path, new in changes:
            node = copy
            try:
                for part in path[:-1]:
                    node = node[part]
                node[path[-1]] = new
            except (KeyError, IndexError, TypeError):
                continue  # an earlier change took this part away
        return copy

    change = st.tuples(st.sampled_from(paths), value)
    return st.lists(change, min_size=1, max_size=4).map(apply)


def dump_yaml(data: Any) -> str:
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, default_flow_style=None)


def dump_json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False)


_SPEC = spec_data(TINY)
specs = st.one_of(
    replaced(_SPEC).map(dump_yaml),
    damaged(yaml.safe_dump(_SPEC, sort_keys=False)),
    value.map(dump_yaml),
)

_PBTXT = [path.read_text(encoding="utf-8") for path in sorted(GOLDEN.rglob("config.pbtxt"))][:8]
pbtxt = st.one_of(*(damaged(text) for text in _PBTXT), odd_text)


def keyed(model: Any, depth: int = 2) -> st.SearchStrategy[Any]:
    """A mapping with the keys of a vocabulary model and values of any kind."""
    names = list(model.model_fields)
    return st.dictionaries(st.sampled_from(names), value, max_size=8)


json_configs = st.one_of(
    keyed(files.HfConfig), keyed(files.EngineConfig), keyed(files.CheckpointConfig),
    replaced(json.loads((TINY / "config.json").read_text())),
    replaced({"version": "1.2.1", "pretrained_config": {"mapping": {"world_size": 2, "tp_size": 2}},
              "build_config": {"max_batch_size": 8, "plugin_config": {"paged_kv_cache": True}}}),
    value,
).map(dump_json)  # fmt: skip
llm_args = st.one_of(
    replaced({"max_batch_size": 8, "kv_cache_config": {"free_gpu_memory_fraction": 0.9, "dtype": "fp8"},
              "scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"}}),
    value,
).map(dump_yaml)  # fmt: skip
helm_values = st.one_of(
    replaced({"replicaCount": 3, "pvc": {"accessModes": ["ReadWriteOnce"], "size": "10Gi"},
              "resources": {"limits": {"nvidia.com/gpu": 1, "memory": "16Gi"}},
              "env": [{"name": "HF_TOKEN", "value": "x"}], "shm": {"medium": "Memory", "sizeLimit": "1Gi"},
              "startupProbe": {"periodSeconds": 10, "failureThreshold": 60}}).map(dump_yaml),
    damaged("replicaCount: 1\nnodeSelector: {nvidia.com/gpu.product: NVIDIA-L4}\n"),
)  # fmt: skip
template = damaged(
    'a: "{{ .Values.maxTokens | int64 }}"\n{{- if .Values.b }}\nc: {{ printf "%d" .Values.c }}\n{{- end }}\n'
)


@st.composite
def facts_files(draw: Any) -> str:
    """Known parts with right and wrong content."""
    parts: dict[str, Any] = {}
    inner = {
        "spec": facts.Wish, "gpu": facts.Gpu, "memory": facts.Memory, "node": facts.Node,
        "stack": facts.StackFacts, "launch": facts.Launch, "pod": facts.Pod, "engine": facts.EngineFacts,
        "calibration": facts.Calibration, "stream": facts.Stream, "tokenizer": facts.TokenizerFacts,
    }  # fmt: skip
    names = draw(st.lists(st.sampled_from(sorted(Evidence.model_fields)), max_size=5, unique=True))
    for name in names:
        parts[name] = draw(keyed(inner[name]) if name in inner else value)
    return dump_json(parts)


build_scripts = damaged(
    "#!/bin/sh\nset -e\nMODEL=llama\ntrtllm-build --checkpoint_dir $MODEL \\\n  --output_dir out --gemm_plugin auto "
    "--max_batch_size 8 --use_paged_context_fmha enable && echo done\n"
)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return path
