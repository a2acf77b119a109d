"""The target of the new spec: SKU, stack, parallel sizes, GPUs and limits."""

from __future__ import annotations

from collections.abc import Iterable

from engineroom.catalog import Catalog
from engineroom.errors import UsageError
from engineroom.migration.decisions import Draft, number
from engineroom.migration.draft_model import FILL_IN, Chain
from engineroom.migration.draft_parallel import parallel
from engineroom.reading.cpp_values import device_sets, stoi
from engineroom.spec.target_options import Limits
from engineroom.types import GpuSku
from engineroom.types.migration import BuildCall, BuildFlag, Fate, Leaf

CLUSTER_KEY = "build_config.auto_parallel_config.cluster_key"


def built_on(draft: Draft, calls: Chain, catalog: Catalog) -> GpuSku | None:
    """The GPU that the engine says it was built on: trtllm-build's cluster key.

    Source: NVIDIA/TensorRT-LLM tensorrt_llm/auto_parallel/cluster_info.py (infer_cluster_key).
    """
    flag = calls.build.flag("--cluster_key") if calls.build else None
    texts = [str(leaf.value) for leaf in draft.engine(CLUSTER_KEY) if leaf.value]
    for text in [*texts, *([flag.value] if flag and not flag.unresolved else [])]:
        try:
            return catalog.sku(text.lower())
        except UsageError:
            continue
    return None


def target(draft: Draft, calls: Chain, sku: GpuSku | None, told: bool, stack: str) -> None:
    """`targets[0]`.

    Args:
        told: the user named the SKU.
    """
    row: dict[str, object] = {"sku": sku.id if sku else FILL_IN, "lane": "llmapi", "stack": stack}
    draft.spec["targets"] = [row]
    leaves = [*draft.engine(CLUSTER_KEY), *draft.flags(calls.build, "--cluster_key")]
    if sku is None:
        draft.missing.append(
            "targets[0].sku: no file says which GPU the service runs on; give --sku (for example h100-sxm, l40s; "
            "`engineroom matrix show` lists them)"
        )
    what = "the GPU that --sku names" if told else "the GPU that the engine was built on"
    draft.decide(leaves, Fate.MOVED, "targets[0].sku", row["sku"], what, source=("cluster",))
    draft.decide(
        draft.engine("version"), Fate.MOVED, "targets[0].stack", stack,
        "the release that the new service runs on", source=("engine_json", "removal"),
    )  # fmt: skip
    parallel(draft, calls, sku)
    _devices(draft)
    _limits(draft, calls)
    _options(draft, calls)


def _devices(draft: Draft) -> None:
    """`gpu_device_ids`, where it says more than "all of them"."""
    ranks = draft.target.get("tensor_parallel", 1) * draft.target.get("pipeline_parallel", 1)
    for leaf in draft.parameter("gpu_device_ids", "engine"):
        model = next(m for m in draft.setup.models if m.file == leaf.file)
        text = model.text("gpu_device_ids")
        sets = device_sets(text) if text else None
        if not text:
            continue
        used = [gpu for group in sets or [] for gpu in group]
        good = sets and all(len(s) == ranks for s in sets) and len(set(used)) == len(used)
        if sets and good and all(0 <= gpu < 1024 for gpu in used):
            draft.target["gpu_device_ids"] = sets
            draft.decide(
                [leaf], Fate.MOVED, "targets[0].gpu_device_ids", sets,
                f"{len(sets)} instance{'s' if len(sets) > 1 else ''} of {ranks} GPU{'s' if ranks > 1 else ''}",
                source=("model_config", "our_model"),
            )  # fmt: skip
        else:
            draft.decide(
                [leaf], Fate.REDEFAULTED, "targets[0].gpu_device_ids", None,
                f"`{text[:60]}` is no list of sets of {ranks} different GPUs; one instance on all visible GPUs",
                "set targets[0].gpu_device_ids by hand, if several instances are wanted", ("model_config",),
            )  # fmt: skip


_LIMITS = ("max_batch_size", "max_num_tokens", "max_seq_len", "max_beam_width")


