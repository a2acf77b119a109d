"""An artefact of this toolkit against its target, its own files and the repositories that serve it.

What an engine's own `config.json` says against GPU and stack is `engine_fit`; features of a repository
against the build are `triton_kv`. These rules speak only where an artefact is part of the evidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from engineroom.checks.codes import declare
from engineroom.checks.evidence import triton_repository as repo
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import KvCacheFormat, LaneName, Severity, Topic, WeightFormat
from engineroom.reading.artefact import ArtefactFacts
from engineroom.reading.base import version_of

_LIMITS = (
    "NVIDIA/TensorRT-LLM cpp/tensorrt_llm/batch_manager/trtGptModel.h (limits are the engine's)"
)
DAMAGED = declare(
    "artefact-damaged", Topic.ARTEFACT_INTEGRITY, Severity.ERROR,
    says="every file of an artefact is there and has the digest that its manifest lists",
    why="a changed or missing file shows only when it is loaded, or as wrong answers",
    source="the manifest.json of the artefact (SHA-256 of each file, FIPS 180-4)",
)  # fmt: skip
PLANNED = declare(
    "engine-only-planned", Topic.ARTEFACT_INTEGRITY, Severity.WARN,
    says="an artefact of the engine lane holds compiled engines",
    why="a build plan has the command and no engine: a server finds nothing to load",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py (get_model_format: what makes a folder an engine)",
)  # fmt: skip
BELOW = declare(
    "artefact-below-limits", Topic.SEQUENCE_LIMITS, Severity.ERROR,
    says="an engine or package takes the batch, tokens, sequence and beams that its target promises",
    why="the runtime is bound by what was built: requests beyond it are refused, or wait",
    source=f"{_LIMITS}; NVIDIA/TensorRT-LLM tensorrt_llm/builder.py (BuildConfig)",
)  # fmt: skip
ABOVE = declare(
    "artefact-above-limits", Topic.SEQUENCE_LIMITS, Severity.WARN,
    says="an engine or package was made for the limits of its target, and no larger ones",
    why="activation memory and decoder buffers grow with the limits and leave less for the KV cache",
    source="NVIDIA/TensorRT-LLM docs/source/reference/memory.md (activation size, decoder buffers)",
)  # fmt: skip
LAYOUT = declare(
    "artefact-other-layout", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="an engine or package has the tensor and pipeline parallel sizes of its target",
    why="the runtime asks for exactly one process a rank and stops at any other number",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/commands/build.py (mapping from the checkpoint's config)",
)  # fmt: skip
RANKS = declare(
    "engine-rank-files", Topic.PARALLEL_LAYOUT, Severity.ERROR,
    says="an engine folder has one rank<N>.engine for each rank of its mapping",
    why="a rank without its file ends, and all others with it",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/runtime/enc_dec_model_runner.py (get_engine_name: rank<N>.engine)",
)  # fmt: skip
QUANTIZATION = declare(
    "artefact-other-quantization", Topic.QUANT_METADATA, Severity.ERROR,
    says="weights and KV cache of an artefact are in the formats that its target asks for",
    why="both come from the checkpoint: no setting of the server changes them, and memory and answers differ",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/models/modeling_utils.py (QuantConfig); tensorrt_llm/builder.py",
)  # fmt: skip
PACKAGE_RELEASE = declare(
    "package-of-other-release", Topic.ENGINE_RUNTIME_MISMATCH, Severity.ERROR,
    says="a package is served by the release that its arguments were written for",
    why="names and defaults of LLM arguments differ between releases, and unknown ones are refused",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/llm_args.py of the two releases",
)  # fmt: skip
OTHER_ARTEFACT = declare(
    "repository-of-other-artefact", Topic.ARTEFACT_INTEGRITY, Severity.ERROR,
    says="a model repository serves the artefact that it was rendered from",
    why="limits, tensors and paths of the repository follow from one artefact and need not fit another",
    source="the manifest.json of repository and artefact (digest of all files)",
)  # fmt: skip
BEAMS = declare(
    "repository-beams-over-engine", Topic.BEAM_WIDTH, Severity.ERROR,
    says="max_beam_width of the repository is no larger than the engine's",
    why="the runtime compares the two when the model is loaded, and stops",
    source="NVIDIA/TensorRT-LLM cpp/tensorrt_llm/batch_manager/trtGptModel.h (runtime configured max beam width "
    "must not exceed that of the engine); triton_backend/inflight_batcher_llm/src/model_instance_state.cc",
)  # fmt: skip
ARGUMENTS = declare(
    "repository-arguments-differ", Topic.LLM_ARGS, Severity.ERROR,
    says="model.yaml of a repository has the LLM arguments of the package that it serves",
    why="the server reads model.yaml: what the package was checked with is then not what runs",
    source="NVIDIA/TensorRT-LLM triton_backend/all_models/llmapi/tensorrt_llm/1/{model.py,model.yaml}",
)  # fmt: skip

_NAMES = ("max_batch_size", "max_num_tokens", "max_seq_len", "max_beam_width")
# The words of ModelOpt and TensorRT-LLM for the formats that are told apart here; None: not quantized.
_ALGO: Mapping[WeightFormat, str | None] = {
    WeightFormat.BF16: None, WeightFormat.FP16: None, WeightFormat.FP8: "FP8",
    WeightFormat.NVFP4: "NVFP4", WeightFormat.W4A16_AWQ: "W4A16_AWQ",
    WeightFormat.W4A8_AWQ: "W4A8_AWQ",
}  # fmt: skip
_KV_ALGO: Mapping[KvCacheFormat, str | None] = {
    KvCacheFormat.BF16: None, KvCacheFormat.FP16: None, KvCacheFormat.FP8: "FP8",
    KvCacheFormat.INT8: "INT8", KvCacheFormat.NVFP4: "NVFP4",
}  # fmt: skip
# Set by the repository for its own server; the package cannot have them.
_REPOSITORY_KEYS = ("model", "tokenizer", "triton_config")


@about(Topic.ARTEFACT_INTEGRITY)
def integrity(c: Context) -> Iterator[Answer]:
    artefact = c.evidence.artefact
    if artefact is None:
        return
    if artefact.damage is not None:
        yield DAMAGED.found(
            c, "artefact.damage", artefact.damage,
            "make it again (`build`, `quantize` or `render`), or import it again",
        )  # fmt: skip
    if artefact.kind == "build-plan":
        yield PLANNED.found(
            c, "artefact.kind", "this is a build plan: trtllm-build was not there when it was made",
            "run `build` where the stack's image and a GPU of that model are, or use lane: llmapi",
        )  # fmt: skip


@about(Topic.SEQUENCE_LIMITS)
def limits(c: Context) -> Iterator[Answer]:
    artefact = c.evidence.artefact
    if artefact is None or artefact.asked is None:
        return
    for part, made in (
        ("engine_config.build_config", _engine_limits(c)),
        ("artefact.llm_args", artefact.llm_args or {}),
    ):
        for name in _NAMES:
            has, asked = made.get(name), getattr(artefact.asked, name)
            if not isinstance(has, int) or asked is None or has == asked:
                continue
            code, word = (BELOW, "less") if has < asked else (ABOVE, "more")
            yield code.found(
                c, f"{part}.{name}", f"{name} is {has} here, {word} than the {asked} that its target asks for",
                f"build it again, or set limits.{name}: {has}",
            )  # fmt: skip


def _engine_limits(c: Context) -> dict[str, Any]:
    config = c.evidence.engine_config
    build = config.build_config if config else None
    return {} if build is None else {name: getattr(build, name) for name in _NAMES}


@about(Topic.PARALLEL_LAYOUT)
def layout(c: Context) -> Iterator[Answer]:
    artefact, asked = c.evidence.artefact, c.evidence.spec
    if artefact is None:
        return
    place, made = _layout(c, artefact)
    stated = asked is not None and {"tensor_parallel", "pipeline_parallel"} & asked.model_fields_set
    if made is not None and stated and made != (c.tp, c.pp):
        yield LAYOUT.found(
            c, place, f"made for TP {made[0]} x PP {made[1]}, and its target is TP {c.tp} x PP {c.pp}",
            f"build it again for TP {c.tp} x PP {c.pp}",
        )  # fmt: skip
    world = repo.world_size(c)
    if world is None or artefact.rank_files is None or artefact.kind != "engine":
        return
    wanted = {f"rank{n}.engine" for n in range(world)}
    there = set(artefact.rank_files)
    if there != wanted:
        missing, extra = sorted(wanted - there), sorted(there - wanted)
        yield RANKS.found(
            c, "artefact.rank_files", f"a mapping of {world} ranks"
            + (f", without {', '.join(missing[:4])}" if missing else "")
            + (f", with {', '.join(extra[:4])}" if extra else ""),
            "build it again; a copy was made in part, or two builds were mixed",
        )  # fmt: skip


def _layout(c: Context, artefact: ArtefactFacts) -> tuple[str, tuple[int, int] | None]:
    config = c.evidence.engine_config
    mapping = config.pretrained_config.mapping if config and config.pretrained_config else None
    if mapping is not None and (mapping.tp_size or mapping.pp_size):
        place = "engine_config.pretrained_config.mapping"
        return place, (mapping.tp_size or 1, mapping.pp_size or 1)
    args = artefact.llm_args or {}
    sizes = args.get("tensor_parallel_size"), args.get("pipeline_parallel_size", 1)
    if isinstance(sizes[0], int) and isinstance(sizes[1], int):
        return "artefact.llm_args.tensor_parallel_size", (sizes[0], sizes[1])
    return "", None


@about(Topic.QUANT_METADATA)
def quantization(c: Context) -> Iterator[Answer]:
    artefact, wish = c.evidence.artefact, c.spec
    if artefact is None:
        return
    pretrained = c.evidence.engine_config.pretrained_config if c.evidence.engine_config else None
    hf = c.evidence.quant_config
    for part, found in (
        ("engine_config.pretrained_config", pretrained.quantization if pretrained else None),
        ("quant_config", hf.quantization if hf else None),
    ):
        if found is None:
            continue
        for axis, name, asked, algos in (
            ("weights", "quant_algo", wish.weights, _ALGO),
            ("KV cache", "kv_cache_quant_algo", wish.kv_cache, _KV_ALGO),
        ):
            if asked is None or asked not in algos:
                continue  # `auto` follows the checkpoint; others have several words
            has, wanted = getattr(found, name), algos[asked]  # type: ignore[index]
            if has != wanted:
                yield QUANTIZATION.found(
                    c, f"{part}.quantization.{name}",
                    f"{axis}: {has or 'not quantized'} here, and its target asks for {asked}",
                    "run `quantize` and `build` again for this spec",
                )  # fmt: skip
    args = artefact.llm_args or {}
    nested = args.get("kv_cache_config")
    # A flat argument before 1.0, nested since.
    dtype = args.get("kv_cache_dtype") or (
        nested.get("dtype") if isinstance(nested, dict) else None
    )
    fp8 = KvCacheFormat.FP8
    if (
        wish.kv_cache is not None
        and isinstance(dtype, str)
        and (dtype == "fp8") != (wish.kv_cache is fp8)
    ):
        yield QUANTIZATION.found(
            c, "artefact.llm_args.kv_cache_config.dtype",
            f"KV cache: {dtype} here, and its target asks for {wish.kv_cache}", "run `build` again for this spec",
        )  # fmt: skip


@about(Topic.ENGINE_RUNTIME_MISMATCH)
def package_release(c: Context) -> Iterator[Answer]:
    artefact = c.evidence.artefact
    if artefact is None or artefact.llm_args is None or c.lane is LaneName.VLLM:
        return
    made, serves = version_of(artefact.runtime_version), version_of(c.trtllm)
    if made is not None and serves is not None and made != serves:
        yield PACKAGE_RELEASE.found(
            c, "artefact.runtime_version",
            f"its LLM arguments are those of TensorRT-LLM {made}, and {serves} is to serve it",
            "run `build` again for that stack; `matrix diff` says what changes",
        )  # fmt: skip


@about(Topic.ARTEFACT_INTEGRITY)
def rendered_from(c: Context) -> Iterator[Answer]:
    artefact = c.evidence.artefact
    repository = artefact.repository if artefact else None
    if artefact is None or repository is None or repository.artefact_digest is None:
        return
    if artefact.digest is not None and artefact.digest != repository.artefact_digest:
        yield OTHER_ARTEFACT.found(
            c, "artefact.repository.artefact_digest",
            f"{repository.name} was rendered from an artefact with the digest "
            f"{repository.artefact_digest[:12]}, and this one has {artefact.digest[:12]}",
            "run `render` again",
        )  # fmt: skip


@about(Topic.BEAM_WIDTH)
def repository_beams(c: Context) -> Iterator[Answer]:
    built = _engine_limits(c).get("max_beam_width")
    if c.evidence.artefact is None or built is None:
        return
    for model in repo.engines(c):
        asked = repo.int_parameter(model, "max_beam_width")
        if asked is not None and asked > built:
            yield BEAMS.found(
                c, model.parameter_key("max_beam_width"),
                f"max_beam_width is {asked} in {model.config.path}, and the engine was built for {built}: the "
                "model does not load", f"write {built}, or build with --max_beam_width {asked}",
                line=model.line("max_beam_width"),
            )  # fmt: skip


@about(Topic.LLM_ARGS)
def repository_arguments(c: Context) -> Iterator[Answer]:
    artefact, served = c.evidence.artefact, c.evidence.model_yaml
    if (
        artefact is None
        or artefact.llm_args is None
        or artefact.repository is None
        or served is None
    ):
        return
    package = artefact.llm_args
    differ = sorted(
        name for name in (set(served) | set(package)) - set(_REPOSITORY_KEYS)
        if served.get(name) != package.get(name)
    )  # fmt: skip
    for name in differ:
        yield ARGUMENTS.found(
            c, f"model_yaml.{name}", f"{name} is {_show(served, name)} in the repository and "
            f"{_show(package, name)} in the package", "run `render` again, or change the spec and build again",
        )  # fmt: skip


def _show(args: Mapping[str, Any], name: str) -> str:
    return str(args[name])[:80] if name in args else "absent"


RULES = (
    integrity,
    limits,
    layout,
    quantization,
    package_release,
    rendered_from,
    repository_beams,
    repository_arguments,
)
