"""Parameters that the server accepts and reads as something else, in silence or with one log line."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from engineroom.catalog.load import in_range
from engineroom.checks.codes import declare
from engineroom.checks.evidence import triton_repository as repo
from engineroom.checks.evidence import triton_values
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.checks.evidence.triton_values import CHANGES, REFUSES
from engineroom.names import Severity, Topic

_CPP = (
    "NVIDIA/TensorRT-LLM triton_backend/inflight_batcher_llm/src/model_state.cc, "
    "model_instance_state.cc (1.3.0rc3); triton-inference-server/tensorrtllm_backend @ v0.8.0 to v0.19.0"
)
REPLACED = declare(
    "parameter-replaced", Topic.SILENT_FALLBACK, Severity.ERROR,
    says="a parameter's text is one that its reader can read",
    why="what cannot be read counts as not specified: the server starts, and a default is in force",
    source="triton-inference-server/tensorrtllm_backend#462; " + _CPP,
)  # fmt: skip
REFUSED = declare(
    "parameter-refused", Topic.SILENT_FALLBACK, Severity.ERROR,
    says="a parameter's value is one that the model loads with",
    why="this one is not silent: the model does not load",
    source=_CPP,
)  # fmt: skip
UNREAD = declare(
    "parameter-not-read", Topic.SILENT_FALLBACK, Severity.ERROR,
    says="a parameter's key is one that the model reads",
    why="Triton passes any key on, and a key that nobody reads has no effect",
    source=_CPP,
)  # fmt: skip
YAML_CHOICE = declare(
    "llm-argument-choice", Topic.SILENT_FALLBACK, Severity.ERROR,
    says="an LLM API argument with a fixed set of values has one of them",
    why="pydantic refuses it when the server starts; lower case does not match",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py (CapacitySchedulerPolicy, ContextChunkingPolicy; 1.3.0rc3)",
)  # fmt: skip
YAML_BOOL = declare(
    "llm-argument-bool", Topic.SILENT_FALLBACK, Severity.ERROR,
    says="a boolean LLM API argument is a boolean, or a word that pydantic takes for one",
    why="pydantic refuses any other text when the server starts",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py; pydantic documentation, Booleans",
)  # fmt: skip
YAML_TRUTHY = declare(
    "triton-config-truthy", Topic.SILENT_FALLBACK, Severity.ERROR,
    says="triton_config.decoupled in model.yaml is a YAML boolean",
    why="the model calls bool() on it, and any text that is not empty is true",
    source="NVIDIA/TensorRT-LLM triton_backend/all_models/llmapi/tensorrt_llm/1/model.py (1.3.0rc3)",
)  # fmt: skip
YAML_CONFLICT = declare(
    "triton-config-conflict", Topic.SILENT_FALLBACK, Severity.ERROR,
    says="config.pbtxt and triton_config of model.yaml agree",
    why="auto-completion refuses to change what config.pbtxt already states",
    source="triton-inference-server/python_backend src/resources/triton_python_backend_utils.py "
    "(set_max_batch_size, set_model_transaction_policy)",
)  # fmt: skip

# A name of the template or of an older or newer release -> the key that is read.
_OTHER_NAMES = {
    "engine_dir": "gpt_model_path", "batching_strategy": "gpt_model_type",
    "encoder_engine_dir": "encoder_model_path", "worker_path": "executor_worker_path",
    "scheduler_policy": "batch_scheduler_policy", "enable_block_reuse": "enable_kv_cache_reuse",
    "enable_chunked_prefill": "enable_chunked_context",
    "free_gpu_memory_fraction": "kv_cache_free_gpu_mem_fraction",
    "multiBlockMode": "multi_block_mode", "enableContextFMHAFP32Acc": "enable_context_fmha_fp32_acc",
}  # fmt: skip
_OLD_KEYS = {"multiBlockMode": ">=0.15.dev0", "enableContextFMHAFP32Acc": ">=0.15.dev0"}
"""Read under the old name up to 0.14 (tensorrtllm_backend @ v0.14.0, v0.15.0)."""


@about(Topic.SILENT_FALLBACK)
def parameter_texts(c: Context) -> Iterator[Answer]:
    """Filled parameters of the inflight_batcher_llm models."""
    for model in repo.models(c):
        rows = repo.rows(c, model)
        source = repo.parameter_source(c, model)
        for key, scalar in model.config.parameters.items():
            if scalar.placeholders:
                continue
            row = rows.get(key)
            if row is None:
                if rows:
                    yield from _unread(c, model, key, rows, source)
                elif c.evidence.triton_family == "llmapi":
                    yield from _llmapi_unread(c, model, key)
                continue
            outcome = triton_values.judge(row, scalar, c.trtllm)
            path = f"parameters.{key}"
            if outcome.severity is not None:
                code = REFUSED if outcome.server == REFUSES else REPLACED
                words = list(row.accepted)
                fix = f"write {triton_values.show(outcome.right)}" if outcome.right is not None else (
                    "write one of " + ", ".join(words) if words else "write a value that can be read"
                )  # fmt: skip
                if outcome.right is not None and len(words) > 1:
                    fix += " (accepted: " + ", ".join(words) + ")"
                yield code.found(
                    c, model.key(path), f"`{key}` of {model.config.path}: {outcome.reason}", fix,
                    severity=outcome.severity, source=source, line=scalar.line,
                )  # fmt: skip
            yield repo.field_figure(
                path, outcome.severity, file=model.config.path, line=scalar.line,
                effective=outcome.effective, right=outcome.right if outcome.severity else None,
                accepted=row.accepted if outcome.severity else (), server=outcome.server,
            )  # fmt: skip


def _unread(
    c: Context, model: repo.Model, key: str, rows: Mapping[str, Any], source: str
) -> Iterator[Answer]:
    """A key that no code reads, when it looks like one that is read."""
    near = _OTHER_NAMES.get(key)
    if near is None:
        near = next(iter(difflib.get_close_matches(key, rows, 1, 0.88)), None)
    if (
        near is None
        or near not in rows
        or (near in model.config.parameters and key not in _OTHER_NAMES)
    ):
        return
    if key in _OLD_KEYS and (c.trtllm is None or not in_range(c.trtllm, _OLD_KEYS[key])):
        return
    effective = triton_values.fallback(rows[near], c.trtllm)
    if near in model.config.parameters:
        effective = model.config.parameters[near].text
    yield UNREAD.found(
        c, model.parameter_key(key), f"no code of {model.config.path} reads `{key}`; it reads `{near}`"
        + (f", which stays {triton_values.show(effective)}" if effective is not None else ""),
        f"rename the key to {near}", source=source, line=model.line(key),
    )  # fmt: skip
    yield repo.field_figure(
        f"parameters.{key}", Severity.ERROR, file=model.config.path, line=model.line(key),
        effective=effective, server=CHANGES,
    )  # fmt: skip


# ---- the llmapi family
_IN_MODEL_YAML = {
    "gpt_model_path": "model", "tokenizer_dir": "tokenizer", "max_beam_width": "max_beam_width",
    "batch_scheduler_policy": "scheduler_config.capacity_scheduler_policy",
    "kv_cache_free_gpu_mem_fraction": "kv_cache_config.free_gpu_memory_fraction",
    "max_tokens_in_paged_kv_cache": "kv_cache_config.max_tokens",
    "enable_kv_cache_reuse": "kv_cache_config.enable_block_reuse",
    "kv_cache_host_memory_bytes": "kv_cache_config.host_cache_size",
    "enable_chunked_context": "enable_chunked_prefill",
}  # fmt: skip


def _llmapi_unread(c: Context, model: repo.Model, key: str) -> Iterator[Answer]:
    """Parameters of the engine's backend: the llmapi model reads model.yaml only."""
    known = repo.parameters(c).rows(repo.ENGINE, repo.CPP, None)
    if key not in known or key == "FORCE_CPU_ONLY_INPUT_TENSORS":
        return
    if key == "gpu_device_ids" and (model.config.instances or 1) > 1:
        return  # read by its newer releases, for several instances only
    there = _IN_MODEL_YAML.get(key)
    yield UNREAD.found(
        c, model.parameter_key(key), f"the llmapi model does not read `{key}` of {model.config.path}; its "
        "arguments are in model.yaml", f"set {there} in model.yaml" if there else "take it out",
        line=model.line(key), source=YAML_TRUTHY.source,
    )  # fmt: skip
    yield repo.field_figure(
        f"parameters.{key}",
        Severity.ERROR,
        file=model.config.path,
        line=model.line(key),
        server=CHANGES,
    )


