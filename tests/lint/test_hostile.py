"""Random evidence about model repositories: findings or silence, never an exception, and soon."""

from __future__ import annotations

import os
import time

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from engineroom.catalog import Catalog
from engineroom.checks.evidence import Context
from engineroom.checks.evidence.triton import RULES
from engineroom.reading import Evidence
from engineroom.types import Figure, Finding
from tests.lint.full_config import parameter_rows

CATALOG = Catalog()
EXAMPLES = int(os.environ.get("ENGINEROOM_HOSTILE_EXAMPLES", "120"))
KEYS = [*sorted(parameter_rows()), "add_special_tokens", "context_model_name", "x y"]
VALUES = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            "${a}",
            "0,1;2",
            "1e999",
            "-1",
            "9" * 50,
            "true",
            "nan",
            "inf",
            "0x",
            ";",
            ",",
            "{0},{",
            "1e-400",
        ]
    ),
)
WORDS = st.sampled_from(
    ["name", "max_batch_size", "input", "instance_group", "kind", "count", "gpus", "parameters", "key", "value",
     "string_value", ":", "{", "}", "[", "]", ",", '"a"', "${p}", "8", "KIND_GPU", "-", "\n", '"', "#", "ensemble_scheduling",
     "step", "model_name", "data_type", "TYPE_FP16", "dims", "model_transaction_policy", "decoupled", "true"]
)  # fmt: skip


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


@st.composite
def configs(draw):
    name = draw(
        st.sampled_from(
            ["tensorrt_llm", "preprocessing", "postprocessing", "tensorrt_llm_bls", "m/..", ""]
        )
    )
    text = draw(
        st.sampled_from(
            ['backend: "tensorrtllm"\n', 'backend: "python"\n', "", 'backend: "${b}"\n']
        )
    )
    for key, value in draw(st.lists(st.tuples(st.sampled_from(KEYS), VALUES), max_size=6)):
        text += f"parameters {{ key: {quoted(key)} value {{ string_value: {quoted(value)} }} }}\n"
    text += " ".join(draw(st.lists(WORDS, max_size=30)))
    return {"path": f"{name}/config.pbtxt", "text": text}


SMALL = st.one_of(st.none(), st.integers(0, 5), st.just(2**62))
SIZE = st.one_of(st.none(), st.integers(1, 5), st.just(2**62))
TEXT = st.one_of(
    st.none(),
    st.text(max_size=8),
    st.sampled_from(["ensemble", "tensorrt_llm", "infer", "org/name"]),
)
EVIDENCE = st.fixed_dictionaries(
    {},
    optional={
        "triton_configs": st.lists(configs(), max_size=3),
        "triton_template": configs(),
        "fill_values": st.dictionaries(st.sampled_from(["a", "p", "b"]), st.one_of(VALUES, st.booleans(), st.integers())),
        "triton_family": st.sampled_from(["inflight_batcher_llm", "llmapi"]),
        "engine_config": st.fixed_dictionaries({
            "pretrained_config": st.fixed_dictionaries({"mapping": st.fixed_dictionaries({"tp_size": SIZE, "pp_size": SIZE})}),
            "build_config": st.fixed_dictionaries({"max_seq_len": SIZE, "max_num_tokens": SIZE, "max_beam_width": SIZE,
                                                   "max_batch_size": SIZE}),
        }),
        "launch": st.fixed_dictionaries({"mode": st.sampled_from([None, "leader", "orchestrator"]),
                                         "spawn_processes": st.sampled_from([None, True, False]), "mpi_ranks": SIZE,
                                         "argv": st.lists(st.sampled_from(["mpirun", "-n", ":", "2", "tritonserver", "x"]))}),
        "requests": st.lists(st.fixed_dictionaries({
            "batch_size": SIZE, "beam_width": SMALL, "prompt_tokens": SMALL, "max_tokens": SMALL, "model": TEXT,
            "endpoint": TEXT, "stream": st.sampled_from([None, True, False]), "text_input": TEXT, "lora_task_id": SMALL,
            "text_is_templated": st.sampled_from([None, True, False])}), max_size=3),
        "tokenizer": st.fixed_dictionaries({"adds_bos": st.sampled_from([None, True]),
                                            "token_ids": st.dictionaries(st.text(max_size=3), st.integers(0, 9))}),
        "tokenizer_config": st.fixed_dictionaries({"bos_token": TEXT, "eos_token": TEXT}),
        "model_yaml": st.dictionaries(
            st.sampled_from(["triton_config", "scheduler_config", "max_beam_width", "max_seq_len", "lora_config"]),
            st.one_of(st.integers(), st.text(max_size=5), st.none(), st.lists(st.integers(), max_size=2),
                      st.dictionaries(st.sampled_from(["decoupled", "max_batch_size", "capacity_scheduler_policy"]), TEXT))),
        "env": st.dictionaries(st.sampled_from(["HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_HOME"]), st.text(max_size=6)),
        "hf_cache": st.lists(st.text(max_size=8), max_size=3),
        "host_files": st.lists(st.fixed_dictionaries({"path": st.text(max_size=9)}), max_size=3),
        "pod": st.fixed_dictionaries({"gpu_count": SMALL, "lws_size_pods": SIZE, "mounts": st.lists(
            st.fixed_dictionaries({"host_path": st.text(max_size=6), "container_path": st.text(max_size=6)}), max_size=2)}),
        "node": st.fixed_dictionaries({"gpu_count": SMALL}),
        "memory": st.fixed_dictionaries({"engine_bytes": SMALL}),
        "gpu": st.fixed_dictionaries({"memory_mib": SIZE, "compute_capability": st.sampled_from([None, "7.0", "9.0"])}),
        "adapter_config": st.fixed_dictionaries({"r": SIZE}),
        "log": st.text(max_size=40),
        "stack": st.fixed_dictionaries({"tensorrt_llm_version": st.sampled_from([None, "0.9.0", "1.2.1"])}),
    },
)  # fmt: skip


@settings(max_examples=EXAMPLES, deadline=None)
@given(EVIDENCE)
def test_every_rule_survives(parts) -> None:
    try:
        evidence = Evidence.model_validate(parts)
    except ValidationError:
        return  # refused with its key before a rule sees it
    context = Context(evidence, CATALOG)
    started = time.process_time()
    for rule in RULES:
        for answer in rule.rule(context):
            assert isinstance(answer, Finding | Figure)
            if isinstance(answer, Finding):
                assert len(answer.reason) < 2000
                assert answer.fix
    assert time.process_time() - started < 1
