"""What the vLLM lane refuses, ignores or charges for; rules over a target, by the version's contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from engineroom.checks import vllm_formats
from engineroom.checks.base import TargetContext
from engineroom.checks.codes import declare
from engineroom.checks.vllm_formats import UNREAD, contract_of
from engineroom.names import KvCacheFormat, LaneName, Severity, Topic, WeightFormat
from engineroom.types import Finding

_BACKEND = "triton-inference-server/vllm_backend r26.01 src/model.py"
_CACHE = "vllm-project/vllm vllm/config/cache.py"
HIGH_SHARE = 0.95
WASTE_SHARE = 0.05
"""Tokens lost in last blocks, as a share of a typical sequence, from which a remark is due."""
DEFAULT_BLOCK = 16

SHARE = declare(
    "vllm-memory-share-too-high", Topic.VLLM, Severity.WARN,
    says="gpu_memory_utilization stays below 0.95",
    why="it is a share of all memory, weights included; CUDA graphs, other processes and peaks under "
    "load need the rest, and starts fail without it",
    source="vllm-project/vllm issues #19186, #57475; PR #30515",
)  # fmt: skip
FREE_SHARE = declare(
    "vllm-ignores-free-share", Topic.VLLM, Severity.WARN,
    says="the vllm lane's memory is set by gpu_memory_utilization",
    why="kv_cache_free_gpu_mem_fraction is a share of what is free after load; the two are no synonyms, "
    "and the same number gives another cache",
    source="vllm-project/vllm vllm/v1/worker/utils.py (request_memory: total_memory x utilization)",
)  # fmt: skip
SLEEP = declare(
    "vllm-sleep-mode-unreachable", Topic.VLLM, Severity.WARN,
    says="sleep mode is asked for where something can put the engine to sleep",
    why="Triton's vLLM backend has no call for sleep or wake-up, so the mode costs its allocator and "
    "gives nothing back",
    source=f"{_BACKEND} (no sleep call); vllm-project/vllm docs/features/sleep_mode.md",
)  # fmt: skip
SLEEP_FP8 = declare(
    "vllm-sleep-mode-with-fp8", Topic.VLLM, Severity.WARN,
    says="sleep mode is not combined with FP8 weights or an FP8 KV cache",
    why="with weights quantized at load the 16-bit buffers stayed allocated, and waking from level 2 "
    "with an FP8 KV cache gave broken text; both were mended upstream at some version",
    source="vllm-project/vllm issue #19855, PR #24731; PR #28783",
)  # fmt: skip
BLOCK_WASTE = declare(
    "vllm-block-size-waste", Topic.VLLM, Severity.WARN,
    says="a KV block is small against a typical sequence",
    why="each sequence leaves half a block unused on average, and a prefix is reused by whole blocks only",
    source="Kwon et al., Efficient Memory Management for Large Language Model Serving with "
    f"PagedAttention (2023), section 4 and 7.2; {_CACHE}",
)  # fmt: skip
VALUE = declare(
    "vllm-value-not-listed", Topic.VLLM, Severity.ERROR,
    says="an engine argument has a value that the version lists",
    why="the argument's type is a closed list, and the engine refuses to start with another value",
    source=f"{_CACHE} (BlockSize), vllm/config/lora.py (MaxLoRARanks)",
)  # fmt: skip
CHUNKS = declare(
    "vllm-tokens-below-model-len", Topic.VLLM, Severity.ERROR,
    says="without chunked prefill a step takes a prompt of full length",
    why="the engine refuses to start when max_num_batched_tokens is below max_model_len",
    source="vllm-project/vllm vllm/config/scheduler.py (verify_max_model_len)",
)  # fmt: skip
UNCHUNKED = declare(
    "vllm-chunked-prefill-off", Topic.VLLM, Severity.INFO,
    says="chunked prefill is as upstream tests it",
    why="it is on by default, and upstream calls switching it off not officially supported",
    source="vllm-project/vllm vllm/engine/arg_utils.py (_set_default_chunked_prefill_and_prefix_caching_args)",
)  # fmt: skip
NOT_CARRIED = declare(
    "vllm-lane-does-not-carry", Topic.VLLM, Severity.ERROR,
    says="a feature that the spec asks for exists on the vllm lane",
    why="a setting that nothing reads would look as if it worked",
    source=f"{_BACKEND} (inputs of the backend); vllm-project/vllm vllm/engine/arg_utils.py",
)  # fmt: skip
ONLY_VLLM = declare(
    "vllm-settings-unused", Topic.VLLM, Severity.INFO,
    says="serving.vllm is set where a target has the vllm lane",
    why="no TensorRT-LLM lane reads it",
    source="vllm-project/vllm vllm/engine/arg_utils.py (AsyncEngineArgs)",
)  # fmt: skip

Rule = Callable[[TargetContext], Iterator[Finding]]


def memory_share(c: TargetContext) -> Iterator[Finding]:
    serving = c.spec.serving
    share = serving.gpu_memory_utilization
    if share is not None and share >= HIGH_SHARE:
        contract = contract_of(c)
        graphs = contract is not None and not contract.cuda_graphs_within_utilization
        yield SHARE.found(
            c, "serving.gpu_memory_utilization",
            f"{share:g} of all memory leaves {c.sku.memory_mib * (1 - share):.0f} MiB of "
            f"{c.sku.memory_mib} for whatever vLLM does not count"
            + (", and this version captures its CUDA graphs there" if graphs else ""),
            "use 0.90 to 0.92",
        )  # fmt: skip
    if "kv_cache_free_gpu_mem_fraction" in serving.model_fields_set and share is None:
        yield FREE_SHARE.found(
            c, "serving.kv_cache_free_gpu_mem_fraction",
            f"{serving.kv_cache_free_gpu_mem_fraction:g} is not read on this lane: vLLM takes its share of "
            "the total, and 0.90 of it is written",
            "set serving.gpu_memory_utilization for the vllm lane",
        )  # fmt: skip


def gpu_sets(c: TargetContext) -> Iterator[Finding]:
    """`gpu_device_ids` may name several sets; the lane renders one instance."""
    sets = c.target.gpu_device_ids or ()
    if len(sets) > 1:
        yield NOT_CARRIED.found(
            c, "@.gpu_device_ids",
            f"{len(sets)} sets of GPUs: the vllm lane renders one instance, which takes the devices that "
            "the process sees",
            "name one set, and run one server a set with its own CUDA_VISIBLE_DEVICES",
        )  # fmt: skip


def sleep_mode(c: TargetContext) -> Iterator[Finding]:
    if not c.spec.serving.vllm.enable_sleep_mode:
        return
    key = "serving.vllm.enable_sleep_mode"
    yield SLEEP.found(
        c, key, "behind Triton nothing can put the engine to sleep",
        "leave it off; load and unload the model with Triton's model control instead",
    )  # fmt: skip
    p = c.spec.precision
    eight = [
        name
        for name, on in (
            ("FP8 weights", p.weights is WeightFormat.FP8),
            ("an FP8 KV cache", p.kv_cache is KvCacheFormat.FP8),
        )
        if on
    ]
    if eight:
        yield SLEEP_FP8.found(
            c, key,
            f"sleep mode with {' and '.join(eight)}: 16-bit buffers that stay, and broken text after waking, "
            "were reported; a checkpoint quantized beforehand is not the reported case of the first",
            "leave it off, or measure memory asleep and compare answers after waking",
        )  # fmt: skip


def block_size(c: TargetContext) -> Iterator[Finding]:
    contract, block = contract_of(c), c.spec.serving.vllm.block_size
    if contract is not None:
        lora = c.spec.serving.features.lora
        for key, name, value in (
            ("serving.vllm.block_size", "block_size", block),
            ("serving.features.lora.max_rank", "max_lora_rank", lora.max_rank if lora else None),
        ):
            listed = contract.engine_args.get(name, {}).get("allowed")
            if value is not None and listed and value not in listed:
                yield VALUE.found(
                    c, key, f"{name} {value} is none of {', '.join(map(str, listed))} in vLLM {contract.version}",
                    f"use {min(listed, key=lambda item: abs(item - value))}",
                )  # fmt: skip
    size = block or DEFAULT_BLOCK
    for name, profile in c.spec.workload.items():
        typical = profile.input_tokens.p50 + profile.output_tokens.p50
        lost = size / 2
        if lost > WASTE_SHARE * typical:
            yield BLOCK_WASTE.found(
                c, "serving.vllm.block_size" if block else f"workload.{name}",
                f"blocks of {size} tokens lose {lost:g} tokens a sequence on average, "
                f"{100 * lost / typical:.0f}% of the {typical} tokens of a typical one of `{name}`",
                "use a block_size of 16, the default on CUDA"
                if size > DEFAULT_BLOCK
                else "count it in: sequences this short fill fewer of the KV cache's tokens",
                severity=Severity.WARN if size > DEFAULT_BLOCK else Severity.INFO,
            )  # fmt: skip


def chunked_prefill(c: TargetContext) -> Iterator[Finding]:
    if c.spec.serving.chunked_context:
        return
    limits = c.target.limits
    longest = limits.max_seq_len or (c.model.max_position_embeddings if c.model else None)
    if longest is not None and limits.max_num_tokens < longest:
        yield CHUNKS.found(
            c, "@.limits.max_num_tokens",
            f"max_num_tokens {limits.max_num_tokens} is below the {longest} tokens that one sequence may "
            "have, and serving.chunked_context is off",
            "set serving.chunked_context: true, or limits.max_seq_len to max_num_tokens or less",
        )  # fmt: skip
    else:
        yield UNCHUNKED.found(
            c, "serving.chunked_context", "enable_chunked_prefill: false is written",
            "set serving.chunked_context: true, for every lane of a comparison",
        )  # fmt: skip


def carries(c: TargetContext) -> Iterator[Finding]:
    """Features of other lanes that would be lost here without a word."""
    serving, features, limits = c.spec.serving, c.spec.serving.features, c.target.limits
    spec_mode = features.speculative.mode if features.speculative else None
    lora = features.lora
    relative = [a.name for a in lora.adapters if not a.source.startswith("/")] if lora else []
    missing = (
        (limits.max_beam_width > 1, "@.limits.max_beam_width", "beam search",
         "set max_beam_width: 1; ask for several answers with n"),
        (features.multimodal is not None, "serving.features.multimodal", "media by URL",
         "leave it out: vLLM's backend takes base64 in its input `image`"),
        (spec_mode not in (None, "ngram"), "serving.features.speculative.mode",
         f"speculative decoding by {spec_mode}", "use mode: ngram on this lane"),
        (bool(relative), "serving.features.lora.adapters",
         f"an adapter without an absolute path in the container ({', '.join(relative)})",
         "give absolute paths: multi_lora.json names them as they are, and nothing copies the files"),
        (lora is not None and not lora.adapters, "serving.features.lora",
         "LoRA without named adapters", "list the adapters: requests name one by lora_name"),
    )  # fmt: skip
    for asked, key, what, fix in missing:
        if asked:
            yield NOT_CARRIED.found(c, key, f"{what}: not carried by the vllm lane", fix)
    contract = contract_of(c)
    interval = contract is not None and "stream_interval" not in contract.engine_args
    unread = (
        (serving.stop_ids != "generation_config", "serving.stop_ids", "stop_ids",
         "send stop_token_ids with each request"),
        (serving.priority_levels > 0, "serving.priority_levels", "priority_levels",
         "the backend passes no priority on"),
        (serving.max_queue_size > 0, "serving.max_queue_size", "max_queue_size",
         "the backend takes every request at once; limit them in front of the server"),
        (serving.stream_interval > 1 and interval, "serving.stream_interval", "stream_interval",
         "use a stack whose vLLM has the argument"),
    )  # fmt: skip
    for asked, key, what, fix in unread:
        if asked:
            yield UNREAD.found(c, key, f"{what} has no effect on the vllm lane of this stack", fix)


_RULES: tuple[Rule, ...] = (
    memory_share,
    gpu_sets,
    sleep_mode,
    block_size,
    *vllm_formats.RULES,
    chunked_prefill,
    carries,
)


def vllm_lane(c: TargetContext) -> Iterator[Finding]:
    """Every rule, for targets of this lane."""
    if c.target.lane is LaneName.VLLM:
        for rule in _RULES:
            yield from rule(c)


def settings_of_another_lane(c: TargetContext) -> Iterator[Finding]:
    lanes = {target.lane for target in c.spec.targets}
    if c.index == 0 and LaneName.VLLM not in lanes and c.spec.serving.vllm.model_fields_set:
        yield ONLY_VLLM.found(
            c, "serving.vllm", "no target has the vllm lane, which alone reads it",
            "add a target with lane: vllm, or drop the section",
        )  # fmt: skip


RULES = (vllm_lane, settings_of_another_lane)
