"""What an artefact says of itself, and whether that is what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engineroom.checks.engine_output import Wanted, differences
from engineroom.errors import UsageError, Where
from engineroom.lanes import LaneRequest
from engineroom.pipeline.build_key import Inputs
from engineroom.pipeline.quantize import Checkpoint
from engineroom.runner import files


def engine_differences(folder: Path, request: LaneRequest) -> list[str]:
    """Where the engine in a folder is not what the request asks for, by its own `config.json`."""
    limits = request.target.limits
    try:
        config = files.read_json(folder / "config.json")
    except (OSError, ValueError, RecursionError):
        return ["it cannot be read"]
    return differences(
        config,
        Wanted(
            version=request.contract.version,
            tensor_parallel=request.target.tensor_parallel,
            pipeline_parallel=request.target.pipeline_parallel,
            max_batch_size=limits.max_batch_size,
            max_num_tokens=limits.max_num_tokens,
            max_beam_width=limits.max_beam_width,
            max_seq_len=request.max_seq_len,
            quant_algo=request.weight_recipe.quant_algo,
            kv_cache_quant_algo=request.kv_recipe.kv_cache_quant_algo,
        ),
    )


def assert_quantization(request: LaneRequest, checkpoint: Checkpoint) -> None:
    """What the builder takes from the checkpoint must be what the spec says: FP8 KV is no flag."""
    for relative in ("trtllm/config.json", "hf/hf_quant_config.json"):
        path = checkpoint.path / relative
        if not path.is_file():
            continue
        found = files.read_json(path)["quantization"]
        for name, expected in (
            ("quant_algo", request.weight_recipe.quant_algo),
            ("kv_cache_quant_algo", request.kv_recipe.kv_cache_quant_algo),
        ):
            if found.get(name) != expected:
                raise UsageError(
                    f"the checkpoint says {name} {found.get(name)}, the spec needs {expected}",
                    where=Where(path.as_posix(), key=name),
                    hint="run `engineroom quantize` again",
                )


def assert_packed(content: Mapping[str, Any], inputs: Inputs, checkpoint: Checkpoint) -> None:
    """The checkpoint in a package is, file by file, the one that the key was made of.

    Args:
        content: manifest of the package.

    Raises:
        UsageError: a file changed, came or went between the key and the package.
    """
    source, packed = "hf/", "checkpoint/"
    ours = {output for step in inputs.steps for output in step.outputs}
    wanted = {
        packed + name[len(source) :]: digest
        for name, digest in checkpoint.manifest["files"].items()
        if name.startswith(source)
    }
    found = {
        name: digest
        for name, digest in content["files"].items()
        if name.startswith(packed) and (name in wanted or name not in ours)
    }
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            file = checkpoint.path / source / name[len(packed) :]
            raise UsageError(
                "the checkpoint was changed while it was packed",
                where=Where(file.as_posix(), key=inputs.item.target.id),
                hint="nothing was published; run `engineroom quantize`, then build again when nothing "
                "writes to it",
            )


def facts_of(
    inputs: Inputs, checkpoint: Checkpoint, executor: str | None, image_digest: str | None
) -> dict[str, Any]:
    """The conditions of an artefact, for its manifest (schema version 2).

    Args:
        executor: where its commands ran; None: there were none, or they did not run.
    """
    item, request = inputs.item, inputs.request
    limits = request.target.limits
    return {
        "target": item.target.id,
        "profile": item.target.profile,
        "lane": str(item.target.lane),
        "sku": {"id": item.sku.id, "compute_capability": item.sku.compute_capability},
        "stack": {
            "id": item.stack.id,
            "runtime": item.stack.runtime_name,
            "runtime_version": item.stack.runtime_version,
            "tensorrt_llm": item.stack.tensorrt_llm or None,
            "tensorrt": item.stack.tensorrt,
            "image": item.stack.image,
        },
        "executor": executor,
        "image": item.stack.image,
        "image_digest": image_digest,
        "contract": {"version": request.contract.version, "digest": request.contract.digest},
        "tensor_parallel": item.target.tensor_parallel,
        "pipeline_parallel": item.target.pipeline_parallel,
        "limits": {
            "max_batch_size": limits.max_batch_size,
            "max_num_tokens": limits.max_num_tokens,
            "max_seq_len": request.max_seq_len,
            "max_beam_width": limits.max_beam_width,
        },
        "checkpoint": {
            "path": request.checkpoint,
            "digest": checkpoint.manifest["digest"],
            "weights": checkpoint.manifest["weights"],
            "kv_cache": checkpoint.manifest["kv_cache"],
        },
        "attachments": [a.as_dict() for a in inputs.attached],
        "steps": [step.as_dict() for step in inputs.steps],
        "inputs": dict(inputs.facts),
    }
