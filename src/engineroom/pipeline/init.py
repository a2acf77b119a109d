"""`init`: a commented spec that passes `check`."""

from __future__ import annotations

import re
from pathlib import Path

from engineroom.catalog import Catalog
from engineroom.checks.evidence.quant_shapes import partial
from engineroom.checks.precision import group_misfits
from engineroom.errors import UsageError, Where
from engineroom.names import LaneName, Support, WeightFormat
from engineroom.reading.files import HfConfig
from engineroom.render.filters import json_yaml
from engineroom.runner import model_source
from engineroom.spec.model import Model
from engineroom.types import GpuSku, ModelShape

DEFAULT_STACK = "26.07"
DEFAULT_DATASET = "calibration.jsonl"
HUB_DATASET = "mit-han-lab/pile-val-backup"
"""General text with a `text` column, used where there is no local file yet."""

_TEMPLATE = """\
# engineroom spec, schema version 1. `engineroom schema` prints every key.
schema_version: 1
name: {name}                # Kubernetes-safe service name

model:
  source: {source}          # local folder or hub id
  trust_remote_code: false

precision:                  # two separate axes
  weights: {weights}        # bf16 | fp16 | fp8 | w4a16_awq | nvfp4
  kv_cache: {kv_cache}      # auto | fp8
{group}
calibration:
  dataset: {dataset}        # JSONL with a `text` key, a text file, or a hub dataset
  samples: {samples}
  seq_len: 512
  batch_size: auto
  seed: 0

targets:
  - sku: {sku}
    lane: {lane}            # llmapi, engine (TensorRT-LLM <= 1.2 only), or vllm
    stack: "{stack}"        # Triton release
    tensor_parallel: 1
    pipeline_parallel: 1
    limits:
      max_batch_size: 64
      max_num_tokens: 8192
      # max_seq_len: 4096   # default: the model's own limit

# workload:                 # used by `plan`
#   chat:
#     input_tokens: {{p50: 500, p95: 2000}}
#     output_tokens: {{p50: 150, p95: 400}}
#     concurrency: 16

serving:
  {memory}
  kv_block_reuse: true
  streaming: true

deploy:
  namespace: default
  replicas: 1
"""


_MEMORY = (
    "kv_cache_free_gpu_mem_fraction: 0.90   # share of what is free after load, not of the total",
    "gpu_memory_utilization: 0.90   # share of the total memory, weights included\n"
    "  chunked_context: true          # vLLM's own default; without it a step must take a whole prompt",
)


def init_spec(
    catalog: Catalog,
    *,
    model: str,
    sku: str,
    lane: LaneName = LaneName.LLMAPI,
    stack: str = DEFAULT_STACK,
    dataset: str | None = None,
    spec_dir: Path = Path(),
) -> str:
    """Text of a spec for a model on a SKU, in the best format that the SKU supports.

    FP8 weights and KV cache where supported; else AWQ with a group that fits the model, else bf16.
    Calibration text: `dataset`, else ``calibration.jsonl`` beside the spec, else a hub dataset.

    Raises:
        UsageError: an unknown SKU or stack, or a model path that is not there.
    """
    if dataset is None:
        # The spec must pass `check` as it is written: a file that is not there would not.
        dataset = DEFAULT_DATASET if (spec_dir / DEFAULT_DATASET).is_file() else HUB_DATASET
    gpu = catalog.sku(sku)
    release = catalog.lane_stack(stack, lane, Where(key="--stack"))
    folder = model_source.local_folder(Model(source=model), spec_dir, download=False)
    shape = model_source.read_shape(folder) if folder else None
    weights, group = _format_for(catalog, gpu, lane, release.runtime_version, shape)
    kv_support, _ = catalog.precision_support(
        lane, release.runtime_version, "kv_cache", "fp8", gpu.compute_capability
    )
    native = gpu.cc_tuple >= (8, 9)  # below it FP8 KV is stored, never computed: no default
    name = re.sub(r"[^a-z0-9]+", "-", model.rstrip("/").rsplit("/", 1)[-1].lower()).strip("-")[:53]
    if not name:
        raise UsageError(
            f"no name can be made from `{model}`", hint="name a model folder or hub id"
        )
    return _TEMPLATE.format(
        name=name.strip("-"),
        source=json_yaml(model),
        weights=weights,
        kv_cache="fp8" if kv_support is Support.YES and native else "auto",
        group=f"  group_size: {group}\n" if group else "",
        dataset=json_yaml(dataset),
        samples=catalog.weight_recipes[str(weights)].recommended_samples or 128,
        sku=gpu.id,
        lane=lane,
        stack=stack,
        memory=_MEMORY[lane is LaneName.VLLM],
    )


def _format_for(
    catalog: Catalog, gpu: GpuSku, lane: LaneName, version: str, shape: ModelShape | None
) -> tuple[WeightFormat, int | None]:
    for fmt in (WeightFormat.FP8, WeightFormat.W4A16_AWQ):
        recipe = catalog.weight_recipes[str(fmt)]
        support, _ = catalog.precision_support(
            lane, version, "weights", fmt, gpu.compute_capability
        )
        if support is not Support.YES or (lane is LaneName.ENGINE and not recipe.trtllm_checkpoint):
            continue
        if recipe.group_size is None:
            return fmt, None
        fitting = [
            g
            for g in sorted(recipe.group_size.allowed, reverse=True)
            if shape is None
            or not (
                partial(_widths(shape), g, 1)
                or (
                    lane is LaneName.ENGINE
                    and group_misfits(catalog.trtllm_checkpoint, recipe.quant_algo, shape, g, 1)[1]
                )
            )
        ]
        if fitting:
            return fmt, fitting[0]
    return WeightFormat.BF16, None


def _widths(shape: ModelShape) -> HfConfig:
    """The sizes that decide whether groups are whole."""
    return HfConfig(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        num_experts=1 if shape.has_experts else None,
    )
