"""Bytes of weights and KV cache of one rank, and what is left for sequences.

Formulas, all from the shapes in `config.json`:

* KV bytes per token = 2 (K and V) x layers x KV heads x head_dim x bits / 8. Checked against a
  measured server: Llama-3.1-8B has 131,072 bytes in 16 bit and 65,536 in FP8
  (docs/measurements/plan.md).
* Quantized weights = elements x bits / 8 + scales; embeddings, head and norms stay in 16 bit.
* KV pool of TensorRT-LLM = (memory - weights - reserve) x `kv_cache_free_gpu_mem_fraction`: a share of
  what is free after load, never of the total.
* KV pool of vLLM = memory x `gpu_memory_utilization` - weights - reserve: a share of the total, weights
  included (vllm/v1/worker/utils.py, request_memory; gpu_worker.py, determine_available_memory).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod

from engineroom.catalog import WeightRecipe
from engineroom.names import BITS_PER_ELEMENT, KvCacheFormat
from engineroom.spec.model import DeploymentSpec, Profile, Target
from engineroom.types import Capacity, GpuSku, ModelShape, ProfilePlan, StackRelease

MIB = 1024 * 1024
TOKENS_PER_BLOCK = 32
"""TensorRT-LLM's default KV block (contract: `--tokens_per_block`, `KvCacheConfig`)."""
RESERVE_MIB = 2048
"""Assumed for CUDA context, activations and graphs of one rank; not a measurement."""
VLLM_TOKENS_PER_BLOCK = 16
"""vLLM's default block on CUDA (vllm/config/cache.py, DEFAULT_BLOCK_SIZE)."""
VLLM_MEMORY_SHARE = 0.90
"""What the vllm lane writes where the spec names no `gpu_memory_utilization`."""
VLLM_RESERVE_MIB = 3164
"""What vLLM took beside weights and KV cache, CUDA graphs included: 3.09 GiB in two runs of version
0.21.0 on an H200 with an 8B Llama in bf16 and FP8 (total x 0.90 - weights - KV cache)."""
HIGH_PRECISION_BYTES = 2


@dataclass(frozen=True)
class WeightBytes:
    """Bytes of a whole model: quantized linears with scales, and what stays in 16 bit."""

    quantized: int
    high_precision: int
    per_layer: int
    tables: tuple[int, ...]

    @property
    def total(self) -> int:
        return self.quantized + self.high_precision


def _quantized_bytes(shape: tuple[int, int], recipe: WeightRecipe, group: int | None) -> int:
    elements = prod(shape)
    size = elements * BITS_PER_ELEMENT[recipe.weights] // 8
    if group:
        size += shape[0] * ceil(shape[1] / group) * recipe.bytes_per_group_scale
    return size


def _is_layer_linear(name: str, shape: tuple[int, ...]) -> bool:
    """Routers of experts (`mlp.gate`, `router`) stay in 16 bit in every recipe."""
    router = name.endswith((".gate.weight", ".router.weight"))
    return len(shape) == 2 and ".layers." in name and name.endswith(".weight") and not router


def weight_bytes(
    model: ModelShape,
    recipe: WeightRecipe,
    group_size: int | None,
    tensors: Mapping[str, tuple[int, ...]] | None = None,
) -> WeightBytes | None:
    """Bytes of the whole model in the recipe's format.

    Args:
        tensors: name to shape from the safetensors headers; without it the shape is computed for
            dense decoder models.

    Returns:
        None for a mixture of experts without tensor shapes: a guess would be wrong.
    """
    group = group_size or (recipe.group_size.default if recipe.group_size else None)
    if tensors is None:
        if model.has_experts:
            return None
        tensors = _dense_tensors(model)
    quantized = high = 0
    tables: list[int] = []
    for name, shape in tensors.items():
        if recipe.modelopt_config and _is_layer_linear(name, shape):
            quantized += _quantized_bytes((shape[0], shape[1]), recipe, group)
        else:
            high += prod(shape) * HIGH_PRECISION_BYTES
        if len(shape) == 2 and ".layers." not in name:
            tables.append(prod(shape) * HIGH_PRECISION_BYTES)
    per_layer = (quantized + high - sum(tables)) // model.num_hidden_layers
    return WeightBytes(quantized, high, per_layer, tuple(tables))


def _dense_tensors(model: ModelShape) -> dict[str, tuple[int, ...]]:
    tensors: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (model.vocab_size, model.hidden_size),
        "model.norm.weight": (model.hidden_size,),
    }
    if not model.tie_word_embeddings:
        tensors["lm_head.weight"] = (model.vocab_size, model.hidden_size)
    for layer in range(model.num_hidden_layers):
        for name, shape in model.linear_shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = shape
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = (model.hidden_size,)
    return tensors


