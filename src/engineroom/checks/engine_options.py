"""`targets[].engine` and `opt_num_tokens`: overrides of `trtllm-build` flags that cannot work are refused.

An override that upstream drops with a warning is an error too: the reader of the spec would believe it.
"""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.base import TargetContext
from engineroom.checks.codes import declare
from engineroom.names import LaneName, Severity, Topic, WeightFormat
from engineroom.spec import DeploymentSpec
from engineroom.types import Finding

_BUILD = "NVIDIA/TensorRT-LLM tensorrt_llm/commands/build.py @ 008b2b8d"
_BUILDER = "NVIDIA/TensorRT-LLM tensorrt_llm/builder.py @ 008b2b8d"
_GUIDE = "NVIDIA/TensorRT-LLM docs/source/performance/performance-tuning-guide"
_PLUGIN = "NVIDIA/TensorRT-LLM tensorrt_llm/plugin/plugin.py"
PROFILES = declare(
    "profiles-with-opt-tokens", Topic.BUILD_FLAGS, Severity.ERROR,
    says="multiple_profiles and opt_num_tokens are not both set",
    why="trtllm-build stops: several profiles choose their own optimum",
    source=f"{_BUILD} (multiple_profiles is enabled, while opt_num_tokens is set)",
)  # fmt: skip
OPT_TOKENS = declare(
    "opt-tokens-over-maximum", Topic.BUILD_FLAGS, Severity.ERROR,
    says="opt_num_tokens is at most max_num_tokens",
    why="the builder lowers it to the maximum, with a warning in its log",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/_common.py @ 0fccc5b9 (check_max_num_tokens)",
)  # fmt: skip
REDUCE_FUSION = declare(
    "reduce-fusion-without-effect", Topic.BUILD_FLAGS, Severity.ERROR,
    says="reduce_fusion is asked of a Llama model over several GPUs by tensor_parallel",
    why="the builder sets it back for other architectures and without tensor parallelism",
    source=f"{_BUILDER} (Overriding reduce_fusion to False); {_GUIDE}/useful-build-time-flags.md",
)  # fmt: skip
USER_BUFFER = declare(
    "user-buffer-refused", Topic.BUILD_FLAGS, Severity.ERROR,
    says="user_buffer is asked with reduce_fusion, of an FP8 Llama model, on a GPU where it works",
    why="without reduce_fusion it is set back; the model code stops for other formats; on Ada (8.9) every "
    "request is reported to fail since 0.17",
    source=f"{_BUILDER} (Overriding user_buffer to False); {_PLUGIN}; NVIDIA/TensorRT-LLM issue #2817",
)  # fmt: skip
GEMM = declare(
    "gemm-plugin-for-another-format", Topic.BUILD_FLAGS, Severity.ERROR,
    says="gemm_plugin is one that the weights have",
    why="the fp8 and nvfp4 plugins multiply in those formats only, and for NVFP4 the builder replaces auto",
    source=f"{_BUILDER} (NVFP4 quantization detected); {_PLUGIN}; tensorrt_llm/quantization/layer.py (FP4Linear)",
)  # fmt: skip
GEMM_BATCH = declare(
    "fp8-gemm-plugin-large-batch", Topic.BUILD_FLAGS, Severity.WARN,
    says="gemm_plugin: fp8 is for at most four sequences at once",
    why="the tuning guide advises against it for FP8; only batches of up to four are said to gain, and a build "
    "with 512 is reported to fail",
    source=f"{_GUIDE}/fp8-quantization.md; docs/source/performance/perf-best-practices.md; "
    "NVIDIA/TensorRT-LLM issue #8570",
)  # fmt: skip
FP8_FUSIONS = declare(
    "fp8-gemm-fusion-refused", Topic.BUILD_FLAGS, Severity.ERROR,
    says="the SwiGLU and low-latency GEMM plugins are asked of FP8 weights on compute capability 9.0",
    why="they exist for FP8 on Hopper only; the SwiGLU ones need the fused MLP and have no LoRA in it",
    source=f"{_PLUGIN} (refused on 10.0); {_BUILDER} (GemmSwiGLU plugin requires --use_fused_mlp); "
    f"{_GUIDE}/fp8-quantization.md; tensorrt_llm/layers/mlp.py (fc_gate_plugin)",
)  # fmt: skip
FP4_LORA = declare(
    "lora-on-nvfp4-engine", Topic.LORA, Severity.ERROR,
    says="an engine with LoRA has weights that LoRA goes with",
    why="the FP4 layers stop when they are given low-rank paths",
    source="NVIDIA/TensorRT-LLM tensorrt_llm/quantization/layer.py (lora is not supported on FP4Linear now)",
)  # fmt: skip
CONTEXT_LOGITS = declare(
    "context-logits-with-draft-tokens", Topic.BUILD_FLAGS, Severity.ERROR,
    says="an engine that takes draft tokens is not built for context logits",
    why="trtllm-build refuses the two together",
    source=f"{_BUILD} (Gather context logits is not support with draft len > 0)",
)  # fmt: skip

FUSED_ARCHITECTURES = ("LlamaForCausalLM", "Gemma2ForCausalLM")
"""Where the builder keeps reduce_fusion. The guide also names Mistral and Mixtral; builder.py does not."""


def generation_heavy(spec: DeploymentSpec) -> bool:
    """Whether each profile of the workload makes at least as many tokens as it reads, in the median."""
    profiles = spec.workload.values()
    return bool(profiles) and all(
        profile.output_tokens.p50 >= profile.input_tokens.p50 for profile in profiles
    )


