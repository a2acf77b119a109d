"""The engine lane behind the lane protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engineroom.checks.base import SpecPlace
from engineroom.checks.codes import declare
from engineroom.lanes.base import Attachment, LaneRequest, RepositoryContext, RepositoryRequest
from engineroom.lanes.engine import build, choices, repository
from engineroom.lanes.engine.memory import host_memory_bytes
from engineroom.lanes.launch import (
    LaunchPlan,
    LaunchRequest,
    leader,
    orchestrator,
    python_threads,
    single_server,
)
from engineroom.names import LaneName, Severity, Topic
from engineroom.spec import DeploymentSpec, Target
from engineroom.types import ClientFields, Finding, GpuSku, StackRelease, Step

NO_PAGED_FMHA = declare(
    "fp8-engine-without-paged-fmha", Topic.SPEC, Severity.WARN,
    says="an engine with an FP8 KV cache has the paged context FMHA that KV reuse and chunked context need",
    why="on an FP8 cache it goes with FP8 queries only, which INT4 and 16-bit checkpoints do not have, and in "
    "kernels that are documented for 8.9 and 9.0; the builder switches it off elsewhere",
    source="NVIDIA/TensorRT-LLM docs/source/advanced/gpt-attention.md; tensorrt_llm/builder.py (build); issue #2855",
)  # fmt: skip
FROZEN = declare(
    "engine-lane-is-frozen", Topic.SPEC, Severity.INFO,
    says="new services use the llmapi lane",
    why="trtllm-build and the C++ backend end with the 1.2 line",
    source="NVIDIA/TensorRT-LLM PR #15918, #15907, #16369",
)  # fmt: skip


class EngineLane:
    """`trtllm-build`, then preprocessing, tensorrt_llm, postprocessing and ensemble."""

    name = LaneName.ENGINE
    stack_versions = ">=0.21,<1.3"
    client = ClientFields(
        model="tensorrt_llm_bls",
        prompt="text_input",
        max_tokens="max_tokens",
        stream="stream",
        output="text_output",
        parts="delta",
        dialect="engine",
        fronts={"bls": "tensorrt_llm_bls", "ensemble": "ensemble"},
    )

    def findings(
        self, spec: DeploymentSpec, target: Target, sku: GpuSku, stack: StackRelease
    ) -> list[Finding]:
        """The lane works, and ends with the 1.2 line: say so before anyone builds on it.

        And where an FP8 KV cache has no paged context FMHA, KV reuse and chunked context are off.
        """
        lost = [
            name
            for name, wanted in (
                ("kv_block_reuse", spec.serving.kv_block_reuse),
                ("chunked_context", spec.serving.chunked_context),
            )
            if wanted
        ]
        at = SpecPlace(spec.targets.index(target), target.id)
        found = []
        weights, kv_cache = spec.precision.weights, spec.precision.kv_cache
        capability = sku.compute_capability
        if lost and not choices.paged_context_fmha_possible(weights, kv_cache, capability):
            found.append(
                NO_PAGED_FMHA.found(
                    at, f"serving.{lost[0]}",
                    f"a {weights} engine with an {kv_cache} KV cache on {sku.id} (compute capability "
                    f"{capability}) is built without paged context FMHA, so {' and '.join(lost)} will be off",
                    "use lane: llmapi there, a 16-bit KV cache, or set "
                    + " and ".join(f"{n}: false" for n in lost),
                )
            )  # fmt: skip
        found.append(
            FROZEN.found(
                at, "@.lane",
                "the engine lane ends with the TensorRT-LLM 1.2 line; upstream removed it in July 2026",
                "plan the move to lane: llmapi",
            )
        )  # fmt: skip
        return found

    def steps(self, request: LaneRequest) -> list[Step]:
        flags, reasons = build.build_flags(request)
        ranks = request.target.ranks
        steps = [
            Step(
                name="build-engine",
                argv=build.argv(flags),
                image=request.stack.image,
                inputs=(build.checkpoint_dir(request),),
                outputs=("config.json", *(f"rank{i}.engine" for i in range(ranks))),
                reasons=reasons,
                output_flag="--output_dir",
                # Rank r is built on GPU r % workers (tensorrt_llm/commands/build.py).
                gpus=build.workers(request),
                host_memory_bytes=host_memory_bytes(request, build.workers(request)),
            )
        ]
        if request.spec.serving.features.guided_decoding == "xgrammar":
            steps.append(
                Step(
                    name="xgrammar-tokenizer-info",
                    argv=(),
                    image=None,
                    inputs=(f"{request.checkpoint}/hf/tokenizer.json",),
                    outputs=(build.XGRAMMAR_INFO,),
                    reasons={build.XGRAMMAR_INFO: "the C++ backend takes the vocabulary from it"},
                )
            )
        return steps

    def documents(self, request: LaneRequest) -> Mapping[str, Any]:
        return {}

    def attachments(self, request: LaneRequest) -> tuple[Attachment, ...]:
        """Nothing: the server reads neither adapters, which requests bring, nor a draft's weights.

        Both need a conversion that is not implemented (`lora-adapters-not-converted`,
        `draft-engine-not-built`).
        """
        return ()

    def launch(self, request: LaunchRequest) -> LaunchPlan:
        """One process on one GPU; on several, by `serving.process_mode`."""
        if "bls" in request.spec.serving.fronts:
            request = replace(request, python_threads=python_threads(request.target))
        if request.target.gpus == 1:
            return single_server(request)
        if request.spec.serving.process_mode == "orchestrator":
            return orchestrator(request)
        return leader(request)

    def repository_context(self, request: RepositoryRequest) -> RepositoryContext:
        serving = request.lane_request.spec.serving
        return RepositoryContext(repository.layout(serving), repository.variables(request))
