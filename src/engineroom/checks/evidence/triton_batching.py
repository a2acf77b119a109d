"""Batch sizes and instance counts against what the backend really does with them."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.codes import declare
from engineroom.checks.evidence import triton_repository as repo
from engineroom.checks.evidence import triton_types
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic
from engineroom.reading.model_config import whole
from engineroom.types import Figure

BLS_COUNT = declare(
    "bls-instances-few", Topic.BATCHING, Severity.WARN,
    says="the BLS model has an instance for each request that runs at once",
    why="an instance works on one request from its first token to its last; the others wait",
    source="triton-inference-server/tensorrtllm_backend#257; docs/model_config.md @ v0.19.0 (bls_instance_count)",
)  # fmt: skip
BATCH_NOT_DECOUPLED = declare(
    "batched-request-not-decoupled", Topic.BATCHING, Severity.ERROR,
    says="a request of several rows goes to a decoupled model",
    why="the backend splits it into requests that end at different times, and refuses when it may answer once only",
    source="triton-inference-server/tensorrtllm_backend inflight_batcher_llm/src/utils.cc @ v0.12.0 to v0.19.0 "
    "(createRequestsFromInputTensors); #45, #163 (older releases: batch dimension 1)",
)  # fmt: skip
BATCH_OVER = declare(
    "request-over-max-batch-size", Topic.BATCHING, Severity.ERROR,
    says="a request has no more rows than max_batch_size of the model it calls",
    why="Triton refuses it before the model sees it",
    source="triton-inference-server/core src/infer_request.cc (Normalize: request batch size)",
)  # fmt: skip
LLMAPI_ROWS = declare(
    "llmapi-takes-one-row", Topic.BATCHING, Severity.ERROR,
    says="requests to the llmapi model have one row",
    why="the model reads text_input as one value and refuses more; rows are batched by the runtime",
    source="NVIDIA/TensorRT-LLM triton_backend/all_models/llmapi/tensorrt_llm/1/{model.py,model.yaml} (1.3.0rc3)",
)  # fmt: skip
PREFERRED = declare(
    "preferred-batch-size", Topic.BATCHING, Severity.ERROR,
    says="preferred_batch_size is between 1 and max_batch_size",
    why="Triton refuses the configuration",
    source="triton-inference-server/core src/model_config_utils.cc (ValidateModelConfig)",
)  # fmt: skip
ENSEMBLE = declare(
    "ensemble-batch-size", Topic.BATCHING, Severity.ERROR,
    says="an ensemble's max_batch_size is no larger than that of the models it chains",
    why="Triton refuses the ensemble",
    source="triton-inference-server/core src/ensemble_scheduler/ensemble_utils.cc (ValidateEnsembleConfig)",
)  # fmt: skip
RUNTIME_BATCH = declare(
    "max-batch-size-of-requests", Topic.BATCHING, Severity.INFO,
    says="max_batch_size bounds the rows of one request, not the batch that runs",
    why="in-flight batching forms its own batch up to the engine's limit",
    source="triton-inference-server/tensorrtllm_backend docs/model_config.md @ v0.19.0 (triton_max_batch_size)",
)  # fmt: skip


@about(Topic.BATCHING)
def bls_instances(c: Context) -> Iterator[Answer]:
    engine = triton_types.engine_batch(c)
    concurrency = c.evidence.load.concurrency if c.evidence.load else None
    for model in repo.models(c):
        if model.role != repo.BLS or model.config.instances is None:
            continue
        count = model.config.instances
        if engine is not None:
            yield Figure("bls_instance_count", engine)
        called = c.evidence.requests is None or repo.is_called(c, model.name)
        together = min(concurrency or 1, engine or concurrency or 1)
        if called and count < together:
            group = model.config.instance_groups[0]
            yield BLS_COUNT.found(
                c, model.key("instance_group"),
                f"{count} instance{'s' * (count > 1)} of {model.name} for {concurrency} clients at once"
                + (f" and an engine of batch {engine}" if engine else "") + ": the others queue",
                f"set bls_instance_count to {engine or concurrency}"
                + (", the engine's max batch size" if engine else "") + ", or call the ensemble",
                line=group.line,
            )  # fmt: skip


def _engine_decoupled(c: Context) -> bool | None:
    """The policy of the engine's model, where it is written."""
    states = {m.config.decoupled for m in repo.engines(c)}
    return states.pop() if len(states) == 1 else None


def batched_requests(c: Context) -> Iterator[Answer]:
    """Requests of several rows."""
    by_name = {m.name: m for m in repo.models(c)}
    decoupled = _engine_decoupled(c)
    for at, request in enumerate(c.evidence.requests or ()):
        rows = request.batch_size or 1
        key = f"requests[{at}].batch_size"
        if rows < 2:
            continue
        if c.evidence.triton_family == "llmapi":
            yield LLMAPI_ROWS.found(
                c, key, f"{rows} rows in one request, and the llmapi model takes one",
                "send one request for each prompt; the runtime batches them",
            )  # fmt: skip
            continue
        target = by_name.get(request.model or "")
        limit = target.config.max_batch_size if target else None
        if limit is not None and rows > max(1, limit):
            yield BATCH_OVER.found(
                c, key, f"{rows} rows, and max_batch_size of {request.model} is {limit}",
                f"send at most {max(1, limit)} rows, or raise max_batch_size",
            )  # fmt: skip
        if decoupled is False:
            yield BATCH_NOT_DECOUPLED.found(
                c, key, f"{rows} rows in one request, and tensorrt_llm is not decoupled: the backend refuses "
                "a batch size above 1", "set decoupled to true and call it as a stream, or send one row a request",
            )  # fmt: skip


@about(Topic.BATCHING, Topic.DECOUPLED)
def batched(c: Context) -> Iterator[Answer]:
    yield from batched_requests(c)


@about(Topic.BATCHING)
def limits(c: Context) -> Iterator[Answer]:
    models = repo.models(c)
    by_name = {m.name: m for m in models}
    engine = triton_types.engine_batch(c)
    for model in models:
        limit = model.config.max_batch_size
        batching = model.config.root.message("dynamic_batching")
        for scalar in (
            batching.scalars("preferred_batch_size") if batching and limit is not None else ()
        ):
            size = whole(scalar)
            if size is not None and limit is not None and not 1 <= size <= limit:
                yield PREFERRED.found(
                    c, model.key("dynamic_batching.preferred_batch_size"),
                    f"preferred_batch_size {size} of {model.config.path}, and max_batch_size is {limit}: "
                    "Triton refuses the model", f"write a size from 1 to {max(1, limit)}", line=scalar.line,
                )  # fmt: skip
        for step in model.config.steps if limit is not None else ():
            inner = by_name[step].config.max_batch_size if step in by_name else None
            if inner and limit is not None and limit > inner:
                yield ENSEMBLE.found(
                    c, model.key("max_batch_size"), f"max_batch_size {limit} of the ensemble {model.name}, and "
                    f"{step} has {inner}: Triton refuses the ensemble", f"write {inner}, or raise {step}'s",
                )  # fmt: skip
        if model.is_engine and engine and limit and limit != engine:
            yield RUNTIME_BATCH.found(
                c, model.key("max_batch_size"), f"max_batch_size {limit} of {model.config.path} bounds the rows "
                f"of a request; up to {engine} sequences run together (the engine's limit)",
                "no change is needed",
            )  # fmt: skip


RULES = (bls_instances, batched, limits)
