"""Speculative decoding: modes by lane and version, and what each mode needs."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.catalog import Contract
from engineroom.checks.base import TargetContext
from engineroom.checks.codes import declare
from engineroom.names import LaneName, Severity, Topic
from engineroom.reading import cpp_values
from engineroom.spec.serving import Speculative
from engineroom.types import Finding

_BUILD = "NVIDIA/TensorRT-LLM tensorrt_llm/commands/build.py (--speculative_decoding_mode)"
_BACKEND = "NVIDIA/TensorRT-LLM triton_backend/inflight_batcher_llm/src/model_instance_state.cc"
_ARGS = "NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py"
_DOCS = "NVIDIA/TensorRT-LLM docs/source/advanced/speculative-decoding.md"
MODE = declare(
    "speculative-mode-not-in-lane", Topic.SPEC, Severity.ERROR,
    says="the lane's runtime has the speculative mode",
    why="trtllm-build refuses a mode that it does not list, and the PyTorch backend one that it has no "
    "drafter for",
    source=f"{_BUILD}; {_ARGS} (speculative configs; Medusa and Lookahead are for the TensorRT backend)",
)  # fmt: skip
HEADS = declare(
    "speculative-checkpoint-not-implemented", Topic.SPEC, Severity.ERROR,
    says="an engine with drafting heads has a checkpoint that carries them",
    why="Medusa, EAGLE and ReDrafter heads are converted into the checkpoint by converters of their own, "
    "which are not implemented here",
    source=f"{_DOCS}; examples/{{medusa,eagle,redrafter}}/convert_checkpoint.py",
)  # fmt: skip
DRAFT_ENGINE = declare(
    "draft-engine-not-built", Topic.SPEC, Severity.WARN,
    says="an engine that verifies draft tokens has somebody who proposes them",
    why="no engine of the draft model is built here: without one beside it, requests must bring "
    "draft_input_ids",
    source=f"{_DOCS} (draft-target model); tensorrtllm_backend docs/model_config.md "
    "(tensorrt_llm_draft_model_name)",
)  # fmt: skip
DRAFT_MODEL = declare(
    "draft-model-missing", Topic.SPEC, Severity.ERROR,
    says="a mode with a draft model names one",
    why="the argument model of that mode has no default for its directory",
    source=f"{_ARGS} (speculative_model_dir of EagleDecodingConfig and DraftTargetDecodingConfig)",
)  # fmt: skip
LOOKAHEAD = declare(
    "lookahead-sizes-missing", Topic.SPEC, Severity.ERROR,
    says="lookahead decoding has window, n-gram and verification set sizes",
    why="the backend reads all three and stops the load when one is missing",
    source=f"{_BACKEND} (lookahead_window_size, lookahead_ngram_size, lookahead_verification_set_size)",
)  # fmt: skip
TREE = declare(
    "speculative-choices-unreadable", Topic.SPEC, Severity.ERROR,
    says="a tree of choices is written as {0}, {0, 0}, {0, 1}",
    why="the backend ignores what it cannot read, and drafts with its default tree of 63 nodes instead",
    source="NVIDIA/TensorRT-LLM triton_backend/inflight_batcher_llm/src/utils.cc (csvStrToVecVecInt); "
    f"{_BACKEND}",
)  # fmt: skip
TREE_UNUSED = declare(
    "speculative-choices-unused", Topic.SPEC, Severity.WARN,
    says="a tree of choices is given for medusa and eagle only",
    why="other modes draft a line of tokens, and nothing reads the tree",
    source=f"{_BACKEND} (medusa_choices, eagle_choices)",
)  # fmt: skip

ENGINE_MODES = {
    "draft_target": "draft_tokens_external",
    "medusa": "medusa",
    "eagle": "eagle",
    "lookahead": "lookahead_decoding",
    "redrafter": "explicit_draft_tokens",
}
"""Spec mode to a value of `--speculative_decoding_mode`; the others have none."""
DECODING_TYPES = {
    "draft_target": "DraftTarget", "eagle": "Eagle", "ngram": "NGram", "mtp": "MTP",
}  # fmt: skip
"""Modes of the PyTorch backend, by the prefix of their argument model (`EagleDecodingConfig`)."""
RENAMED_TYPES = {"DraftTarget": "Draft_Target", "Eagle": "Eagle3"}
"""Later releases write some types otherwise; which one is the contract's to say. Eagle is still taken,
with a warning that it now means Eagle3 (constraint `eagle-name`)."""
_TENSORRT_ONLY = ("medusa", "lookahead")


def _decoding_types(contract: Contract) -> set[str]:
    """Names such as ``Eagle``; empty when the contract lists none."""
    api = contract.data["llm_api"]
    stated = api.get("speculative_types") or ()
    classes = (n for n in api.get("nested", {}) if n.endswith("DecodingConfig"))
    listed = contract.nested_facts("speculative_config").get("decoding_type", {}).get("allowed")
    names = {str(name) for name in (*stated, *(listed or ()))}
    return names | {n.removesuffix("DecodingConfig") for n in classes}


def mode_exists(c: TargetContext) -> Iterator[Finding]:
    speculative = c.spec.serving.features.speculative
    if speculative is None or c.contract is None:
        return
    if c.target.lane is LaneName.ENGINE and c.contract.has_engine_lane:
        flag = c.contract.build_flags.get("--speculative_decoding_mode", {})
        choices = [str(choice) for choice in flag.get("choices") or ()]
        wanted = ENGINE_MODES.get(speculative.mode)
        if wanted is None or wanted not in choices:
            known = [mode for mode, name in ENGINE_MODES.items() if name in choices]
            yield _refused(c, speculative, known)
    elif c.target.lane is LaneName.LLMAPI and c.contract.has_llmapi_lane:
        types = _decoding_types(c.contract)
        known = [
            mode for mode, name in DECODING_TYPES.items()
            if {name, RENAMED_TYPES.get(name)} & types
        ]  # fmt: skip
        # Without a list nothing is known: `speculative-arguments-unknown` says so.
        if speculative.mode not in (known if types else DECODING_TYPES):
            yield _refused(c, speculative, known or list(DECODING_TYPES))


def _refused(c: TargetContext, speculative: Speculative, known: list[str]) -> Finding:
    other = ""
    if c.target.lane is LaneName.LLMAPI and speculative.mode in _TENSORRT_ONLY:
        other = ": it is for TensorRT engines, and the lane runs on PyTorch"
    version = c.contract.version if c.contract else c.stack.tensorrt_llm
    return MODE.found(
        c, "serving.features.speculative.mode",
        f"the {c.target.lane} lane of TensorRT-LLM {version} has no `{speculative.mode}`{other}",
        f"use {', '.join(known)}" if known else "leave speculative decoding out",
    )  # fmt: skip


def mode_needs(c: TargetContext) -> Iterator[Finding]:
    speculative = c.spec.serving.features.speculative
    if speculative is None:
        return
    key, mode = "serving.features.speculative", speculative.mode
    drafts = c.target.lane is LaneName.LLMAPI and mode in ("draft_target", "eagle")
    if drafts and speculative.draft_model is None:
        yield DRAFT_MODEL.found(
            c, f"{key}.draft_model", f"`{mode}` needs the draft model", "name its folder or hub id"
        )  # fmt: skip
    if c.target.lane is not LaneName.ENGINE:
        return
    if mode in ("medusa", "eagle", "redrafter"):
        yield HEADS.found(
            c, f"{key}.mode",
            f"a checkpoint with the heads of `{mode}` is not implemented: quantize makes none",
            "use mode: lookahead or draft_target, or lane: llmapi",
        )  # fmt: skip
    if mode == "draft_target":
        named = f"`{speculative.draft_model}`" if speculative.draft_model else "the draft model"
        yield DRAFT_ENGINE.found(
            c, f"{key}.mode",
            f"no engine of {named} is built: the BLS front looks for a model tensorrt_llm_draft",
            "build it by hand and add it to the repository, send draft_input_ids, or use lane: llmapi",
        )  # fmt: skip
    if mode == "lookahead":
        sizes = ("window_size", "ngram_size", "verification_set_size")
        missing = [
            f"lookahead_{n}" for n in sizes if getattr(speculative, f"lookahead_{n}") is None
        ]
        if missing:
            yield LOOKAHEAD.found(
                c, f"{key}.{missing[0]}", f"{', '.join(missing)}: not given", "give all three, such as 7, 7, 7"
            )  # fmt: skip


def tree(c: TargetContext) -> Iterator[Finding]:
    speculative = c.spec.serving.features.speculative
    if speculative is None or speculative.choices is None:
        return
    key = "serving.features.speculative.choices"
    if speculative.mode not in ("medusa", "eagle"):
        yield TREE_UNUSED.found(
            c, key, f"`{speculative.mode}` reads no tree", "leave choices out"
        )  # fmt: skip
    elif cpp_values.TREE.fullmatch(speculative.choices.strip()) is None:
        yield TREE.found(
            c, key, f"`{speculative.choices[:60]}` is not read as a tree",
            "write groups of numbers in braces: {0}, {0, 0}, {1}",
        )  # fmt: skip


RULES = (mode_exists, mode_needs, tree)
