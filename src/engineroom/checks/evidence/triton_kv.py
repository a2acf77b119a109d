"""KV cache of engines in a model repository: features against the build, and memory between models."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.catalog.load import in_range
from engineroom.checks.codes import declare
from engineroom.checks.evidence import triton_repository as repo
from engineroom.checks.evidence import triton_values
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.checks.evidence.model_config import kv_bytes_per_token
from engineroom.names import Severity, Topic
from engineroom.reading import cpp_values
from engineroom.reading.files import PluginConfig
from engineroom.types import Figure

MIB = 2**20
_FIX = (
    "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/batch_manager/trtGptModelInflightBatching.cpp (1.3.0rc3)"
)
REUSE = declare(
    "kv-reuse-needs-paged-fmha", Topic.KV_CACHE, Severity.ERROR,
    says="enable_kv_cache_reuse goes with an engine built with paged context FMHA and a paged cache",
    why="older releases stop at an assertion; newer ones switch reuse off with a warning in the log",
    source=f"triton-inference-server/tensorrtllm_backend#271; {_FIX}, fixExecutorConfig",
)  # fmt: skip
CHUNKED = declare(
    "chunked-context-needs-paged-fmha", Topic.KV_CACHE, Severity.ERROR,
    says="enable_chunked_context goes with an engine built with paged context FMHA and a paged cache",
    why="older releases stop at an assertion; newer ones switch chunking off with a warning in the log",
    source=f"{_FIX}; NVIDIA/TensorRT-LLM cpp/tensorrt_llm/executor/executorImpl.cpp (fixExecutorConfig)",
)  # fmt: skip
FEATURE_ON_VOLTA = declare(
    "kv-feature-on-volta", Topic.KV_CACHE, Severity.ERROR,
    says="KV reuse and chunked context run on Ampere or newer",
    why="paged context FMHA has no kernels for Volta, and none are planned",
    source="NVIDIA/TensorRT-LLM#1671 (assertion and maintainer)",
)  # fmt: skip
ONBOARD = declare(
    "kv-onboarding-off", Topic.KV_CACHE, Severity.ERROR,
    says="kv_cache_onboard_blocks stays on with paged context FMHA",
    why="the runtime asserts that offloaded blocks are brought back to the GPU",
    source=_FIX,
)  # fmt: skip
NO_MEMORY = declare(
    "engines-exceed-memory", Topic.KV_CACHE, Severity.ERROR,
    says="each engine finds its memory free when it is loaded, after the KV caches of those before it",
    why="the fraction is a share of what is free at that moment, by default nine tenths of it",
    source="triton-inference-server/tensorrtllm_backend docs/llama_multi_instance.md @ v0.16.0 (load order), "
    "docs/model_config.md @ v0.19.0 (default 0.9, after loading); NVIDIA/TensorRT-LLM#486, #1400",
)  # fmt: skip
LITTLE_LEFT = declare(
    "kv-cache-starved", Topic.KV_CACHE, Severity.WARN,
    says="a later engine has a useful KV cache",
    why="the first one took nearly everything; the later one serves few tokens at once",
    source="triton-inference-server/tensorrtllm_backend docs/llama_multi_instance.md @ v0.16.0 (load order)",
)  # fmt: skip

SIZE = declare(
    "kv-cache-size-lost", Topic.KV_CACHE, Severity.ERROR,
    says="the size of the KV cache is a number that the backend reads and the runtime accepts",
    why="what cannot be read leaves the default in force; a fraction outside 0 to 1 stops the load",
    source="NVIDIA/TensorRT-LLM cpp/tensorrt_llm/executor/kvCacheConfig.cpp (1.3.0rc3); "
    "triton_backend/inflight_batcher_llm/src/{model_state,model_instance_state}.cc",
)  # fmt: skip


def _plugins(c: Context) -> PluginConfig | None:
    config = c.evidence.engine_config
    return config.build_config.plugin_config if config and config.build_config else None


def _asked(c: Context, model: repo.Model, key: str) -> bool:
    """The parameter is there and is read as true."""
    return key in model.config.parameters and repo.flag(c, model, key) is True


@about(Topic.KV_CACHE)
def features(c: Context) -> Iterator[Answer]:
    plugins = _plugins(c)
    capability = c.compute_capability
    for model in repo.engines(c):
        for key, code in (("enable_kv_cache_reuse", REUSE), ("enable_chunked_context", CHUNKED)):
            if not _asked(c, model, key):
                continue
            place = model.parameter_key(key)
            lacking = []
            if plugins is not None and plugins.use_paged_context_fmha is False:
                lacking.append("use_paged_context_fmha")
            if plugins is not None and plugins.paged_kv_cache is False:
                lacking.append("paged_kv_cache")
            if plugins is not None and plugins.context_fmha is False:
                lacking.append("context_fmha")
            if lacking:
                newer = c.trtllm is not None and in_range(c.trtllm, ">=1.3.dev0")
                effect = "it is switched off with a warning" if newer else (
                    "the model does not start, or it is switched off with a warning (by release)"
                )  # fmt: skip
                yield code.found(
                    c, place, f"{key} is true in {model.config.path}, and the engine was built without "
                    f"{' and '.join(lacking)}: {effect}",
                    f"rebuild with --{lacking[0]} enable, or set {key} to false", line=model.line(key),
                )  # fmt: skip
            elif capability is not None and tuple(map(int, capability.split("."))) < (7, 5):
                yield FEATURE_ON_VOLTA.found(
                    c, place, f"{key} is true in {model.config.path}, and compute capability {capability} "
                    "has no kernels of paged context FMHA", f"set {key} to false, or use Ampere or newer",
                    line=model.line(key),
                )  # fmt: skip
        scalar = model.config.parameters.get("kv_cache_onboard_blocks")
        off = scalar is not None and cpp_values.cpp_bool(scalar.text) is False
        if (
            off
            and model.backend == repo.CPP
            and plugins is not None
            and plugins.use_paged_context_fmha
        ):
            yield ONBOARD.found(
                c, model.parameter_key("kv_cache_onboard_blocks"),
                "kv_cache_onboard_blocks is false, and the engine was built with use_paged_context_fmha: "
                "the model does not start", "set kv_cache_onboard_blocks to true",
                line=model.line("kv_cache_onboard_blocks"),
            )  # fmt: skip


@about(Topic.KV_CACHE)
def sizes(c: Context) -> Iterator[Answer]:
    """Sizes of the cache that the backend cannot read or the runtime refuses."""
    for model in repo.engines(c):
        known = repo.rows(c, model)
        for name in ("kv_cache_free_gpu_mem_fraction", "max_tokens_in_paged_kv_cache"):
            scalar, row = model.config.parameters.get(name), known.get(name)
            if scalar is None or row is None or scalar.placeholders:
                continue
            outcome = triton_values.judge(row, scalar, c.trtllm)
            if outcome.severity is Severity.ERROR:
                yield SIZE.found(
                    c, model.parameter_key(name), f"{name} of {model.config.path}: {outcome.reason}",
                    f"write {triton_values.show(outcome.right)}" if outcome.right is not None else
                    "write a number that can be read, within the limits", line=scalar.line,
                )  # fmt: skip


DEFAULT_FRACTION = 0.9
_STARVED = 0.02


def _fraction(model: repo.Model) -> float:
    scalar = model.config.parameters.get("kv_cache_free_gpu_mem_fraction")
    value = cpp_values.stof(scalar.text) if scalar and not scalar.placeholders else None
    return value if value is not None and 0 < value < 1 else DEFAULT_FRACTION


def _bytes_per_token(c: Context) -> int | None:
    return kv_bytes_per_token(c) if c.evidence.hf_config is not None else None


def _cache_bytes(c: Context, model: repo.Model, free: float) -> float | None:
    """What the KV cache takes of `free` bytes: the smaller of the fraction and the token cap.

    None where a cap is set and the bytes of a token are not known.
    """
    by_fraction = free * _fraction(model)
    tokens, each = repo.int_parameter(model, "max_tokens_in_paged_kv_cache"), _bytes_per_token(c)
    if tokens is None or tokens < 1:
        return by_fraction
    return min(by_fraction, tokens * each) if each else None


def _same_gpus(models: list[repo.Model]) -> list[repo.Model]:
    """Without a layout, all load on one GPU; with device ids, those that share the first one's."""
    texts = {m.index: m.config.parameters.get("gpu_device_ids") for m in models}
    sets = {i: cpp_values.device_sets(s.text) if s else None for i, s in texts.items()}
    if any(s is None for s in sets.values()) or not models:
        return models
    first = {g for ids in sets[models[0].index] or [] for g in ids}
    return [m for m in models if first & {g for ids in sets[m.index] or [] for g in ids}]


