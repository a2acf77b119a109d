"""Value types: frozen standard-library dataclasses, no I/O and no pydantic."""

from engineroom.types.client import ClientFields
from engineroom.types.finding import Figure, Finding
from engineroom.types.model import ModelShape
from engineroom.types.plan import Capacity, ProfilePlan, TargetPlan
from engineroom.types.sku import GpuSku
from engineroom.types.stack import StackRelease, VllmRelease
from engineroom.types.step import RenderedFile, Step

__all__ = [
    "Capacity",
    "ClientFields",
    "Figure",
    "Finding",
    "GpuSku",
    "ModelShape",
    "ProfilePlan",
    "RenderedFile",
    "StackRelease",
    "Step",
    "TargetPlan",
    "VllmRelease",
]
