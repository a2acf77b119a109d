"""`serving` of the new spec: the switches of the old models."""

from __future__ import annotations

from engineroom.catalog.load import in_range
from engineroom.migration.decisions import Draft, number
from engineroom.reading.cpp_values import PYTHON_FALSE, PYTHON_TRUE, cpp_bool, stof
from engineroom.types.migration import Fate, Leaf, OldModel

REUSE_BY_DEFAULT = ">=0.19.dev0"
"""Releases whose backend shares KV blocks unless it is told not to (triton_parameters.yaml)."""


def serving(draft: Draft) -> None:
    """Everything but features."""
    engine = draft.setup.engine_model
    _streaming(draft)
    _fraction(draft, engine)
    _policy(draft, engine)
    _reuse(draft, engine)
    for leaf, value in _flags(draft, engine, "enable_chunked_context"):
        draft.serving["chunked_context"] = value
        draft.decide(
            [leaf], Fate.RENAMED, "serving.chunked_context", value, "long prompts are processed in pieces",
            source=("contract", "model_config"),
        )  # fmt: skip
    _queue(draft, engine)
    _text(draft)


def _flags(draft: Draft, model: OldModel | None, key: str) -> list[tuple[Leaf, bool]]:
    """Leaves of a boolean parameter of the engine with the value that its reader gets."""
    text = model.text(key) if model else None
    if model is None or text is None:
        return []
    value = cpp_bool(text) if model.backend != "python" else text.lower() in ("1", "true")
    leaves = [leaf for leaf in draft.parameter(key, "engine") if leaf.file == model.file]
    return [(leaf, value) for leaf in leaves if value is not None]


def _streaming(draft: Draft) -> None:
    models = [m for m in draft.setup.of_kind("engine", "bls") if draft.setup.speaks(m)]
    stated = [m.decoupled for m in models if m.decoupled is not None]
    if stated:
        draft.serving["streaming"] = any(stated)
    for model in models:
        leaf = draft.field(model, "model_transaction_policy.decoupled")
        if leaf is not None and model.decoupled is not None:
            value = draft.serving["streaming"]
            told = "streaming is one switch" + (
                "" if value == model.decoupled else "; another model of the setup streams"
            )
            draft.decide(
                [leaf], Fate.MOVED, "serving.streaming", value, told, source=("our_model", "model_config")
            )  # fmt: skip
    if stated and not any(stated):
        draft.notes.append(
            "the old service answers whole requests only, so serving.streaming is false; `true` costs nothing but "
            "other clients (ModelStreamInfer, generate_stream)"
        )


def _fraction(draft: Draft, engine: OldModel | None) -> None:
    text = engine.text("kv_cache_free_gpu_mem_fraction") if engine else None
    value = stof(text) if text else None
    key = "serving.kv_cache_free_gpu_mem_fraction"
    leaves = draft.parameter("kv_cache_free_gpu_mem_fraction", "engine")
    if value is not None and 0 < value < 1:
        draft.serving["kv_cache_free_gpu_mem_fraction"] = round(value, 4)
        draft.decide(
            leaves, Fate.KEPT, key, round(value, 4),
            "a share of the memory that is free after load, on both sides", source=("contract", "model_config"),
        )  # fmt: skip
    elif text:
        draft.decide(
            leaves, Fate.REDEFAULTED, key, 0.9, f"`{text[:40]}` is no share between 0 and 1; 0.9 is taken",
            source=("parameters",),
        )  # fmt: skip


def _policy(draft: Draft, engine: OldModel | None) -> None:
    text = engine.text("batch_scheduler_policy") if engine else None
    leaves = draft.parameter("batch_scheduler_policy", "engine")
    if text in ("max_utilization", "guaranteed_no_evict"):
        draft.serving["scheduler_policy"] = text
        draft.decide(
            leaves, Fate.RENAMED, "serving.scheduler_policy", text, "the same two policies",
            source=("contract", "model_config"),
        )  # fmt: skip
    elif text:
        draft.decide(
            leaves, Fate.REDEFAULTED, "serving.scheduler_policy", "guaranteed_no_evict",
            f"`{text[:40]}` is no policy: the old backend took guaranteed_no_evict as well", source=("parameters",),
        )  # fmt: skip