def _limits(draft: Draft, calls: Chain) -> None:
    engine = draft.setup.engine
    limits: dict[str, int] = {}
    leaves = {
        name: [
            *draft.engine(f"build_config.{name}"),
            *draft.flags(calls.build, f"--{name}", *(["--max_decoder_seq_len"] if name == "max_seq_len" else [])),
        ]
        for name in _LIMITS
    }  # fmt: skip

    def given(name: str) -> int | None:
        flag = calls.build.flag(f"--{name}") if calls.build else None
        return (engine.limits.get(name) if engine else None) or _known(flag)

    for name in _LIMITS:
        size = given(name) or _known_length(name, given)
        if size:
            limits[name] = size
    width = _beam_width(draft, limits.get("max_beam_width"), leaves["max_beam_width"])
    limits["max_beam_width"] = width
    if width == 1:
        del limits["max_beam_width"]
    batch, tokens = limits.get("max_batch_size"), limits.get("max_num_tokens", 8192)
    if batch and batch > tokens:
        limits["max_batch_size"] = tokens
        draft.notes.append(
            f"limits.max_batch_size is {tokens}, not {batch}: no step has more tokens than max_num_tokens"
        )
    for name in _LIMITS:
        value = limits.get(name, 1 if name == "max_beam_width" else None)
        if value is not None:
            asked = draft.parameter(name, "engine") if name == "max_beam_width" else []
            draft.carry(
                leaves[name], f"targets[0].limits.{name}", value, "a limit of the server", asked
            )
    _defaults(draft, calls, limits, leaves)
    _input_lengths(draft, calls, limits)
    if "max_batch_size" not in limits or "max_seq_len" not in limits:
        draft.notes.append(
            "targets[0].limits: no file says all of them, so the spec's defaults and the model's own length hold "
            f"({_named(Limits.model_fields[n].default for n in _BUILDER)}; trtllm-build 1.2.1 takes "
            f"{_named(_BUILDER.values())}, older releases took others: {' and '.join(_BUILDER)}); give --engine, or "
            "set them"
        )
    if limits:
        draft.target["limits"] = {name: limits[name] for name in _LIMITS if name in limits}


def _named(sizes: Iterable[int]) -> str:
    return " and ".join(map(str, sizes))


_BUILDER = {"max_batch_size": 2048, "max_num_tokens": 8192}
"""trtllm-build's defaults, of 1.2.1 (deploy/contracts/trtllm/1.2.1.json, trtllm_build)."""


def _defaults(
    draft: Draft, calls: Chain, limits: dict[str, int], leaves: dict[str, list[Leaf]]
) -> None:
    """Limits that nobody chose: the builder's default beside what stands in the spec."""
    engine = draft.setup.engine
    for name, old in _BUILDER.items():
        if calls.build is not None and calls.build.flag(f"--{name}") is not None:
            continue
        ours = Limits.model_fields[name].default
        built = engine.limits.get(name) if engine else None
        key = f"targets[0].limits.{name}"
        if built is not None and built == old:
            more = (
                f"; lower it to the concurrency you serve, as CUDA graphs are captured up to it (the spec's own "
                f"default is {ours})" if name == "max_batch_size" else f" (the spec's own default is {ours})"
            )  # fmt: skip
            what = (
                f"a limit of the server; {old} is the engine builder's default"
                + (", which nobody chose" if calls.build is not None else "")
                + more
            )
            new = limits.get(name, built)
            draft.decide(leaves[name], Fate.MOVED, key, new, what, "", ("build_contract", "spec"))
            if name == "max_batch_size":
                draft.notes.append(f"limits.{name} {new}: {what}")
        elif calls.build is not None and built is None:
            draft.notes.append(
                f"{key} is {limits.get(name, ours)}, the spec's default: the build gave no --{name}, which was {old} "
                "in trtllm-build 1.2.1 (older releases had other defaults)"
            )
        elif built is None:
            rows = (
                draft.parameter("max_num_sequences", "engine") if name == "max_batch_size" else []
            )
            draft.decide(
                rows, Fate.MOVED, key, limits.get(name, ours),
                f"sequences in flight; no engine or build says max_batch_size: {ours} is the spec's default, {old} the "
                "builder's of 1.2.1", "set it, if fewer or more sequences are served at once",
                ("templates", "build_contract"),
            )  # fmt: skip


