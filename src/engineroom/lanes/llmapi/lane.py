"""The llmapi lane behind the lane protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engineroom.lanes import attached
from engineroom.lanes.base import (
    Attachment,
    LaneRequest,
    RepositoryContext,
    RepositoryRequest,
    stop_ids_text,
    tensor_context,
)
from engineroom.lanes.launch import LaunchPlan, LaunchRequest, single_server
from engineroom.lanes.llmapi.llm_args import llm_args
from engineroom.lanes.llmapi.tensors import switches, tensors
from engineroom.names import LaneName
from engineroom.render import TreeLayout
from engineroom.spec import DeploymentSpec, Target
from engineroom.types import ClientFields, Finding, GpuSku, StackRelease, Step

_CODE = "llmapi/tensorrt_llm/1"
_OWN = (
    "model", "inputs", "input_table", "outputs", "media", "fetch", "trtllm_runtime",
    "trtllm_request", "trtllm_output", "event_loop",
)  # fmt: skip
_SHARED = (
    "runtime_api", "metrics", "request_fields", "chat_template", "stop_text", "text_codec",
)  # fmt: skip
_LAYOUT = TreeLayout(
    templates={
        "tensorrt_llm/config.pbtxt": "llmapi/tensorrt_llm/config.pbtxt.j2",
        "tensorrt_llm/1/model.yaml": f"{_CODE}/model.yaml.j2",
    },
    verbatim={
        **{f"tensorrt_llm/1/{name}.py": f"{_CODE}/{name}.py" for name in _OWN},
        **{f"tensorrt_llm/1/{name}.py": f"shared/{name}.py" for name in _SHARED},
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
        dialect="llmapi",
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
                outputs=(
                    "checkpoint",
                    "llm_args.yaml",
                    "manifest.json",
                    *(item.target for item in self.attachments(request)),
                ),
                reasons=reasons,
            )
        ]

    def documents(self, request: LaneRequest) -> Mapping[str, Any]:
        return {"llm_args.yaml": llm_args(request)[0]}

    def attachments(self, request: LaneRequest) -> tuple[Attachment, ...]:
        return (*attached.adapters(request), *attached.draft(request))

    def launch(self, request: LaunchRequest) -> LaunchPlan:
        """One process: the LLM API spawns its own workers, and several instances need no MPI.

        Source: triton-inference-server/tensorrtllm_backend docs/llmapi.md @ 0b9d7d5a (--no-mpi).
        """
        return single_server(
            request,
            {
                "tritonserver": "the LLM API starts a worker a GPU itself; mpirun would only add a world"
            },
        )

    def repository_context(self, request: RepositoryRequest) -> RepositoryContext:
        lane_request = request.lane_request
        args, _ = llm_args(lane_request, request.artefact_dir)
        family = lane_request.contract.family("llmapi")
        serving = lane_request.spec.serving
        features, decoupled = serving.features, serving.streaming
        return RepositoryContext(
            layout=_LAYOUT,
            variables={
                "trtllm_version": lane_request.contract.version,
                "decoupled": decoupled,
                "inputs": tensor_context(tensors(family, "inputs", features)),
                "outputs": tensor_context(tensors(family, "outputs", features)),
                "instances": lane_request.target.instances,
                "parameters": {
                    "runtime": str(request.runtime),
                    "stream_parts": self.client.parts,
                    "stop_ids": stop_ids_text(serving.stop_ids),
                    "features": json.dumps(switches(features)),
                    **_parameters(request),
                },
                "model_yaml": {
                    "model": f"{request.artefact_dir}/checkpoint",
                    **args,
                    "triton_config": {"max_batch_size": 0, "decoupled": decoupled},
                },
            },
        )


def _parameters(request: RepositoryRequest) -> dict[str, str]:
    """Model parameters that follow from the spec; most of them only where it says so."""
    target, serving = request.lane_request.target, request.lane_request.spec.serving
    features = serving.features
    found = {"merge_events": json.dumps(serving.merge_events)}
    if serving.max_queue_size:
        found["max_queue_size"] = str(serving.max_queue_size)
    if target.gpu_device_ids:
        sets = target.gpu_device_ids
        found["gpu_device_ids"] = ";".join(",".join(map(str, gpus)) for gpus in sets)
    if features.lora is not None:
        rows = [
            {
                "name": adapter.name,
                "id": adapter.task_id,
                "path": attached.adapter_path(adapter, request.artefact_dir),
            }
            for adapter in features.lora.adapters
        ]
        found["lora_adapters"] = json.dumps(rows)
    if features.multimodal is not None:
        found["multimodal"] = json.dumps(features.multimodal.model_dump(mode="json"))
    return found
