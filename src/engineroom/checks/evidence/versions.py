"""Packages against each other, and models against the release that first reads them."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from engineroom.catalog.load import in_range
from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic
from engineroom.reading.base import version_of
from engineroom.types import Figure

TRANSFORMERS = declare(
    "transformers-outside-modelopt-range", Topic.VERSIONS, Severity.ERROR,
    says="transformers is within the range that this ModelOpt is made for",
    why="the traceback of another version blames the model class",
    source="NVIDIA/Model-Optimizer PR #1800; package metadata of nvidia-modelopt (extra hf)",
)  # fmt: skip
RUNTIME = declare(
    "transformers-differs-from-runtime", Topic.VERSIONS, Severity.WARN,
    says="transformers is the version that the TensorRT-LLM release pins",
    why="tokenizers and configs are read by it; other versions are not tested with that release",
    source="NVIDIA/TensorRT-LLM requirements.txt of the release",
)  # fmt: skip
FLOOR = declare(
    "package-below-modelopt-floor", Topic.VERSIONS, Severity.ERROR,
    says="the packages that ModelOpt imports are no older than it asks for",
    why="names that it imports are not there yet; pip says so, a copied environment does not",
    source="NVIDIA/Model-Optimizer setup.py and pyproject.toml, tags 0.23.0 to 0.46.0 (dependencies, extra hf)",
)  # fmt: skip
MODELOPT_PIN = declare(
    "modelopt-differs-from-runtime", Topic.VERSIONS, Severity.WARN,
    says="in one environment, ModelOpt is of the line that the TensorRT-LLM release pins",
    why="quantize.py of the release is written for that line; pip cannot install both as asked",
    source="NVIDIA/TensorRT-LLM requirements.txt of the release (nvidia-modelopt)",
)  # fmt: skip
ARCHITECTURE = declare(
    "architecture-newer-than-runtime", Topic.VERSIONS, Severity.ERROR,
    says="the release knows the model's architecture",
    why="an older one stops with an unknown model class, after the download",
    source="NVIDIA/TensorRT-LLM docs/source/release-notes.md @ 001eaece (Model Support of each release)",
)  # fmt: skip
ROPE_SCALING = declare(
    "llama3-rope-before-0-12", Topic.VERSIONS, Severity.ERROR,
    says="rope_scaling in its newer form (rope_type, llama3) needs TensorRT-LLM 0.12 or newer",
    why="older ones stop with a KeyError that invites a hand edit, which changes the rotary frequencies",
    source="NVIDIA/TensorRT-LLM issue #2052; release notes 0.12 (LLaMA 3.1)",
)  # fmt: skip
ROPE_PARAMETERS = declare(
    "rope-parameters-unread", Topic.VERSIONS, Severity.ERROR,
    says="config.json has the rope keys that the runtime's transformers reads",
    why="transformers 5 writes rope_parameters only; version 4 ignores it and uses default frequencies",
    source="huggingface/transformers MIGRATION_GUIDE_V5.md (rope_parameters)",
)  # fmt: skip
NUMPY = declare(
    "numpy-too-new-for-pytriton", Topic.VERSIONS, Severity.ERROR,
    says="nvidia-pytriton runs with numpy 1",
    why="its package demands it; numpy 2 breaks at import",
    source="package metadata of nvidia-pytriton (Requires-Dist: numpy)",
)  # fmt: skip

WRITER = declare(
    "checkpoint-newer-than-runtime", Topic.VERSIONS, Severity.INFO,
    says="a checkpoint was written by versions no newer than those that the runtime is built with",
    why="newer writers may add keys and layouts that an older reader ignores",
    source="NVIDIA/TensorRT-LLM requirements.txt of the release (nvidia-modelopt, transformers)",
)  # fmt: skip


# First release whose notes name the model; classes that an earlier release may have read are left out.
FIRST_RELEASE = {
    "Exaone4ForCausalLM": "1.0", "Gemma2ForCausalLM": "0.13", "Gemma3ForCausalLM": "0.19",
    "Gemma3ForConditionalGeneration": "0.21", "GptOssForCausalLM": "1.1",
    "MllamaForConditionalGeneration": "0.15", "NemotronHForCausalLM": "0.20",
    "Qwen3ForCausalLM": "0.20", "Qwen3MoeForCausalLM": "0.20", "Qwen3NextForCausalLM": "1.2",
    "Qwen3VLForConditionalGeneration": "1.2", "SeedOssForCausalLM": "1.1",
}  # fmt: skip
# (ModelOpt releases, package, lower bound) from the tags.
FLOORS = (
    (">=0.23,<0.25", "torch", "2.1"), (">=0.25,<0.29", "torch", "2.2"), (">=0.29,<0.35", "torch", "2.4"),
    (">=0.35,<0.44", "torch", "2.6"), (">=0.44,<0.48", "torch", "2.8"),
    (">=0.23,<0.27", "datasets", "2.16.1"), (">=0.27,<0.48", "datasets", "3.0.0"),
    (">=0.23,<0.27", "accelerate", "0.27.2"), (">=0.27,<0.48", "accelerate", "1.0.0"),
    (">=0.23,<0.48", "huggingface-hub", "0.24.0"),
)  # fmt: skip


def _package(c: Context, *names: str) -> str | None:
    """Version of the first of `names` that is installed; case, dots and underscores do not count."""
    packages = {
        key.lower().replace("_", "-").replace(".", "-"): value
        for key, value in (c.evidence.packages or {}).items()
    }
    return next((packages[name] for name in names if name in packages), None)


@about(Topic.VERSIONS)
def modelopt_transformers(c: Context) -> Iterator[Answer]:
    modelopt, installed = _package(c, "nvidia-modelopt", "modelopt"), _package(c, "transformers")
    if version_of(modelopt) is None or modelopt is None:
        return
    row = next((r for r in c.catalog.writers.modelopt if in_range(modelopt, r.modelopt)), None)
    if row is None:
        return
    yield Figure("version_range", {"transformers": row.transformers})
    if installed is None or version_of(installed) is None or in_range(installed, row.transformers):
        return
    yield TRANSFORMERS.found(
        c, "packages.transformers",
        f"nvidia-modelopt {modelopt} is made for transformers {row.transformers}, and {installed} is installed",
        f"pip install 'transformers{row.transformers}' (nvidia-modelopt[hf] asks for it)",
        source="; ".join(row.source),
    )  # fmt: skip


@about(Topic.VERSIONS)
def runtime_transformers(c: Context) -> Iterator[Answer]:
    runtime, installed = _package(c, "tensorrt-llm"), _package(c, "transformers")
    have = version_of(installed)
    if runtime is None or version_of(runtime) is None or have is None:
        return
    row = next((r for r in c.catalog.writers.runtimes if in_range(runtime, r.tensorrt_llm)), None)
    if row is None or row.transformers is None:
        return
    pin = row.transformers
    try:
        wanted = Requirement(f"transformers{pin if pin[:1] in '<>=~!' else '==' + pin}").specifier
    except InvalidRequirement:
        return
    if not wanted.contains(have, prereleases=True):
        yield RUNTIME.found(
            c, "packages.transformers",
            f"TensorRT-LLM {runtime} pins transformers {pin}, and {installed} is installed",
            f"pip install 'transformers{wanted}'", source="; ".join(row.source),
        )  # fmt: skip


@about(Topic.VERSIONS)
def modelopt_floors(c: Context) -> Iterator[Answer]:
    modelopt = _package(c, "nvidia-modelopt", "modelopt")
    if modelopt is None or version_of(modelopt) is None:
        return
    for releases, name, floor in FLOORS:
        have = version_of(_package(c, name))
        if have is None or not in_range(modelopt, releases):
            continue
        yield Figure("version_range", {name: f">={floor}"})
        # NVIDIA's containers number their builds as pre-releases (2.8.0a0+...nv25.06).
        if Version(have.base_version) < Version(floor):
            yield FLOOR.found(
                c, f"packages.{name}",
                f"nvidia-modelopt {modelopt} asks for {name} >={floor}, and {have} is installed",
                f"pip install '{name}>={floor}'",
            )  # fmt: skip


@about(Topic.VERSIONS)
def runtime_modelopt(c: Context) -> Iterator[Answer]:
    runtime, modelopt = _package(c, "tensorrt-llm"), _package(c, "nvidia-modelopt", "modelopt")
    have = version_of(modelopt)
    if runtime is None or version_of(runtime) is None or have is None:
        return
    row = next((r for r in c.catalog.writers.runtimes if in_range(runtime, r.tensorrt_llm)), None)
    pin = version_of((row.modelopt or "").lstrip("=~<>! ").split(",")[0]) if row else None
    if row is not None and pin is not None and pin.release[:2] != have.release[:2]:
        yield MODELOPT_PIN.found(
            c, "packages.nvidia-modelopt",
            f"TensorRT-LLM {runtime} pins nvidia-modelopt {row.modelopt}, and {modelopt} is installed",
            f"quantize in an environment of its own, or install nvidia-modelopt {pin.major}.{pin.minor}",
            source="; ".join(row.source),
        )  # fmt: skip


@about(Topic.VERSIONS)
def architecture_known(c: Context) -> Iterator[Answer]:
    hf, serves = c.evidence.hf_config, version_of(c.trtllm)
    name = (hf.architectures or (None,))[0] if hf else None
    first = FIRST_RELEASE.get(name or "")
    # Builds between two releases count as the next one: when a model came is not known by the day.
    if first and serves is not None and Version(serves.base_version) < Version(first):
        yield ARCHITECTURE.found(
            c, "hf_config.architectures",
            f"{name} is supported from TensorRT-LLM {first} on, and the stack has {c.trtllm}",
            f"use TensorRT-LLM {first} or newer",
        )  # fmt: skip


@about(Topic.VERSIONS)
def pytriton_numpy(c: Context) -> Iterator[Answer]:
    numpy = version_of(_package(c, "numpy"))
    if _package(c, "nvidia-pytriton") and numpy and numpy >= Version("2"):
        yield NUMPY.found(
            c, "packages.numpy", f"nvidia-pytriton with numpy {numpy}", "pip install 'numpy<2'"
        )


@about(Topic.VERSIONS, Topic.MODEL_CONFIG)
def rope_scaling(c: Context) -> Iterator[Answer]:
    hf = c.evidence.hf_config
    scaling = hf.rope_scaling if hf else None
    if scaling is None or c.trtllm is None:
        return
    kind = scaling.rope_type or scaling.type
    # Before 0.12 only the key `type` is read.
    unread = scaling.type is None and scaling.rope_type not in (None, "default")
    if (kind == "llama3" or unread) and Version(c.trtllm) < Version("0.12"):
        yield ROPE_SCALING.found(
            c, "hf_config.rope_scaling",
            f"rope_scaling of type {kind[:40] if kind else ''}"
            + (" under the key rope_type" if unread else "")
            + f", and TensorRT-LLM {c.trtllm} reads only the older forms: it is supported from 0.12 on",
            "use TensorRT-LLM 0.12 or newer; do not edit rope_scaling to get past the error",
        )  # fmt: skip


@about(Topic.VERSIONS, Topic.MODEL_CONFIG)
def rope_parameters(c: Context) -> Iterator[Answer]:
    hf = c.evidence.hf_config
    if (
        hf is None
        or not hf.rope_parameters
        or hf.rope_theta is not None
        or hf.rope_scaling is not None
    ):
        return
    if c.trtllm is None:
        return
    row = next((r for r in c.catalog.writers.runtimes if in_range(c.trtllm, r.tensorrt_llm)), None)
    pin = version_of((row.transformers or "").lstrip("=~<>! ").split(",")[0]) if row else None
    if row is not None and pin is not None and pin < Version("5"):
        yield ROPE_PARAMETERS.found(
            c, "hf_config.rope_parameters",
            f"config.json has only rope_parameters, and TensorRT-LLM {c.trtllm} reads it with transformers "
            f"{pin}, which ignores the key",
            "write rope_theta (and rope_scaling where there is one) beside rope_parameters",
        )  # fmt: skip


@about(Topic.VERSIONS)
def writers(c: Context) -> Iterator[Answer]:
    """ModelOpt and transformers that wrote the files, against the runtime's pins."""
    if c.trtllm is None:
        return
    row = next((r for r in c.catalog.writers.runtimes if in_range(c.trtllm, r.tensorrt_llm)), None)
    quant, hf = c.evidence.quant_config, c.evidence.hf_config
    producer = quant.producer if quant else None
    made_by = producer.version if producer and (producer.name or "modelopt") == "modelopt" else None
    for name, key, written, pin in (
        ("ModelOpt", "quant_config.producer.version", made_by, row.modelopt if row else None),
        ("transformers", "hf_config.transformers_version", hf.transformers_version if hf else None,
         row.transformers if row else None),
    ):  # fmt: skip
        wrote, reads = version_of(written), version_of((pin or "").lstrip("=~<>! ").split(",")[0])
        if row is None or wrote is None or reads is None or wrote.release[:2] <= reads.release[:2]:
            continue
        yield WRITER.found(
            c, key, f"written by {name} {written}; TensorRT-LLM {c.trtllm} is built with {pin}",
            "compare answers on parity prompts; write it again with the older version if they differ",
            source="; ".join(row.source),
        )  # fmt: skip


RULES = (writers, modelopt_transformers, runtime_transformers, modelopt_floors, runtime_modelopt,
         architecture_known, pytriton_numpy, rope_scaling, rope_parameters)  # fmt: skip