def _reuse(draft: Draft, engine: OldModel | None) -> None:
    found = _flags(draft, engine, "enable_kv_cache_reuse")
    for leaf, value in found:
        draft.serving["kv_block_reuse"] = value
        draft.decide(
            [leaf], Fate.RENAMED, "serving.kv_block_reuse", value, "KV blocks of equal prompts are shared",
            source=("contract", "parameters"),
        )  # fmt: skip
    setup = draft.setup
    version = setup.version or setup.first
    if found or (version is not None and in_range(version, REUSE_BY_DEFAULT)):
        return
    draft.serving["kv_block_reuse"] = False
    if setup.version is not None:
        why = (
            f"TensorRT-LLM {setup.version} shares no KV blocks unless enable_kv_cache_reuse says so"
        )
    else:
        why = (
            "releases before 0.19 share no KV blocks unless enable_kv_cache_reuse says so, and no file says that the "
            "old one is newer"
        )
    draft.notes.append(
        f"serving.kv_block_reuse is false: {why}. Set it to true once the answers are found to agree"
    )


def _queue(draft: Draft, engine: OldModel | None) -> None:
    if engine is None:
        return
    leaf = draft.field(engine, "dynamic_batching.default_queue_policy.max_queue_size")
    size = number(_filled(engine, leaf)) if leaf else None
    if size:
        draft.serving["max_queue_size"] = size
    if leaf is not None and size is not None:
        draft.decide(
            [leaf], Fate.MOVED, "serving.max_queue_size", size, "waiting requests; 0 is no limit",
            source=("our_model", "model_proto"),
        )  # fmt: skip


def _filled(model: OldModel, leaf: Leaf | None) -> str | None:
    text = str(leaf.value) if leaf else None
    for name, value in model.filled.items() if text else ():
        text = (text or "").replace(f"${{{name}}}", value)
    return text


def _word(text: str) -> bool | None:
    word = text.lower()
    return True if word in PYTHON_TRUE else False if word in PYTHON_FALSE else None


def _text(draft: Draft) -> None:
    """Parameters that decide what text goes in and comes out."""
    setup = draft.setup
    added = setup.parameter("add_special_tokens", "preprocessing", "bls")
    if added is not None and _word(added) is False:
        draft.decide(
            draft.parameter("add_special_tokens", "preprocessing", "bls"), Fate.IMPOSSIBLE, "text_input", None,
            "the new model adds special tokens as the tokenizer does it, unless the prompt begins with BOS",
            "send prompts that begin with BOS, or chat `messages`; or name a tokenizer folder that adds nothing in "
            "model.tokenizer", ("our_model",),
        )  # fmt: skip
    skipped = setup.parameter("skip_special_tokens", "postprocessing", "bls")
    if skipped is not None and _word(skipped) is False:
        draft.decide(
            draft.parameter("skip_special_tokens", "postprocessing", "bls"), Fate.IMPOSSIBLE, "text_output", None,
            "the new model leaves special tokens out of the text", "read finish_reason instead of looking for the end "
            "token in the text", ("our_model",),
        )  # fmt: skip
    echo = setup.parameter("exclude_input_in_output", "engine")
    leaves = draft.parameter("exclude_input_in_output", "engine")
    if echo is not None and cpp_bool(echo) is True:
        draft.decide(
            leaves, Fate.MOVED, "sampling_param_exclude_input_from_output", True,
            "answers without the prompt, which is what the new model does by itself", source=("fields", "our_model"),
        )  # fmt: skip
    else:
        if echo is not None:
            draft.decide(
                leaves, Fate.REDEFAULTED, "sampling_param_exclude_input_from_output", True,
                "the old answers began with the prompt; the new ones do not",
                "send sampling_param_exclude_input_from_output: false where the prompt is wanted",
                ("fields", "our_model"),
            )  # fmt: skip
        draft.notes.append(
            "the old engine model did not exclude the prompt from its answers (exclude_input_in_output); the new model "
            "does: a client that cuts the prompt off must stop doing so, or send "
            "sampling_param_exclude_input_from_output: false"
        )
    whole = setup.parameter("accumulate_tokens", "bls")
    if whole is not None and _word(whole) is True:
        draft.decide(
            draft.parameter("accumulate_tokens", "bls"), Fate.RENAMED, "stream_cumulative", True,
            "each event had all of the text so far; the new model sends deltas unless the request asks",
            "send stream_cumulative: true, or join the deltas in the client", ("our_model", "parameters"),
        )  # fmt: skip