def rank_weight_bytes(weights: WeightBytes, layers: int, tp: int, pp: int) -> int:
    """Bytes on the fullest rank: its layers, and the larger table when stages split them.

    Norms are replicated over TP ranks; they are below a thousandth and counted as sharded.
    """
    stage_layers = ceil(layers / pp)
    tables = sum(weights.tables) if pp == 1 else max(weights.tables, default=0)
    return ceil((weights.per_layer * stage_layers + tables) / tp)


def kv_bytes_per_token(model: ModelShape, kv_bits: int, tp: int, pp: int) -> int:
    """Bytes of K and V for one token on one rank; KV heads fewer than ranks are replicated."""
    heads = max(1, ceil(model.num_key_value_heads / tp))
    layers = ceil(model.num_hidden_layers / pp)
    return 2 * layers * heads * model.head_dim * kv_bits // 8


def kv_bits(kv_cache: KvCacheFormat) -> int:
    """`auto` without scales in the checkpoint means 16 bit."""
    return 16 if kv_cache is KvCacheFormat.AUTO else BITS_PER_ELEMENT[kv_cache]


def whole_blocks(pool: int, per_token: int, tokens_per_block: int) -> int:
    """Tokens of the whole blocks that `pool` bytes hold."""
    return pool // (per_token * tokens_per_block) * tokens_per_block


def target_capacity(
    model: ModelShape,
    weights: WeightBytes,
    spec: DeploymentSpec,
    target: Target,
    sku: GpuSku,
    stack: StackRelease,
) -> tuple[Capacity, str]:
    """Memory of one GPU of a target by the rule of its runtime, and what was assumed."""
    serving = spec.serving
    if stack.runtime_name == "vLLM":
        share = serving.gpu_memory_utilization
        capacity = capacity_of(
            model, weights, spec.precision.kv_cache, sku,
            tp=target.tensor_parallel, pp=target.pipeline_parallel,
            fraction=VLLM_MEMORY_SHARE if share is None else share,
            of_total=True, reserve_mib=VLLM_RESERVE_MIB,
            tokens_per_block=serving.vllm.block_size or VLLM_TOKENS_PER_BLOCK,
        )  # fmt: skip
        return capacity, (
            f"{VLLM_RESERVE_MIB} MiB beside weights and KV cache, as vLLM 0.21.0 took on one H200 with "
            "an 8B model; it grows with max_num_batched_tokens and the vocabulary"
        )
    capacity = capacity_of(
        model, weights, spec.precision.kv_cache, sku,
        tp=target.tensor_parallel, pp=target.pipeline_parallel,
        fraction=serving.kv_cache_free_gpu_mem_fraction,
        tokens_per_block=target.tokens_per_block or TOKENS_PER_BLOCK,
    )  # fmt: skip
    return capacity, (
        f"{RESERVE_MIB} MiB assumed for CUDA context, activations and graphs; not measured"
    )


def capacity_of(
    model: ModelShape,
    weights: WeightBytes,
    kv_cache: KvCacheFormat,
    sku: GpuSku,
    *,
    tp: int,
    pp: int,
    fraction: float,
    of_total: bool = False,
    reserve_mib: int = RESERVE_MIB,
    tokens_per_block: int = TOKENS_PER_BLOCK,
) -> Capacity:
    """Memory of one GPU in bytes, and the KV tokens (whole blocks) that it holds.

    Args:
        fraction: of what is free after load; with `of_total`, of all memory, weights included.
    """
    per_token = kv_bytes_per_token(model, kv_bits(kv_cache), tp, pp)
    on_rank = rank_weight_bytes(weights, model.num_hidden_layers, tp, pp)
    reserve, total = reserve_mib * MIB, sku.memory_mib * MIB
    free = max(0, total - on_rank - reserve)
    pool = max(0, ceil(total * fraction) - on_rank - reserve) if of_total else int(free * fraction)
    return Capacity(
        memory_mib=sku.memory_mib,
        weight_bytes=on_rank,
        weight_bytes_high_precision=ceil(weights.high_precision / (tp * pp)),
        reserve_bytes=reserve,
        free_bytes=free,
        kv_bytes_per_token=per_token,
        kv_pool_bytes=pool,
        kv_tokens=whole_blocks(pool, per_token, tokens_per_block),
        tokens_per_block=tokens_per_block,
    )


def profile_plans(
    cap: Capacity, profiles: Mapping[str, Profile], max_batch_size: int
) -> tuple[ProfilePlan, ...]:
    """Sequences of each profile that fit at once, by p95 lengths rounded up to whole blocks."""
    plans = []
    for name, profile in profiles.items():
        tokens = profile.input_tokens.p95 + profile.output_tokens.p95
        whole = ceil(tokens / cap.tokens_per_block) * cap.tokens_per_block
        by_kv = cap.kv_tokens // whole
        bound = "kv_cache" if by_kv < max_batch_size else "max_batch_size"
        plans.append(ProfilePlan(name, tokens, min(by_kv, max_batch_size), bound))
    return tuple(plans)
