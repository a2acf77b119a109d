"""The `trtllm-build` command of one target, each flag with its reason."""

from __future__ import annotations

from engineroom.errors import UsageError, Where
from engineroom.lanes.base import LaneRequest
from engineroom.lanes.engine.choices import choices
from engineroom.lanes.engine.speculative import BUILD_MODE, max_draft_len
from engineroom.types.layout import trtllm_folder

OUTPUT = "engine"


def checkpoint_dir(request: LaneRequest) -> str:
    """Folder of the TensorRT-LLM checkpoint that this target is built from: one for each TP x PP."""
    target = request.target
    return f"{request.checkpoint}/{trtllm_folder(target.tensor_parallel, target.pipeline_parallel)}"


XGRAMMAR_INFO = "xgrammar_tokenizer_info.json"
"""File of the artefact, made from the tokenizer when the engine is built."""


Flags = dict[str, tuple[str, ...]]
"""Words after each flag: none for a switch, several for a list."""


def build_flags(request: LaneRequest) -> tuple[Flags, dict[str, str]]:
    """(flags with their words, reasons by flag); every flag is in the version's contract.

    FP8 KV is no flag: the builder takes it from the checkpoint, which `build` asserts. Features of
    requests that the engine must be built for come last.

    Raises:
        UsageError: a speculative mode that `trtllm-build` does not have; or a flag or value that the
            contract does not list. A test holds that no shipped one does the latter, so it is the
            contract of an overlay.
    """
    limits, serving = request.target.limits, request.spec.serving
    flags: Flags = {}
    why: dict[str, str] = {}

    def put(flag: str, value: str | int | tuple[str, ...], reason: str) -> None:
        flags[flag] = value if isinstance(value, tuple) else (str(value),)
        why[flag] = reason

    put("--checkpoint_dir", checkpoint_dir(request), "TensorRT-LLM checkpoint for this TP x PP")
    put("--output_dir", OUTPUT, "replaced by the artefact's own folder when run")
    put("--max_batch_size", limits.max_batch_size, "targets[].limits.max_batch_size")
    put("--max_num_tokens", limits.max_num_tokens, "targets[].limits.max_num_tokens")
    put("--max_beam_width", limits.max_beam_width, "targets[].limits.max_beam_width")
    if request.max_seq_len is not None:
        put("--max_seq_len", request.max_seq_len, "targets[].limits.max_seq_len, or the model's")
    longest = limits.max_num_tokens
    if request.max_seq_len is not None:
        chunked = serving.chunked_context
        longest = request.max_seq_len if chunked else min(request.max_seq_len, longest)
    put("--max_input_len", longest, "the default of 1024 would cut longer prompts")
    for flag, word, reason in choices(request):
        put(flag, word, reason)
    rows = request.target.engine.max_prompt_embedding_table_size
    if rows:
        name = "max_prompt_embedding_table_size"
        put(f"--{name}", rows, f"targets[].engine.{name}")
    put("--workers", workers(request), "targets[].engine.workers, or one a rank")
    for flag, (words, reason) in feature_flags(request).items():
        put(flag, words, reason)
    _assert_in_contract(request, flags)
    return flags, why


def workers(request: LaneRequest) -> int:
    """Ranks that are built at once."""
    return request.target.engine.workers or request.target.ranks


def feature_flags(request: LaneRequest) -> dict[str, tuple[tuple[str, ...], str]]:
    """(words, reason) of the flags that `serving.features` needs.

    Raises:
        UsageError: a speculative mode that `trtllm-build` does not have.
    """
    features = request.spec.serving.features
    found: dict[str, tuple[tuple[str, ...], str]] = {}
    if features.context_logits:
        found["--gather_context_logits"] = ((), "serving.features.context_logits")
    if features.generation_logits:
        found["--gather_generation_logits"] = ((), "serving.features.generation_logits")
    if features.context_logits or features.generation_logits:
        found["--logits_dtype"] = (("float32",), "the type that the Triton model declares")
    if features.lora is not None:
        lora = features.lora
        found["--lora_plugin"] = (("auto",), "LoRA, in the model's own type")
        found["--max_lora_rank"] = ((str(lora.max_rank),), "serving.features.lora.max_rank")
        found["--lora_target_modules"] = (
            lora.target_modules, "serving.features.lora.target_modules",
        )  # fmt: skip
    if features.speculative is not None:
        mode = features.speculative.mode
        if mode not in BUILD_MODE:
            raise UsageError(
                f"the engine lane has no speculative mode `{mode}`",
                where=Where(key="serving.features.speculative.mode"),
                hint=f"use {', '.join(BUILD_MODE)}, or lane: llmapi",
            )
        found["--speculative_decoding_mode"] = (
            (BUILD_MODE[mode],), "serving.features.speculative.mode",
        )  # fmt: skip
        found["--max_draft_len"] = (
            (str(max_draft_len(features.speculative)),),
            "what window, n-gram and verification set propose a step" if mode == "lookahead"
            else "serving.features.speculative.max_draft_tokens",
        )  # fmt: skip
    return found


def _assert_in_contract(request: LaneRequest, flags: Flags) -> None:
    known = request.contract.build_flags
    for flag, words in flags.items():
        wrong = None
        if flag not in known:
            wrong = f"engineroom writes {flag}, which it does not list"
        elif choices := set(map(str, known[flag].get("choices") or ())):
            refused = [word for word in words if word not in choices]
            if refused:
                wrong = f"engineroom writes {flag} {' '.join(refused)}; it allows {', '.join(sorted(choices))}"
        if wrong:
            raise UsageError(
                f"the contract of TensorRT-LLM {request.contract.version}: {wrong}",
                where=Where(request.contract.file, key=f"trtllm_build.flags.{flag}"),
                hint="correct the contract of the --catalog overlay, or choose another stack",
            )


def argv(flags: Flags) -> tuple[str, ...]:
    """Words of the command; never a shell string."""
    return ("trtllm-build", *(word for flag, words in flags.items() for word in (flag, *words)))
