"""The lane protocol: how a checkpoint becomes something Triton can serve.

Pure: a lane turns facts into steps, arguments and render contexts; the runner does the rest. What is
built, rendered and served never depends on a comparison of lane names: the pipeline takes the lane
from one list (`engineroom.lanes.LANES`). Checks do name lanes, because their facts are about one.

Besides the five members that any lane needs, `client` says how a request is written (field names
differ, and a client must not guess), `documents` gives the files that belong in the artefact, and
`launch` the command line of the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from engineroom.catalog import Contract, KvRecipe, WeightRecipe
from engineroom.errors import UsageError
from engineroom.lanes.launch import LaunchPlan, LaunchRequest
from engineroom.names import LaneName, RuntimeName
from engineroom.render import TreeLayout
from engineroom.spec import DeploymentSpec, Target
from engineroom.types import ClientFields, Finding, GpuSku, ModelShape, StackRelease, Step


@dataclass(frozen=True)
class Attachment:
    """Something beside the checkpoint that travels with an artefact.

    Attributes:
        kind: ``lora-adapter`` or ``draft-model``.
        name: of the adapter; ``draft`` for a draft model.
        source: as the spec says it: a folder, or a hub id.
        key: key of the spec that names it.
        target: POSIX path of its folder in the artefact, e.g. ``adapters/sql``.
    """

    kind: str
    name: str
    source: str
    key: str
    target: str


@dataclass(frozen=True)
class LaneRequest:
    """One resolved target: what every lane method gets.

    Attributes:
        checkpoint: POSIX path of the quantized checkpoint, relative to the workspace root.
        max_seq_len: the spec's limit, or the model's.
        shape: sizes of the model, or None when its config.json was not read.
    """

    spec: DeploymentSpec
    target: Target
    sku: GpuSku
    stack: StackRelease
    contract: Contract
    weight_recipe: WeightRecipe
    kv_recipe: KvRecipe
    max_seq_len: int | None
    checkpoint: str
    shape: ModelShape | None = None

    @property
    def model_dtype(self) -> str | None:
        """`dtype` of the model's config.json (``bfloat16``)."""
        return None if self.shape is None else self.shape.dtype


@dataclass(frozen=True)
class RepositoryRequest:
    """What a repository is rendered from.

    Attributes:
        artefact_dir: absolute path of the engine or package as the server will see it.
        tokenizer_dir: absolute path of the tokenizer folder as the server will see it.
    """

    lane_request: LaneRequest
    runtime: RuntimeName
    artefact_dir: str
    tokenizer_dir: str


@dataclass(frozen=True)
class RepositoryContext:
    """A template set and its variables."""

    layout: TreeLayout
    variables: Mapping[str, Any]


class Lane(Protocol):
    """One way from a checkpoint to a server."""

    @property
    def name(self) -> LaneName: ...

    @property
    def stack_versions(self) -> str:
        """PEP 440 range of versions of its runtime that this lane is written for."""

    @property
    def client(self) -> ClientFields: ...

    def findings(
        self, spec: DeploymentSpec, target: Target, sku: GpuSku, stack: StackRelease
    ) -> list[Finding]:
        """Rules that only this lane knows."""

    def steps(self, request: LaneRequest) -> list[Step]:
        """What builds the artefact; argv relative to the workspace root."""

    def repository_context(self, request: RepositoryRequest) -> RepositoryContext:
        """Layout and variables of the model repository."""

    def documents(self, request: LaneRequest) -> Mapping[str, Any]:
        """Data files that belong in the artefact, by file name; dumped as YAML."""

    def attachments(self, request: LaneRequest) -> tuple[Attachment, ...]:
        """What travels with the artefact beside the checkpoint."""

    def launch(self, request: LaunchRequest) -> LaunchPlan:
        """The processes that serve a repository of this lane."""


def stop_ids_text(stop_ids: str | tuple[int, ...]) -> str:
    """`serving.stop_ids` as the model parameter: ``generation_config``, or a JSON list."""
    return stop_ids if isinstance(stop_ids, str) else str(list(stop_ids))


def tensor_context(tensors: list[Mapping[str, Any]], **types: str) -> list[dict[str, Any]]:
    """Tensors of a contract as template variables.

    Args:
        types: values for data types that upstream's templates leave to a placeholder, by its name
            (``logits_datatype="TYPE_FP32"``).
    """
    result = []
    for tensor in tensors:
        dims, kind = tensor.get("dims"), tensor.get("data_type")
        shaped = dims is not None and all(isinstance(number, int) for number in dims)
        if tensor.get("optional") and not (shaped and kind):
            continue  # a name without type or shape: nobody can send what is not declared
        data_type = str(tensor["data_type"])
        if data_type.startswith("${"):
            if data_type[2:-1] not in types:
                raise UsageError(
                    f"the contract gives the tensor `{tensor['name']}` the type {data_type}, "
                    "for which engineroom has no value",
                    hint="write a type such as TYPE_FP32 into the contract of your --catalog overlay",
                )
            data_type = types[data_type[2:-1]]
        result.append(
            {
                "name": tensor["name"],
                "data_type": data_type,
                "dims": list(tensor["dims"]),
                "reshape": tensor.get("reshape"),
                "optional": bool(tensor.get("optional")),
                "allow_ragged_batch": bool(tensor.get("allow_ragged_batch")),
            }
        )
    return result
