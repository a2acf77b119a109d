"""The llmapi lane behind the lane protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engineroom.lanes.base import (
    LaneRequest,
    RepositoryContext,
    RepositoryRequest,
    stop_ids_text,
    tensor_context,
)
from engineroom.lanes.llmapi.llm_args import llm_args
from engineroom.names import LaneName
from engineroom.render import TreeLayout
from engineroom.spec import DeploymentSpec, Target
from engineroom.types import ClientFields, Finding, GpuSku, StackRelease, Step

_CODE = "llmapi/tensorrt_llm/1"
_LAYOUT = TreeLayout(
    templates={
        "tensorrt_llm/config.pbtxt": "llmapi/tensorrt_llm/config.pbtxt.j2",
        "tensorrt_llm/1/model.yaml": f"{_CODE}/model.yaml.j2",
    },
    verbatim={
        "tensorrt_llm/1/model.py": f"{_CODE}/model.py",
        "tensorrt_llm/1/trtllm_runtime.py": f"{_CODE}/trtllm_runtime.py",
        "tensorrt_llm/1/runtime_api.py": "shared/runtime_api.py",
        "tensorrt_llm/1/metrics.py": "shared/metrics.py",
    },
)


class LlmApiLane:
    """Checkpoint plus `llm_args.yaml`, served by one Python model."""

    name = LaneName.LLMAPI
    stack_versions = ">=0.21"
    client = ClientFields(
        model="tensorrt_llm",
        prompt="text_input",
        max_tokens="sampling_param_max_tokens",
        stream="streaming",
        output="text_output",
        parts="delta",
    )

    def findings(
        self, spec: DeploymentSpec, target: Target, sku: GpuSku, stack: StackRelease
    ) -> list[Finding]:
        """No rule of its own yet: what it needs is in the shared rules and its contract."""
        return []

    def steps(self, request: LaneRequest) -> list[Step]:
        """One packaging step: nothing is compiled on this lane."""
        _, reasons = llm_args(request)
        return [
            Step(
                name="package-llmapi",
                argv=(),
                image=request.stack.image,
                inputs=(f"{request.checkpoint}/hf",),
                outputs=("checkpoint", "llm_args.yaml", "manifest.json"),
                reasons=reasons,
            )
        ]

    def documents(self, request: LaneRequest) -> Mapping[str, Any]:
        return {"llm_args.yaml": llm_args(request)[0]}

    def repository_context(self, request: RepositoryRequest) -> RepositoryContext:
        lane_request = request.lane_request
        args, _ = llm_args(lane_request)
        family = lane_request.contract.family("llmapi")
        decoupled = lane_request.spec.serving.streaming
        return RepositoryContext(
            layout=_LAYOUT,
            variables={
                "trtllm_version": lane_request.contract.version,
                "decoupled": decoupled,
                "inputs": tensor_context(family["inputs"]),
                "outputs": tensor_context(family["outputs"]),
                "parameters": {
                    "runtime": str(request.runtime),
                    "stream_parts": self.client.parts,
                    "stop_ids": stop_ids_text(lane_request.spec.serving.stop_ids),
                },
                "model_yaml": {
                    "model": f"{request.artefact_dir}/checkpoint",
                    **args,
                    "triton_config": {"max_batch_size": 0, "decoupled": decoupled},
                },
            },
        )