def _known(flag: BuildFlag | None) -> int | None:
    return number(flag.value) or None if flag and not flag.unresolved else None


def _known_length(name: str, given: object) -> int | None:
    """Releases up to 0.11 bounded prompt and answer apart."""
    if name != "max_seq_len" or not callable(given):
        return None
    prompt, answer = given("max_input_len"), given("max_output_len")
    return prompt + answer if prompt and answer else None


def _input_lengths(draft: Draft, calls: Chain, limits: dict[str, int]) -> None:
    longest = limits.get("max_seq_len")
    draft.decide(
        [*draft.engine("build_config.max_input_len"), *draft.flags(calls.build, "--max_input_len")],
        Fate.REDEFAULTED, "targets[0].limits.max_seq_len", longest,
        "a prompt is bounded by max_seq_len, and by max_num_tokens without chunked context; longer prompts than "
        "the old limit are accepted",
    )  # fmt: skip
    draft.decide(
        [*draft.engine("build_config.max_output_len"), *draft.flags(calls.build, "--max_output_len")],
        Fate.MOVED, "targets[0].limits.max_seq_len", longest, "prompt and answer together", source=("build_py",),
    )  # fmt: skip


def _beam_width(draft: Draft, built: int | None, others: list[Leaf]) -> int:
    """The parameter, at most what the engine was built for."""
    text = draft.setup.parameter("max_beam_width", "engine")
    asked = stoi(text) if text else None
    width = asked if asked and asked > 0 else 1
    if built is not None:
        width = min(width, built)
    for leaf in draft.parameter("max_beam_width", "engine"):
        if text:
            draft.carry(
                [leaf], "targets[0].limits.max_beam_width", width, "the widest beam of a request", others
            )  # fmt: skip
    return width


def _options(draft: Draft, calls: Chain) -> None:
    """`targets[0].llmapi`: arguments of the LLM API that old parameters and flags are the same as."""
    rows = (
        ("max_tokens", draft.parameter("max_tokens_in_paged_kv_cache", "engine"),
         draft.setup.parameter("max_tokens_in_paged_kv_cache", "engine"),
         "tokens of KV cache at most, below what the share of free memory allows"),
        ("host_cache_size", draft.parameter("kv_cache_host_memory_bytes", "engine"),
         draft.setup.parameter("kv_cache_host_memory_bytes", "engine"),
         "bytes of host memory for KV blocks that left the GPU"),
        ("tokens_per_block", _flag_leaves(draft, calls, "--tokens_per_block"), _value(calls.build, "--tokens_per_block"),
         "tokens of a KV-cache block"),
        ("moe_expert_parallel_size", draft.flags(calls.convert, "--moe_ep_size"), _value(calls.convert, "--moe_ep_size"),
         "ranks that split the experts whole"),
    )  # fmt: skip
    options: dict[str, int] = {}
    for name, leaves, text, what in rows:
        size = number(text)
        if (
            not size
            or size > _MOST[name]
            or (name == "moe_expert_parallel_size" and not _splits(draft, size))
        ):
            continue
        options[name] = size
        draft.decide(leaves, Fate.RENAMED, f"targets[0].llmapi.{name}", size, what)
    if options:
        draft.target["llmapi"] = options


_MOST = {"max_tokens": 2**31 - 1, "host_cache_size": 2**53, "tokens_per_block": 2**20,
         "moe_expert_parallel_size": 2**20}  # fmt: skip


def _splits(draft: Draft, size: int) -> bool:
    return size > 1 and int(draft.target.get("tensor_parallel", 1)) % size == 0


def _value(call: BuildCall | None, name: str) -> str | None:
    flag = call.flag(name) if call else None
    return flag.value if flag and not flag.unresolved else None


def _flag_leaves(draft: Draft, calls: Chain, name: str) -> list[Leaf]:
    """A build flag, and the engine's value of it."""
    return [
        *draft.flags(calls.build, name),
        *draft.engine(f"build_config.plugin_config.{name.removeprefix('--')}"),
    ]
