"""What a server says about a model: its inputs, outputs and settings. Pure: no connection here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engineroom.errors import ExternalToolError


@dataclass(frozen=True)
class TensorInfo:
    """One input or output.

    Attributes:
        datatype: Triton's name without ``TYPE_`` (INT32, FP32, BOOL, BYTES); None: not said.
        shape: as the metadata gives it, the batch dimension included where there is one.
    """

    name: str
    datatype: str | None = None
    shape: tuple[int, ...] | None = None

    @property
    def is_list(self) -> bool:
        """Whether it takes any number of values; a shape that is not known may."""
        return not self.shape or self.shape[-1] != 1


@dataclass(frozen=True)
class ModelInfo:
    """A model of a server.

    Attributes:
        config: Triton's model configuration as JSON; None until it was asked for.
    """

    name: str
    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None

    @property
    def batched(self) -> bool:
        """Whether tensors have a batch dimension in front."""
        return int((self.config or {}).get("max_batch_size") or 0) > 0

    @property
    def decoupled(self) -> bool:
        """Whether the model itself may answer several times; for an ensemble see `steps`."""
        policy = (self.config or {}).get("model_transaction_policy")
        return isinstance(policy, Mapping) and bool(policy.get("decoupled"))

    @property
    def steps(self) -> tuple[str, ...]:
        """Models that an ensemble calls; empty for any other model."""
        scheduling = (self.config or {}).get("ensemble_scheduling")
        rows = scheduling.get("step") if isinstance(scheduling, Mapping) else None
        return tuple(str(row.get("model_name")) for row in rows or () if isinstance(row, Mapping))

    def switched_off(self, feature: str) -> bool:
        """Whether the repository says that requests may not use the feature (`serving.features`)."""
        parameters = (self.config or {}).get("parameters")
        row = parameters.get("features") if isinstance(parameters, Mapping) else None
        text = row.get("string_value") if isinstance(row, Mapping) else None
        try:
            switches = json.loads(text) if isinstance(text, str) else {}
        except ValueError:
            return False
        return isinstance(switches, dict) and switches.get(feature) is False


def model_info(name: str, metadata: Mapping[str, Any], server: str) -> ModelInfo:
    """A model from Triton's metadata.

    Raises:
        ExternalToolError: not of Triton's shape.
    """
    sides = {}
    for side in ("inputs", "outputs"):
        rows = metadata.get(side, [] if side == "outputs" else None)
        if not isinstance(rows, list) or not all(isinstance(i, dict) and "name" in i for i in rows):
            raise ExternalToolError(
                f"{server} answers, but not as Triton does",
                hint="name Triton's HTTP address (8000), or its gRPC address (8001) with "
                "--protocol grpc",
            )
        sides[side] = {str(row["name"]): _tensor(row) for row in rows}
    return ModelInfo(name, sides["inputs"], sides["outputs"])


def _tensor(row: Mapping[str, Any]) -> TensorInfo:
    shape, datatype = row.get("shape"), row.get("datatype")
    try:
        dims = tuple(int(number) for number in shape) if isinstance(shape, list) else None
    except (TypeError, ValueError):
        dims = None
    return TensorInfo(str(row["name"]), str(datatype) if datatype else None, dims)
