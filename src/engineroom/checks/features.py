"""Serving features that a lane or version does not have, or that another setting takes away."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.base import TargetContext
from engineroom.checks.codes import declare
from engineroom.names import LaneName, Severity, Topic
from engineroom.types import Finding

_BACKEND = "NVIDIA/TensorRT-LLM triton_backend/inflight_batcher_llm/src/model_instance_state.cc"
_MODEL_CONFIG = "triton-inference-server/tensorrtllm_backend docs/model_config.md @ 0b9d7d5a"
MULTIMODAL = declare(
    "multimodal-not-implemented", Topic.SPEC, Severity.ERROR,
    says="multimodal input is asked of the llmapi lane only",
    why="on the engine lane images need an engine of the vision tower and models of their own, which are "
    "not implemented",
    source="triton-inference-server/tensorrtllm_backend docs/multimodal.md (vision engine, multimodal_encoders)",
)  # fmt: skip
GUIDED = declare(
    "guided-decoding-library-refused", Topic.SPEC, Severity.ERROR,
    says="the library of guided decoding is one that the lane's runtime takes",
    why="the C++ backend knows XGrammar only and does not load with another name",
    source=f"{_BACKEND} (getGuidedDecodingConfigFromParams); {_MODEL_CONFIG} (guided_decoding_backend)",
)  # fmt: skip
GUIDED_UNKNOWN = declare(
    "unknown-guided-decoding-library", Topic.SPEC, Severity.WARN,
    says="it is known that the version takes the library of guided decoding",
    why="the argument of 0.21 is any text, and which texts work is not written there",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py (guided_decoding_backend: Optional[str] in 0.21)",
)  # fmt: skip
GUIDED_TOKENIZER = declare(
    "guided-decoding-tokenizer", Topic.SPEC, Severity.ERROR,
    says="on the engine lane guided decoding has a tokenizer.json to take the vocabulary from",
    why="the C++ backend reads a tokenizer file that is made from it; other tokenizer files are not implemented",
    source="NVIDIA/TensorRT-LLM examples/generate_xgrammar_tokenizer_info.py; "
    "tensorrtllm_backend docs/guided_decoding.md",
)  # fmt: skip
RETENTION = declare(
    "kv-retention-without-reuse", Topic.SPEC, Severity.WARN,
    says="KV retention priorities go with KV block reuse",
    why="blocks that are never reused are freed at the end of their request, whatever their priority",
    source="NVIDIA/TensorRT-LLM cpp/include/tensorrt_llm/executor/executor.h (KvCacheRetentionConfig)",
)  # fmt: skip
INTERVAL = declare(
    "stream-interval-ensemble", Topic.SPEC, Severity.WARN,
    says="stream_interval over 1 is used through the BLS front",
    why="the engine sends a response a token, and an ensemble hands each of them on; only the BLS model can "
    "put several into one event",
    source=f"{_BACKEND} (WaitForResponse: one response each); triton-inference-server/core "
    "src/ensemble_scheduler (decoupled steps)",
)  # fmt: skip
ENSEMBLE = declare(
    "ensemble-front-first", Topic.SPEC, Severity.INFO,
    says="clients of a streaming service are given the BLS front first",
    why="in an ensemble the postprocessing step sees one response of a stream at a time and knows the stream "
    "by its request id alone: without an id, or where a byte-fallback tokenizer takes a byte back, streamed "
    "text cannot be made whole",
    source="triton-inference-server/core src/ensemble_scheduler (a step gets the tensors of the response "
    "before it); tensorrtllm_backend issue #332",
)  # fmt: skip
PRIORITY = declare(
    "priority-orders-the-queue-only", Topic.SPEC, Severity.INFO,
    says="priority_levels are understood as an order of Triton's queue",
    why="the C++ backend takes requests from that queue at once, and gives the executor no priority: a "
    "request that waits for KV blocks is not overtaken",
    source=f"{_BACKEND} (enqueue); triton_backend/inflight_batcher_llm/src/utils.cc "
    "(createRequestsFromInputTensors sets no priority)",
)  # fmt: skip
LOG_PROBS = declare(
    "log-probs-need-a-sampling-parameter", Topic.SPEC, Severity.INFO,
    says="a request for log probabilities sets a sampling parameter",
    why="on the engine lane they are only returned when at least one, such as top_k, is set",
    source=f"{_MODEL_CONFIG} (return_log_probs)",
)  # fmt: skip
BEAMS_OFF = declare(
    "beams-without-sequences", Topic.SPEC, Severity.WARN,
    says="beams are built and reserved where requests may ask for them",
    why="max_beam_width costs KV cache for each running sequence, and with sequences off no request has beams",
    source="NVIDIA/TensorRT-LLM documentation, trtllm-build (--max_beam_width)",
)  # fmt: skip
BEAM_TOKENS = declare(
    "beams-over-tokens", Topic.SPEC, Severity.WARN,
    says="max_batch_size x max_beam_width is at most max_num_tokens",
    why="each beam of a running sequence takes a token of a step, so the batch can never be full",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/builder.py, check_max_num_tokens "
    "(opt_num_tokens = max_batch_size * max_beam_width)",
)  # fmt: skip


def _engine(c: TargetContext) -> bool:
    return c.target.lane is LaneName.ENGINE


def multimodal(c: TargetContext) -> Iterator[Finding]:
    if _engine(c) and c.spec.serving.features.multimodal is not None:
        yield MULTIMODAL.found(
            c, "serving.features.multimodal", "images are not implemented on the engine lane",
            "use lane: llmapi, or leave multimodal out",
        )  # fmt: skip


def guided_decoding(c: TargetContext) -> Iterator[Finding]:
    library = c.spec.serving.features.guided_decoding
    key = "serving.features.guided_decoding"
    if library == "off":
        return
    if _engine(c):
        if library != "xgrammar":
            yield GUIDED.found(
                c, key, f"the C++ backend has no `{library}`: it knows xgrammar",
                "set guided_decoding: xgrammar, or use lane: llmapi",
            )  # fmt: skip
        elif c.tokenizer_json is False:
            yield GUIDED_TOKENIZER.found(
                c, key, "the tokenizer has no tokenizer.json",
                "save it as a fast tokenizer (transformers, save_pretrained), or set guided_decoding: off",
            )  # fmt: skip
    elif c.target.lane is LaneName.LLMAPI and c.contract is not None:
        allowed = c.contract.llm_fields.get("guided_decoding_backend", {}).get("allowed")
        if allowed and library not in allowed:
            yield GUIDED.found(
                c, key, f"TensorRT-LLM {c.contract.version} takes {', '.join(map(str, allowed))}, not `{library}`",
                f"set guided_decoding: {allowed[0]}",
            )  # fmt: skip
        elif not allowed and library != "xgrammar":
            yield GUIDED_UNKNOWN.found(
                c, key, f"whether TensorRT-LLM {c.contract.version} takes `{library}` is unknown",
                "set guided_decoding: xgrammar, or use a stack from 1.0 on",
            )  # fmt: skip


def retention(c: TargetContext) -> Iterator[Finding]:
    """Only where somebody asked for it: it is on by default."""
    serving = c.spec.serving
    asked = "kv_retention" in serving.features.model_fields_set and serving.features.kv_retention
    if _engine(c) and asked and not serving.kv_block_reuse:
        yield RETENTION.found(
            c, "serving.features.kv_retention",
            "retention priorities have no effect with kv_block_reuse: false",
            "set kv_block_reuse: true, or leave kv_retention out",
        )  # fmt: skip


def fronts(c: TargetContext) -> Iterator[Finding]:
    serving = c.spec.serving
    if not _engine(c) or not serving.streaming or "ensemble" not in serving.fronts:
        return
    first = serving.fronts[0] == "ensemble"
    if serving.stream_interval > 1:
        yield INTERVAL.found(
            c, "serving.stream_interval",
            f"the ensemble sends an event a token; {serving.stream_interval} tokens an event come from "
            "tensorrt_llm_bls only",
            "put bls first in serving.fronts, or leave the ensemble out",
            severity=Severity.WARN if first else Severity.INFO,
        )  # fmt: skip
    if first:
        yield ENSEMBLE.found(
            c, "serving.fronts",
            "clients use the ensemble first: a streamed request needs a request id, unique among running ones",
            "put bls first in serving.fronts, or see that every client sends an id",
        )  # fmt: skip


def priority(c: TargetContext) -> Iterator[Finding]:
    if _engine(c) and c.spec.serving.priority_levels:
        yield PRIORITY.found(
            c, "serving.priority_levels",
            "on the engine lane they order Triton's queue, which the backend empties at once; the executor "
            "knows no priority",
            "use them with a short queue in front (a gateway), or leave them out",
        )  # fmt: skip


def log_probs(c: TargetContext) -> Iterator[Finding]:
    """Only where somebody asked for it: it is on by default."""
    features = c.spec.serving.features
    if _engine(c) and features.log_probs and "log_probs" in features.model_fields_set:
        yield LOG_PROBS.found(
            c, "serving.features.log_probs",
            "a request that sets return_log_probs must set a sampling parameter as well",
            "send top_k: 1 with it for greedy decoding",
        )  # fmt: skip


def beams(c: TargetContext) -> Iterator[Finding]:
    limits, features = c.target.limits, c.spec.serving.features
    width = limits.max_beam_width
    if width == 1 or c.target.lane not in (LaneName.ENGINE, LaneName.LLMAPI):
        return
    if not features.sequences:
        yield BEAMS_OFF.found(
            c, "serving.features.sequences",
            f"max_beam_width is {width}, and with sequences: false no request can ask for beams",
            "set sequences: true, or max_beam_width: 1",
        )  # fmt: skip
    tokens = limits.max_batch_size * width
    if limits.max_batch_size <= limits.max_num_tokens < tokens:
        yield BEAM_TOKENS.found(
            c, "@.limits.max_num_tokens",
            f"{limits.max_batch_size} sequences of {width} beams take {tokens} tokens a step, and "
            f"max_num_tokens is {limits.max_num_tokens}",
            f"raise max_num_tokens to {tokens}, or lower max_batch_size",
        )  # fmt: skip


RULES = (multimodal, guided_decoding, retention, fronts, priority, log_probs, beams)
