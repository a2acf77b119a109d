"""What an answer contains: the prompt in it, log probabilities, special tokens, inputs of another family."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.codes import declare
from engineroom.checks.evidence import triton_repository as repo
from engineroom.checks.evidence import triton_values
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic

ECHO = declare(
    "prompt-in-answer", Topic.OUTPUT_SHAPE, Severity.WARN,
    says="chat answers come without the prompt",
    why="the default puts the prompt, with its template, in front of the completion",
    source="triton-inference-server/tensorrtllm_backend docs/model_config.md @ v0.19.0 "
    "(exclude_input_in_output); NVIDIA/TensorRT-LLM#467; triton-inference-server/server#7665",
)  # fmt: skip
LOG_PROBS_UNKNOWN = declare(
    "log-probs-not-in-llmapi", Topic.OUTPUT_SHAPE, Severity.ERROR,
    says="requests to the llmapi model send inputs that it has",
    why="Triton refuses a request with an input that the model's configuration does not list",
    source="NVIDIA/TensorRT-LLM triton_backend/all_models/llmapi/tensorrt_llm/config.pbtxt @ c8c6df08",
)  # fmt: skip
LOG_PROBS_OFF = declare(
    "log-probs-not-asked-for", Topic.OUTPUT_SHAPE, Severity.WARN,
    says="log probabilities are asked for in the request",
    why="the outputs are listed by the model all the same; they come back as zeros, or not at all",
    source="triton-inference-server/tensorrtllm_backend#276, #291; "
    "inflight_batcher_llm/src/model_instance_state.cc @ v0.12.0 (zeros), v0.16.0 (absent)",
)  # fmt: skip
INPUT_UNKNOWN = declare(
    "input-not-in-llmapi", Topic.OUTPUT_SHAPE, Severity.ERROR,
    says="requests written for the inflight_batcher_llm models are changed for the llmapi model",
    why="infer refuses an input that the model does not list, and generate leaves it unread",
    source="NVIDIA/TensorRT-LLM triton_backend/all_models/llmapi/tensorrt_llm/config.pbtxt @ 0a710573 (inputs); "
    "triton-inference-server/server docs/protocol/extension_generate.md",
)  # fmt: skip
TEXT_SETTING = declare(
    "text-setting-lost", Topic.OUTPUT_SHAPE, Severity.ERROR,
    says="settings that decide what the text holds are words that their reader takes",
    why="any other word leaves the default in force: special tokens are cut out, or streams stay piecewise",
    source="NVIDIA/TensorRT-LLM triton_backend/all_models/inflight_batcher_llm/postprocessing/1/model.py "
    "(skip_special_tokens) and tensorrt_llm_bls/1/model.py (accumulate_tokens), 1.3.0rc3",
)  # fmt: skip


@about(Topic.OUTPUT_SHAPE)
def echoed_prompt(c: Context) -> Iterator[Answer]:
    """A stream never repeats the prompt; only whole answers do."""
    kinds = {
        r.text_is_templated
        for r in (c.evidence.requests or ())
        if r.text_is_templated is not None and not r.stream
    }
    for model in repo.engines(c):
        row = repo.rows(c, model).get("exclude_input_in_output")
        scalar = model.config.parameters.get("exclude_input_in_output")
        if row is None:
            continue
        outcome = triton_values.judge(row, scalar, c.trtllm) if scalar else None
        effective = outcome.effective if outcome else row.defaults(c.trtllm)[0]
        lost = outcome is not None and outcome.severity is Severity.ERROR
        right = True if True in kinds else None
        severity = None
        if right and effective is not True:
            severity = Severity.ERROR if lost else Severity.WARN
            written = "is not set" if scalar is None else f"is `{scalar.shown}`"
            yield ECHO.found(
                c, model.parameter_key("exclude_input_in_output"),
                f"exclude_input_in_output {written}, so it is {triton_values.show(effective)}: answers begin "
                "with the templated prompt",
                "set exclude_input_in_output to true, or send it with each request where the model has "
                "that input", severity=severity, line=model.line("exclude_input_in_output"),
            )  # fmt: skip
        if scalar is not None or severity is not None:
            yield repo.field_figure(
                "parameters.exclude_input_in_output", severity, file=model.config.path,
                line=model.line("exclude_input_in_output"), effective=effective, right=right,
                placeholder=repo.first_placeholder(scalar) if scalar else None,
                server="changes" if severity else "reads",
            )  # fmt: skip


@about(Topic.OUTPUT_SHAPE)
def text_settings(c: Context) -> Iterator[Answer]:
    """Settings of the Python models that decide what stands in the text, where their word is lost."""
    for model in repo.models(c):
        name = {repo.POSTPROCESSING: "skip_special_tokens", repo.BLS: "accumulate_tokens"}.get(
            model.role or ""
        )
        scalar, row = model.config.parameters.get(name or ""), repo.rows(c, model).get(name or "")
        if name is None or scalar is None or row is None:
            continue
        outcome = triton_values.judge(row, scalar, c.trtllm)
        lost = outcome.severity is Severity.ERROR
        if lost:
            yield TEXT_SETTING.found(
                c, model.parameter_key(name), f"{name} of {model.config.path}: {outcome.reason}",
                f"write {triton_values.show(outcome.right)}" if outcome.right is not None else
                "write true or false", line=scalar.line,
            )  # fmt: skip
        yield repo.field_figure(
            f"parameters.{name}", Severity.ERROR if lost else None, file=model.config.path,
            line=scalar.line, effective=outcome.effective, right=outcome.right if lost else None,
            placeholder=repo.first_placeholder(scalar), server=outcome.server,
        )  # fmt: skip


@about(Topic.OUTPUT_SHAPE)
def log_probs(c: Context) -> Iterator[Answer]:
    for at, request in enumerate(c.evidence.requests or ()):
        key = f"requests[{at}].return_log_probs"
        if c.evidence.triton_family == "llmapi" and request.return_log_probs:
            yield LOG_PROBS_UNKNOWN.found(
                c, key, "the llmapi model has no input return_log_probs",
                "send return_cumulative_logprob, or use the inflight_batcher_llm models",
            )  # fmt: skip
        if c.evidence.triton_family == "llmapi":
            for field, sent in (
                ("end_id", request.end_id is not None), ("beam_width", (request.beam_width or 1) > 1),
                ("stop_words_ids", bool(request.stop_words_ids)),
            ):  # fmt: skip
                if sent:
                    yield INPUT_UNKNOWN.found(
                        c, f"requests[{at}].{field}", f"the llmapi model has no input {field}",
                        "take it out: the model's end ids come from generation_config.json, stop texts go into "
                        "sampling_param_stop, several answers into sampling_param_best_of",
                    )  # fmt: skip
        if c.evidence.triton_family == "inflight_batcher_llm" and request.return_log_probs is False:
            yield LOG_PROBS_OFF.found(
                c, key, "return_log_probs is false: cum_log_probs and output_log_probs hold zeros or are "
                "left out", "send return_log_probs true when they are wanted",
            )  # fmt: skip


RULES = (echoed_prompt, text_settings, log_probs)