# ---- model.yaml of the llmapi family
_CHOICES = {
    ("scheduler_config", "capacity_scheduler_policy"): (
        "GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH",
    ),
    ("scheduler_config", "context_chunking_policy"): (
        "FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS",
    ),
}  # fmt: skip
_BOOLS = (
    ("enable_chunked_prefill",), ("trust_remote_code",), ("skip_tokenizer_init",),
    ("kv_cache_config", "enable_block_reuse"), ("cuda_graph_config", "enable_padding"),
)  # fmt: skip
_PYDANTIC_BOOL = {"0", "off", "f", "false", "n", "no", "1", "on", "t", "true", "y", "yes"}


def _at(data: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        data = data.get(name) if isinstance(data, Mapping) else None
    return data


@about(Topic.SILENT_FALLBACK)
def llm_argument_choices(c: Context) -> Iterator[Answer]:
    args = c.evidence.model_yaml
    if args is None:
        return
    for path, allowed in _CHOICES.items():
        value = _at(args, path)
        if value is None:
            continue
        good = isinstance(value, str) and value in allowed
        name = ".".join(path)
        near = _near(str(value), allowed)
        if not good:
            yield YAML_CHOICE.found(
                c, f"model_yaml.{name}", f"`{name}` is {str(value)[:60]!r}; accepted are exactly "
                f"{', '.join(allowed)}, so the server does not start (nothing is replaced in silence)",
                f"write {near}" if near else "write one of them",
            )  # fmt: skip
        for field in (name, path[-1]):
            yield repo.field_figure(
                field, None if good else Severity.ERROR, effective=value if good else None,
                right=None if good else near, accepted=() if good else allowed,
                server="reads" if good else REFUSES,
            )  # fmt: skip


def _near(text: str, allowed: tuple[str, ...]) -> str | None:
    plain = text.strip().upper().replace("-", "_").replace(" ", "_")
    plain = {"GUARANTEED_COMPLETION": "GUARANTEED_NO_EVICT"}.get(plain, plain)
    if plain in allowed:
        return plain
    return next(iter(difflib.get_close_matches(plain, allowed, 1, 0.6)), None)


@about(Topic.SILENT_FALLBACK)
def llm_argument_bools(c: Context) -> Iterator[Answer]:
    args = c.evidence.model_yaml
    for path in _BOOLS if args is not None else ():
        value = _at(args, path)
        if not isinstance(value, str):
            continue
        name, word = ".".join(path), value.strip().lower()
        if word in _PYDANTIC_BOOL:
            yield repo.field_figure(
                name, None, effective=word in ("1", "on", "t", "true", "y", "yes"), server="reads"
            )
            continue
        yield YAML_BOOL.found(
            c, f"model_yaml.{name}", f"`{name}` is the text {value[:60]!r}, which is no boolean: the "
            "server does not start", "write true or false",
        )  # fmt: skip
        yield repo.field_figure(name, Severity.ERROR, server=REFUSES)


@about(Topic.SILENT_FALLBACK)
def llmapi_triton_config(c: Context) -> Iterator[Answer]:
    settings = _at(c.evidence.model_yaml, ("triton_config",))
    if not isinstance(settings, Mapping):
        return
    decoupled, batch = settings.get("decoupled"), settings.get("max_batch_size")
    if (
        isinstance(decoupled, str)
        and decoupled
        and decoupled.strip().lower() not in ("true", "yes", "1")
    ):
        yield YAML_TRUTHY.found(
            c, "model_yaml.triton_config.decoupled", f"`decoupled` is the text {decoupled[:40]!r}: bool() "
            "of a text that is not empty is true, so the model is decoupled", "write false without quotes",
        )  # fmt: skip
        yield repo.field_figure(
            "triton_config.decoupled", Severity.ERROR, effective=True, right=False, server=CHANGES
        )
    for model in repo.models(c):
        config = model.config
        if model.role is not None or config.backend != repo.PYTHON:
            continue
        if (
            config.decoupled is not None
            and decoupled is not None
            and config.decoupled != bool(decoupled)
        ):
            yield YAML_CONFLICT.found(
                c, model.key("model_transaction_policy.decoupled"),
                f"decoupled is {triton_values.show(config.decoupled)} in {config.path} and "
                f"{triton_values.show(bool(decoupled))} in model.yaml: the model does not load",
                "state it in one place, or alike in both",
            )  # fmt: skip
        stated = config.max_batch_size
        if stated and isinstance(batch, int) and stated > batch:
            yield YAML_CONFLICT.found(
                c, model.key("max_batch_size"), f"max_batch_size is {stated} in {config.path} and "
                f"{batch} in model.yaml: the model does not load", "state it in model.yaml alone",
            )  # fmt: skip


RULES = (parameter_texts, llm_argument_choices, llm_argument_bools, llmapi_triton_config)
