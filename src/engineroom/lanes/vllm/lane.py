"""The vLLM lane behind the lane protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engineroom.lanes import attached
from engineroom.lanes.base import (
    Attachment,
    LaneRequest,
    RepositoryContext,
    RepositoryRequest,
    tensor_context,
)
from engineroom.lanes.launch import LaunchPlan, LaunchRequest, single_server
from engineroom.lanes.vllm.engine_args import contract_of, engine_args
from engineroom.names import LaneName, RuntimeName
from engineroom.render import TreeLayout
from engineroom.spec import DeploymentSpec, Target
from engineroom.types import ClientFields, Finding, GpuSku, StackRelease, Step

MODEL = "vllm_model"
_TEMPLATES = {
    f"{MODEL}/config.pbtxt": "vllm/vllm_model/config.pbtxt.j2",
    f"{MODEL}/1/model.json": "vllm/vllm_model/1/model.json.j2",
}
_LORA = {f"{MODEL}/1/multi_lora.json": "vllm/vllm_model/1/multi_lora.json.j2"}


class VllmLane:
    """Checkpoint plus `engine_args.yaml`, served by Triton's vLLM backend."""

    name = LaneName.VLLM
    stack_versions = ">=0.9"
    client = ClientFields(
        model=MODEL,
        prompt="text_input",
        max_tokens="max_tokens",
        stream="stream",
        output="text_output",
        parts="delta",
        dialect="vllm",
        messages=None,
        parameters_json="sampling_parameters",
    )

    def findings(
        self, spec: DeploymentSpec, target: Target, sku: GpuSku, stack: StackRelease
    ) -> list[Finding]:
        """Nothing here: the rules need the contract, and are in `checks/vllm.py`."""
        return []

    def steps(self, request: LaneRequest) -> list[Step]:
        """One packaging step: nothing is compiled on this lane."""
        _, reasons = engine_args(request)
        return [
            Step(
                name="package-vllm",
                argv=(),
                image=request.stack.image,
                inputs=(f"{request.checkpoint}/hf",),
                outputs=(
                    "checkpoint",
                    "engine_args.yaml",
                    "manifest.json",
                    *(item.target for item in self.attachments(request)),
                ),
                reasons=reasons,
            )
        ]

    def documents(self, request: LaneRequest) -> Mapping[str, Any]:
        return {"engine_args.yaml": engine_args(request)[0]}

    def attachments(self, request: LaneRequest) -> tuple[Attachment, ...]:
        """Adapters; the one speculative mode of the lane drafts without a model."""
        return attached.adapters(request)

    def launch(self, request: LaunchRequest) -> LaunchPlan:
        """One process: vLLM starts a worker a GPU itself (vllm_backend README.md)."""
        return single_server(request, {"tritonserver": "vLLM starts a worker a GPU itself"})

    def repository_context(self, request: RepositoryRequest) -> RepositoryContext:
        """`vllm_model/{config.pbtxt,1/model.json}`, and `1/multi_lora.json` with adapters.

        The backend is always decoupled and batches nothing itself (vllm_backend src/model.py).
        """
        lane_request = request.lane_request
        contract = contract_of(lane_request)
        serving = lane_request.spec.serving
        lora = serving.features.lora
        flags = {
            "REPORT_CUSTOM_METRICS": serving.vllm.report_metrics,
            "ENABLE_VLLM_HEALTH_CHECK": serving.vllm.health_check,
        }
        parameters = {name: "true" for name, on in flags.items() if on}
        if request.runtime is RuntimeName.REFERENCE:
            parameters["engineroom_runtime"] = str(request.runtime)  # the stand-in serves no other
        return RepositoryContext(
            layout=TreeLayout(templates={**_TEMPLATES, **(_LORA if lora else {})}, verbatim={}),
            variables={
                "vllm_version": contract.version,
                "model_name": MODEL,
                "inputs": tensor_context(contract.backend["inputs"]),
                "outputs": tensor_context(contract.backend["outputs"]),
                "parameters": parameters,
                "model_json": {
                    "model": f"{request.artefact_dir}/checkpoint",
                    **engine_args(lane_request)[0],
                },
                "multi_lora": {
                    a.name: attached.adapter_path(a, request.artefact_dir)
                    for a in (lora.adapters if lora else ())
                },
            },
        )