def _ordered(c: Context) -> list[repo.Model]:
    models = _same_gpus(list(repo.engines(c)))
    order = (c.evidence.launch.load_order if c.evidence.launch else None) or ()
    at = {name: i for i, name in reversed(list(enumerate(order)))}
    names = len(order)
    return sorted(models, key=lambda m: at.get(m.name, at.get(m.config.folder, names)))


@about(Topic.KV_CACHE)
def memory_between_models(c: Context) -> Iterator[Answer]:
    memory, total = c.evidence.memory, c.memory_mib
    if memory is None or memory.engine_bytes is None or total is None:
        return
    models = _ordered(c)
    if not models:
        return
    free: float = total * MIB - (memory.other_runtime_bytes or 0)
    left: dict[str, int] = {}
    before: list[str] = []
    certain = True
    for model in models:
        if certain:
            left[model.name] = int(free)
        key = model.parameter_key("kv_cache_free_gpu_mem_fraction")
        after = free - memory.engine_bytes
        if after <= 0:
            yield NO_MEMORY.found(
                c, key, f"{free / 2**30:.1f} GiB are free when {model.name} is loaded"
                + (f" after {', '.join(before)}" if before else "")
                + f", and its engine needs {memory.engine_bytes / 2**30:.1f} GiB",
                "give each model max_tokens_in_paged_kv_cache, which does not depend on the load order, or "
                "a kv_cache_free_gpu_mem_fraction planned for it" if before else "use a larger GPU",
            )  # fmt: skip
            free = 0.0
        else:
            cache = _cache_bytes(c, model, after)
            if before and after < _STARVED * total * MIB:
                yield LITTLE_LEFT.found(
                    c, key, f"{after / 2**30:.2f} GiB are left for the KV cache of {model.name} after "
                    f"{', '.join(before)}",
                    "lower kv_cache_free_gpu_mem_fraction of the models before it, or give each "
                    "max_tokens_in_paged_kv_cache",
                )  # fmt: skip
            certain = certain and cache is not None
            free = after - (cache or 0.0)
        before.append(model.name)
    yield Figure("free_bytes_for_model", left)


RULES = (features, sizes, memory_between_models)
