"""Requests against the server: streaming, beams, adapters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engineroom.checks.codes import declare
from engineroom.checks.evidence import triton_repository as repo
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import LaneName, Severity, Topic
from engineroom.reading import commands
from engineroom.reading.facts import Request
from engineroom.types import Figure

_TRITON = "triton-inference-server/server docs/protocol/extension_generate.md"
UNARY = declare(
    "decoupled-needs-stream-call", Topic.DECOUPLED, Severity.ERROR,
    says="a decoupled model is called through a streaming endpoint",
    why="a decoupled model may answer any number of times, which a single-answer call cannot take",
    source="triton-inference-server/tensorrtllm_backend#177; NVIDIA/TensorRT-LLM#677; server#4994; " + _TRITON,
)  # fmt: skip
STREAM = declare(
    "stream-needs-decoupled", Topic.DECOUPLED, Severity.ERROR,
    says="streams are asked of a decoupled model, through an endpoint that streams",
    why="the backend refuses a streaming request when the model may answer only once",
    source="NVIDIA/TensorRT-LLM triton_backend/inflight_batcher_llm/src/utils.cc (createRequestsFromInputTensors, "
    "1.3.0rc3); tensorrtllm_backend#626; " + _TRITON,
)  # fmt: skip
BLS_POLICY = declare(
    "bls-and-engine-policy-differ", Topic.DECOUPLED, Severity.ERROR,
    says="tensorrt_llm_bls and tensorrt_llm have the same decoupled setting",
    why="the BLS model calls the engine in its own mode, which the engine then refuses",
    source="triton-inference-server/python_backend README (decoupled mode in BLS); tensorrtllm_backend "
    "docs/model_config.md @ v0.19.0 (decoupled_mode)",
)  # fmt: skip
BEAM_OVER = declare(
    "beam-width-over-limit", Topic.BEAM_WIDTH, Severity.ERROR,
    says="a request has no more beams than the server was configured for, nor the engine built for",
    why="the request is refused, or the model does not load",
    source="NVIDIA/TensorRT-LLM cpp/tensorrt_llm/batch_manager/{trtGptModel.h,createNewDecoderRequests.cpp} (1.3.0rc3)",
)  # fmt: skip
BEAM_DIFFERS = declare(
    "beam-width-must-equal", Topic.BEAM_WIDTH, Severity.ERROR,
    says="in the PyTorch lane each request has exactly max_beam_width beams",
    why="the executor compares the two and refuses any other width",
    source="NVIDIA/TensorRT-LLM#7368; tensorrt_llm/_torch/pyexecutor/py_executor.py (_validate_request, 1.3.0rc3)",
)  # fmt: skip
LORA_RANK = declare(
    "lora-rank-over-limit", Topic.LORA, Severity.ERROR,
    says="an adapter's rank is at most the engine's max_lora_rank",
    why="the LoRA plugin refuses the adapter (Invalid low_rank)",
    source="NVIDIA/TensorRT-LLM#1903; cpp/tensorrt_llm/plugins/loraPlugin (low rank check)",
)  # fmt: skip
LORA_CACHE = declare(
    "lora-cache-below-rank", Topic.LORA, Severity.WARN,
    says="lora_cache_max_adapter_size covers the adapter's rank",
    why="the cache is sized and checked for smaller adapters than those that come",
    source="triton-inference-server/tensorrtllm_backend docs/model_config.md @ v0.19.0 (LoRA cache); "
    "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/batch_manager/peftCacheManager.cpp",
)  # fmt: skip
LORA_FIRST = declare(
    "lora-first-request", Topic.LORA, Severity.ERROR,
    says="the first request of an adapter carries lora_weights and lora_config",
    why="the server's cache does not know the id; building with --lora_dir does not load it there",
    source="NVIDIA/TensorRT-LLM#1552; triton-inference-server/tensorrtllm_backend#641; docs/model_config.md "
    "@ v0.19.0 (lora_task_id); peftCacheManager.cpp (not found in cache)",
)  # fmt: skip
LORA_TYPE = declare(
    "lora-tensor-type", Topic.LORA, Severity.ERROR,
    says="lora_weights have the data type of the LoRA plugin and of the model's input, lora_config is INT32",
    why="Triton refuses another data type than the input's; the plugin reads its own",
    source="triton-inference-server/tensorrtllm_backend all_models/inflight_batcher_llm/tensorrt_llm/config.pbtxt "
    "@ v0.16.0 (lora_weights, lora_config)",
)  # fmt: skip
LORA_NOT_BUILT = declare(
    "lora-not-built", Topic.LORA, Severity.ERROR,
    says="an engine that gets adapters was built with --lora_plugin",
    why="without the plugin the adapter has no effect, or the request is refused",
    source="triton-inference-server/tensorrtllm_backend docs/lora.md @ v0.16.0 (--lora_plugin); #641",
)  # fmt: skip


# ---- decoupled
def _stated(model: repo.Model) -> bool | None:
    """The policy as written; an excerpt that leaves it out says nothing."""
    return model.config.decoupled


def decoupled_of(c: Context, name: str | None) -> bool | None:
    """Whether the model of that name is decoupled; an ensemble is when a model it chains is."""
    models = repo.models(c)
    settings = (c.evidence.model_yaml or {}).get("triton_config")
    if isinstance(settings, Mapping) and "decoupled" in settings and not repo.engines(c):
        return bool(settings["decoupled"])
    named = next((m for m in models if m.name == name), None)
    if named is not None and not named.config.is_ensemble:
        return _stated(named)
    steps = named.config.steps if named is not None else ()
    parts = [m for m in models if m.name in steps] if steps else list(repo.engines(c))
    states = [_stated(m) for m in parts]
    if not states and len(models) == 1 and models[0].role is None:
        states = [_stated(models[0])]
    if any(states):
        return True
    return None if not states or None in states else False


_UNARY = {"infer", "modelinfer"}


@about(Topic.DECOUPLED)
def endpoints(c: Context) -> Iterator[Answer]:
    for at, request in enumerate(c.evidence.requests or ()):
        decoupled = decoupled_of(c, request.model)
        endpoint = (request.endpoint or "").lower()
        name = request.model or "the model"
        key = f"requests[{at}].endpoint"
        if decoupled and endpoint in _UNARY:
            yield UNARY.found(
                c, key, f"{request.endpoint} calls {name}, which is decoupled: the call takes one answer and "
                "is refused", "call ModelStreamInfer or generate_stream, or render decoupled: false if no "
                "streaming is wanted",
            )  # fmt: skip
        elif request.stream and decoupled is False:
            yield STREAM.found(
                c, f"requests[{at}].stream", f"stream is true, and {name} is not decoupled: the request is refused",
                "set decoupled_mode to true (in tensorrt_llm, and tensorrt_llm_bls where it is called)",
            )  # fmt: skip
        elif request.stream and endpoint == "generate":
            yield STREAM.found(
                c, key, f"generate takes exactly one answer, and the request to {name} (decoupled) streams",
                "call generate_stream, or send stream false",
            )  # fmt: skip


@about(Topic.DECOUPLED)
def bls_policy(c: Context) -> Iterator[Answer]:
    engine = {_stated(m) for m in repo.engines(c)}
    for model in repo.models(c):
        if model.role == repo.BLS and len(engine) == 1 and None not in engine:
            own, other = _stated(model), next(iter(engine))
            if own is not None and own != other:
                yield BLS_POLICY.found(
                    c, model.key("model_transaction_policy.decoupled"),
                    f"decoupled is {str(own).lower()} in {model.config.path} and {str(other).lower()} in the "
                    "engine's model", "set both alike",
                )  # fmt: skip


# ---- beams
def _beams(request: Request) -> int | None:
    """Beams that a request asks for; 1 where beam search is off."""
    if request.use_beam_search is False:
        return 1
    if request.beam_width is not None:
        return max(1, request.beam_width)
    return 1 if request.use_beam_search is None else None


def _pytorch(c: Context) -> bool:
    if c.lane is not None:
        return c.lane is LaneName.LLMAPI
    return c.evidence.triton_family == "llmapi" or (
        c.evidence.model_yaml is not None and c.evidence.engine_config is None
    )


@about(Topic.BEAM_WIDTH)
def beams(c: Context) -> Iterator[Answer]:
    wanted = [
        (i, b) for i, r in enumerate(c.evidence.requests or ()) if (b := _beams(r)) is not None
    ]
    if wanted:
        yield Figure("required_max_beam_width", max(b for _, b in wanted))
    if _pytorch(c):
        # Arguments without it serve width 1 (BuildConfig's and TorchLlmArgs' default).
        value = c.evidence.model_yaml.get("max_beam_width", 1) if c.evidence.model_yaml else None
        if isinstance(value, bool) or not isinstance(value, int):
            return
        for at, width in wanted:
            if width != value:
                yield BEAM_DIFFERS.found(
                    c, f"requests[{at}].beam_width", f"beam width {width}, and max_beam_width is {value}: in this "
                    "lane they must be equal", f"send this request to a server with max_beam_width {width}; a "
                    f"server with {value} takes beam search with exactly {value}",
                )  # fmt: skip
        return
    build = c.evidence.engine_config.build_config if c.evidence.engine_config else None
    built = build.max_beam_width if build else None
    engines = repo.engines(c)
    for model in engines:
        stated = repo.int_parameter(model, "max_beam_width")
        if stated is not None and built is not None and stated > built:
            yield BEAM_OVER.found(
                c, model.parameter_key("max_beam_width"), f"max_beam_width {stated} of {model.config.path}, and "
                f"the engine was built with max_beam_width {built}: the model does not load",
                f"write {built}, or build with --max_beam_width {stated}", line=model.line("max_beam_width"),
            )  # fmt: skip
    # The parameter's default is 1; it holds where a config is there that does not set it.
    served = [repo.int_parameter(m, "max_beam_width") or 1 for m in engines]
    limits = [("max_beam_width of config.pbtxt", max(served))] if served else []
    if built is not None:
        limits.append(("max_beam_width of the engine", built))
    for at, width in wanted:
        over = [(name, limit) for name, limit in limits if width > limit]
        if over:
            name, limit = min(over, key=lambda item: item[1])
            yield BEAM_OVER.found(
                c, f"requests[{at}].beam_width", f"beam width {width}, and {name} is {limit}",
                f"set max_beam_width to {width} in config.pbtxt"
                + (f" and build with --max_beam_width {width}" if any("engine" in n for n, _ in over) else "")
                + f", or ask for at most {limit}",
            )  # fmt: skip


# ---- adapters
@about(Topic.LORA)
def adapter_rank(c: Context) -> Iterator[Answer]:
    adapter = c.evidence.adapter_config
    if adapter is None or adapter.r is None:
        return
    yield Figure("required_max_lora_rank", adapter.r)
    build = c.evidence.engine_config.build_config if c.evidence.engine_config else None
    limit = build.lora_config.max_lora_rank if build and build.lora_config else None
    place = "engine_config.build_config.lora_config.max_lora_rank"
    lora = (c.evidence.model_yaml or {}).get("lora_config")
    if limit is None and isinstance(lora, Mapping) and isinstance(lora.get("max_lora_rank"), int):
        limit, place = int(lora["max_lora_rank"]), "model_yaml.lora_config.max_lora_rank"
    if limit is not None and adapter.r > limit:
        yield LORA_RANK.found(
            c, place, f"the adapter's rank r is {adapter.r}, and max_lora_rank is {limit}",
            f"build with --max_lora_rank {adapter.r}" if "engine" in place else f"set max_lora_rank to {adapter.r}",
        )  # fmt: skip
    for model in repo.engines(c):
        size = repo.int_parameter(model, "lora_cache_max_adapter_size")
        if size is not None and adapter.r > size:
            yield LORA_CACHE.found(
                c, model.parameter_key("lora_cache_max_adapter_size"),
                f"lora_cache_max_adapter_size is {size}, and the adapter's rank r is {adapter.r}",
                f"write {adapter.r} or more", line=model.line("lora_cache_max_adapter_size"),
            )  # fmt: skip


_PLUGIN_TYPES = {"float16": "FP16", "bfloat16": "BF16", "float32": "FP32"}


def _weight_type(c: Context) -> str | None:
    """What the model's input says, else the plugin's type."""
    for model in repo.engines(c):
        tensor = model.config.tensors("input").get("lora_weights")
        kind = tensor.scalar("data_type") if tensor else None
        if kind is not None and kind.text.startswith("TYPE_"):
            return kind.text.removeprefix("TYPE_")
    argv = c.evidence.build_argv
    if argv is None:
        return None
    return _PLUGIN_TYPES.get(str(commands.flags(argv).get("--lora_plugin", "")))


@about(Topic.LORA)
def first_requests(c: Context) -> Iterator[Answer]:
    requests = c.evidence.requests or ()
    if not any(r.lora_task_id is not None or r.lora_weights or r.lora_config for r in requests):
        if requests:
            yield Figure("request_verdicts", ["ok"] * len(requests))
        return
    argv = c.evidence.build_argv
    plugin = commands.flags(argv).get("--lora_plugin") if argv else None
    unbuilt = bool(argv) and (plugin is None or plugin == "disable")
    if unbuilt:
        yield LORA_NOT_BUILT.found(
            c, "build_argv", "requests name adapters, and the engine is built "
            + ("without --lora_plugin" if plugin is None else "with --lora_plugin disable"),
            "build with --lora_plugin and --max_lora_rank",
        )  # fmt: skip
    wanted = _weight_type(c)
    cached: set[int] = set()
    verdicts = []
    for at, request in enumerate(requests):
        faults = list(_lora_faults(c, at, request, cached, wanted))
        yield from faults
        asked = request.lora_task_id is not None
        verdicts.append("error" if faults or (unbuilt and asked) else "ok")
        if not faults and request.lora_task_id is not None and request.lora_weights:
            cached.add(request.lora_task_id)
    yield Figure("request_verdicts", verdicts)


def _lora_faults(
    c: Context, at: int, request: Request, cached: set[int], wanted: str | None
) -> Iterator[Answer]:
    task, weights, config = request.lora_task_id, request.lora_weights, request.lora_config
    key = f"requests[{at}]"
    if task is None:
        if weights or config:
            yield LORA_FIRST.found(
                c, f"{key}.lora_task_id", "lora_weights or lora_config are sent without a lora_task_id: the "
                "adapter is not used", "send lora_task_id with them",
            )  # fmt: skip
        return
    if bool(weights) != bool(config):
        there, lacking = (
            ("lora_weights", "lora_config") if weights else ("lora_config", "lora_weights")
        )
        yield LORA_FIRST.found(
            c,
            f"{key}.{lacking}",
            f"adapter {task} comes with {there} and without {lacking}",
            f"send {lacking} too",
        )
    elif not weights and task not in cached:
        yield LORA_FIRST.found(
            c, f"{key}.lora_weights", f"adapter {task} is used before its lora_weights and lora_config were sent; "
            "--lora_dir of the build does not load it into the server",
            "send lora_weights and lora_config once for each adapter (a warm-up request), and again after eviction",
        )  # fmt: skip
    if weights and wanted and weights.dtype and weights.dtype.upper() != wanted:
        yield LORA_TYPE.found(
            c, f"{key}.lora_weights", f"lora_weights are {weights.dtype}, and the server takes {wanted}",
            f"convert them to {wanted}",
        )  # fmt: skip
    if config and config.dtype and config.dtype.upper() != "INT32":
        yield LORA_TYPE.found(
            c,
            f"{key}.lora_config",
            f"lora_config is {config.dtype}, and the server takes INT32",
            "send INT32",
        )


RULES = (endpoints, bls_policy, beams, adapter_rank, first_requests)
