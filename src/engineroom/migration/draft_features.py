"""`serving.features` of the new spec: logits, guided decoding, LoRA and drafting."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from engineroom.migration.decisions import Draft, number
from engineroom.migration.draft_model import Chain, Locate
from engineroom.reading.cpp_values import stof
from engineroom.types.migration import Fate

_MODES = {2: "draft_tokens_external", 4: "medusa", 8: "lookahead_decoding",
          16: "explicit_draft_tokens", 32: "eagle"}  # fmt: skip
"""SpeculativeDecodingMode as a number (NVIDIA/TensorRT-LLM tensorrt_llm/models/modeling_utils.py)."""


def features(
    draft: Draft,
    calls: Chain,
    draft_calls: Chain | None,
    locate: Locate,
    folder: Callable[[str], str | None],
) -> None:
    """`serving.features`, as far as the old setup used them."""
    _logits(draft, calls)
    _guided(draft)
    _lora(draft, calls, folder)
    _speculative(draft, calls, draft_calls, locate)
    if not draft.features:
        del draft.serving["features"]
    for key, neutral in (
        ("num_nodes", 1.0),
        ("gpu_weights_percent", 1.0),
        ("kv_cache_host_memory_bytes", 0.0),
    ):
        text = draft.setup.parameter(key, "engine")
        if text is not None and stof(text) == neutral:
            draft.decide(
                draft.parameter(key, "engine"), Fate.REDEFAULTED, None, None,
                f"{text} is what the new side does as well", source=("model_config", "contract"),
            )  # fmt: skip


def _logits(draft: Draft, calls: Chain) -> None:
    for name in ("context_logits", "generation_logits"):
        every = f"build_config.gather_{name}"
        leaves = [*draft.engine(every), *draft.flags(calls.build, f"--gather_{name}")]
        both = [
            *draft.engine("build_config.gather_all_token_logits"),
            *draft.flags(calls.build, "--gather_all_token_logits"),
        ]
        on = any(leaf.value not in (False, 0, None, "disable") for leaf in [*leaves, *both])
        if on:
            draft.features[name] = True
        if leaves:
            draft.decide(leaves, Fate.MOVED, f"serving.features.{name}", on, "a switch of the spec")
        draft.decide(both, Fate.MOVED, "serving.features.context_logits, serving.features.generation_logits", on,
                     "two switches of the spec")  # fmt: skip


def _guided(draft: Draft) -> None:
    text = draft.setup.parameter("guided_decoding_backend", "engine")
    leaves = draft.parameter("guided_decoding_backend", "engine")
    if text == "xgrammar":
        draft.features["guided_decoding"] = "xgrammar"
        draft.decide(
            leaves, Fate.RENAMED, "serving.features.guided_decoding", "xgrammar", "the same library",
            source=("contract", "model_config"),
        )  # fmt: skip
    elif text:
        draft.decide(
            leaves, Fate.REDEFAULTED, "serving.features.guided_decoding", "off",
            f"the old backend knew xgrammar only, not `{text[:40]}`", source=("parameters",),
        )  # fmt: skip


_LORA_KEYS = (
    "build_config.plugin_config.lora_plugin", "build_config.lora_config.lora_target_modules",
    "build_config.lora_config.max_lora_rank", "build_config.lora_config.lora_dir",
    "build_config.lora_config.lora_ckpt_source", "build_config.lora_config",
)  # fmt: skip


def _lora(draft: Draft, calls: Chain, folder: Callable[[str], str | None]) -> None:
    engine = draft.setup.engine
    build: Any = engine.data.get("build_config") if engine else None
    build = build if isinstance(build, dict) else {}
    plugins, told = build.get("plugin_config"), build.get("lora_config")
    plugins, told = (
        plugins if isinstance(plugins, dict) else {},
        told if isinstance(told, dict) else {},
    )
    flag = calls.build.flag("--lora_plugin") if calls.build else None
    listed = calls.build.flag("--lora_target_modules") if calls.build else None
    modules = told.get("lora_target_modules") or (list(listed.values) if listed else [])
    on = plugins.get("lora_plugin") not in (None, False, "disable") or (
        flag is not None and flag.value not in ("", "disable")
    )
    leaves = [*draft.engine(*_LORA_KEYS), *draft.flags(calls.build, "--lora_plugin")]
    if not on:
        draft.decide(leaves, Fate.REDEFAULTED, "serving.features.lora", None, "no LoRA in the old engine",
                     source=("engine_json",))  # fmt: skip
        return
    lora: dict[str, Any] = {}
    text = draft.setup.parameter("lora_cache_max_adapter_size", "engine")
    stated = told.get("max_lora_rank") or _size(calls, "--max_lora_rank")
    sizes = (n for n in (stated, number(text)) if type(n) is int and 0 < n < 1 << 31)
    rank = next(sizes, None)
    lora["max_rank"] = rank or 64  # trtllm-build's default
    if modules and isinstance(modules, list) and all(isinstance(name, str) for name in modules):
        lora["target_modules"] = [str(name) for name in modules]
    adapters, absent = _adapters(draft, calls, told, folder)
    if adapters:
        lora["adapters"] = adapters
    draft.features["lora"] = lora
    draft.decide(leaves, Fate.MOVED, "serving.features.lora", lora, "LoRA is switched on in the spec",
                 source=("engine_json", "contract"))  # fmt: skip
    draft.decide(draft.flags(calls.build, "--lora_target_modules"), Fate.MOVED,
                 "serving.features.lora.target_modules", lora.get("target_modules"), "modules that adapters change")  # fmt: skip
    draft.decide([*draft.flags(calls.build, "--max_lora_rank"),
                  *draft.parameter("lora_cache_max_adapter_size", "engine")],
                 Fate.MOVED, "serving.features.lora.max_rank", lora["max_rank"], "largest rank")  # fmt: skip
    draft.notes.append(
        "adapters: old clients sent lora_weights with the first request of each lora_task_id; the new side loads the "
        "adapters that serving.features.lora.adapters lists (name, source: the Hugging Face folder, task_id)"
        + (f". Not on this machine, so not listed: {', '.join(absent)}" if absent else "")
        + ("" if adapters or absent else ". No file of the old setup names one")
    )


def _size(calls: Chain, flag: str) -> int | None:
    found = calls.build.flag(flag) if calls.build else None
    return number(found.value) if found and not found.unresolved else None


def _adapters(
    draft: Draft, calls: Chain, told: dict[str, Any], folder: Callable[[str], str | None]
) -> tuple[list[dict[str, Any]], list[str]]:
    """(adapters on this machine, folders that are not here): of --lora_dir and hf_lora_convert.py."""
    listed = told.get("lora_dir")
    named = [str(x) for x in listed] if isinstance(listed, list) else []
    build = calls.build.flag("--lora_dir") if calls.build else None
    named += build.values if build else ()
    for call in draft.setup.calls:
        if call.tool == "hf_lora_convert.py":
            source = call.flag("-i", "--in-file", "--in_file")
            named += source.values if source else ()
            for leaf in draft.flags(call, "-i", "--in-file", "--in_file"):
                here = folder(str(leaf.value))
                draft.decide(
                    [leaf], Fate.MOVED, "serving.features.lora.adapters", here,
                    "adapters are listed by their Hugging Face folder; nothing is converted",
                    "" if here else "not on this machine: list it by hand", ("contract", "our_model"),
                )  # fmt: skip
    found, absent = [], []
    for number_, text in enumerate(dict.fromkeys(named), 1):
        here = folder(text)
        name = re.sub(r"[^A-Za-z0-9._-]", "-", text.rstrip("/").rpartition("/")[2])[:63].lstrip(
            "._-"
        )
        if here and name:
            found.append({"name": name, "source": here, "task_id": number_})
        else:
            absent.append(text)
    return found, absent


def _speculative(draft: Draft, calls: Chain, second: Chain | None, locate: Locate) -> None:
    engine = draft.setup.engine
    build: Any = engine.data.get("build_config") if engine else None
    stated = build.get("speculative_decoding_mode") if isinstance(build, dict) else None
    flag = calls.build.flag("--speculative_decoding_mode") if calls.build else None
    mode = (
        _MODES.get(stated)
        if isinstance(stated, int)
        else stated
        if isinstance(stated, str)
        else None
    )
    mode = (mode or (flag.value if flag else "") or "").lower()
    asked = draft.setup.parameter("decoding_mode", "engine")
    if asked in ("medusa", "redrafter", "lookahead", "eagle"):
        mode = mode or asked
    leaves = [
        *draft.engine("build_config.speculative_decoding_mode", "build_config.max_draft_len"),
        *draft.flags(calls.build, "--speculative_decoding_mode", "--max_draft_len"),
    ]
    named = draft.parameter("tensorrt_llm_draft_model_name", "bls")
    model = draft.setup.parameter("tensorrt_llm_draft_model_name", "bls")
    if asked in ("medusa", "redrafter", "lookahead", "eagle"):
        leaves += draft.parameter("decoding_mode", "engine")
    if mode in ("", "none") and not model:
        draft.decide(leaves, Fate.REDEFAULTED, "serving.features.speculative", None, "no drafting in the old engine",
                     source=("engine_json",))  # fmt: skip
        return
    if "draft_tokens_external" in mode or model:
        source = _draft_source(second, locate)
        if source:
            length = (engine.limits.get("max_draft_len") if engine else None) or _size(
                calls, "--max_draft_len"
            )
            made = {"mode": "draft_target", "max_draft_tokens": length or 4, "draft_model": source}
            draft.features["speculative"] = made
            draft.decide(draft.flags(second.convert if second else None, "--model_dir"), Fate.MOVED,
                         "serving.features.speculative", made, "the draft's Hugging Face checkpoint",
                         source=("speculative", "contract"))  # fmt: skip
            draft.decide([*leaves, *named], Fate.MOVED, "serving.features.speculative", made,
                         "target and draft run in one LLM API", source=("speculative", "contract"))  # fmt: skip
            return
    draft.decide(
        [*leaves, *(named if model else [])], Fate.IMPOSSIBLE, "serving.features.speculative", None,
        f"drafting by `{mode or 'a draft model'}` is not carried over: "
        + ("no file names the draft's Hugging Face checkpoint on this machine" if "external" in mode or model else
           "heads inside the engine and lookahead are for the TensorRT backend"),
        "set serving.features.speculative {mode: draft_target, draft_model: …}" if "external" in mode or model else
        "leave it out, or try mode ngram, or eagle with an EAGLE-3 head of this model", ("speculative", "contract"),
    )  # fmt: skip


def _draft_source(calls: Chain | None, locate: Locate) -> str | None:
    flag = calls.convert.flag("--model_dir") if calls and calls.convert else None
    return locate(flag.value).usable if flag and not flag.unresolved else None