def _engine(c: TargetContext) -> bool:
    return c.target.lane is LaneName.ENGINE and (c.contract is None or c.contract.has_engine_lane)


def profiles(c: TargetContext) -> Iterator[Finding]:
    limits = c.target.limits
    if not _engine(c) or limits.opt_num_tokens is None:
        return
    if c.target.engine.multiple_profiles:
        yield PROFILES.found(
            c, "@.engine.multiple_profiles",
            f"multiple_profiles: true with opt_num_tokens {limits.opt_num_tokens}",
            "leave one of them out",
        )  # fmt: skip
    if limits.opt_num_tokens > limits.max_num_tokens:
        yield OPT_TOKENS.found(
            c, "@.limits.opt_num_tokens",
            f"opt_num_tokens {limits.opt_num_tokens} is above max_num_tokens {limits.max_num_tokens}",
            f"set opt_num_tokens to {limits.max_num_tokens} or less",
        )  # fmt: skip


def communication(c: TargetContext) -> Iterator[Finding]:
    options = c.target.engine
    if not _engine(c):
        return
    architecture = c.model.architecture if c.model else None
    other = architecture is not None and architecture not in FUSED_ARCHITECTURES
    if options.reduce_fusion and (c.target.tensor_parallel == 1 or other):
        what = f"{architecture}" if other else "tensor_parallel is 1"
        yield REDUCE_FUSION.found(
            c, "@.engine.reduce_fusion", f"reduce_fusion: true, and {what}: the builder sets it back",
            "leave it out",
        )  # fmt: skip
    if not options.user_buffer:
        return
    wrong = []
    if not options.reduce_fusion:
        wrong.append("reduce_fusion is not true")
    if c.spec.precision.weights is not WeightFormat.FP8:
        wrong.append(f"the weights are {c.spec.precision.weights}, not fp8")
    if architecture not in (None, "LlamaForCausalLM"):
        wrong.append(f"the model is {architecture}")
    if c.sku.compute_capability == "8.9":
        wrong.append(f"{c.sku.id} has compute capability 8.9, where it fails")
    if wrong:
        yield USER_BUFFER.found(
            c, "@.engine.user_buffer", "user_buffer: true, and " + "; ".join(wrong),
            "leave user_buffer out",
        )  # fmt: skip


def gemm(c: TargetContext) -> Iterator[Finding]:
    options, weights = c.target.engine, c.spec.precision.weights
    if not _engine(c):
        return
    plugin = options.gemm_plugin
    of = {"fp8": WeightFormat.FP8, "nvfp4": WeightFormat.NVFP4}.get(plugin or "")
    replaced = plugin == "auto" and weights is WeightFormat.NVFP4
    if (of is not None and weights is not of) or replaced:
        yield GEMM.found(
            c, "@.engine.gemm_plugin", f"gemm_plugin: {plugin} with {weights} weights",
            "leave gemm_plugin out: the lane chooses by format",
        )  # fmt: skip
    elif plugin == "fp8" and c.target.limits.max_batch_size > 4:
        yield GEMM_BATCH.found(
            c, "@.engine.gemm_plugin",
            f"gemm_plugin: fp8 with max_batch_size {c.target.limits.max_batch_size}",
            "leave it out (FP8 without the plugin), or set limits.max_batch_size: 4",
        )  # fmt: skip
    yield from _fp8_fusions(c)


def _fp8_fusions(c: TargetContext) -> Iterator[Finding]:
    options = c.target.engine
    swiglu = ("gemm_swiglu_plugin", "low_latency_gemm_swiglu_plugin")
    asked = [n for n in (*swiglu, "low_latency_gemm_plugin") if getattr(options, n)]
    if not asked:
        return
    wrong = []
    if c.spec.precision.weights is not WeightFormat.FP8:
        wrong.append(f"the weights are {c.spec.precision.weights}")
    if c.sku.compute_capability != "9.0":
        wrong.append(f"{c.sku.id} has compute capability {c.sku.compute_capability}")
    if any(name in asked for name in swiglu):
        lora = c.spec.serving.features.lora
        if options.use_fused_mlp is False:
            wrong.append("use_fused_mlp is false")
        if lora is not None and {"mlp_h_to_4h", "mlp_gate"} & set(lora.target_modules):
            wrong.append("lora.target_modules has parts of the MLP")
    if wrong:
        yield FP8_FUSIONS.found(
            c, f"@.engine.{asked[0]}", f"{asked[0]}: true, and " + "; ".join(wrong),
            "leave it out",
        )  # fmt: skip


def built_features(c: TargetContext) -> Iterator[Finding]:
    features = c.spec.serving.features
    if not _engine(c):
        return
    if features.lora is not None and c.spec.precision.weights is WeightFormat.NVFP4:
        yield FP4_LORA.found(
            c, "serving.features.lora", "the engine lane has no LoRA on nvfp4 weights",
            "use lane: llmapi, or other weights",
        )  # fmt: skip
    if features.context_logits and features.speculative is not None:
        yield CONTEXT_LOGITS.found(
            c, "serving.features.context_logits",
            f"context_logits with speculative decoding ({features.speculative.mode})",
            "set context_logits: false; generation_logits has the logits of accepted tokens",
        )  # fmt: skip


RULES = (profiles, communication, gemm, built_features)
