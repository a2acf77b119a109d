"""A GPU SKU as the catalog knows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuSku:
    """One product of `build/skus/`.

    Attributes:
        id: the contract's name in lower case, e.g. ``h100-sxm``.
        compute_capability: ``major.minor``, e.g. ``9.0``.
        memory_mib: total memory in MiB as NVML reports it (``memory_basis`` "nvml"), else the
            nominal size ("nominal").
        node_label: value of ``nvidia.com/gpu.product`` on a whole, unshared GPU.
        aliases: other exact names: product names as NVML gives them, labels of older drivers.
        brand: NVML's product brand in lower case as `NVIDIA_REQUIRE_CUDA` tests it, or None.
        max_gpus_per_node: GPUs one host of this SKU is sold with at most.
    """

    id: str
    name: str
    architecture: str
    compute_capability: str
    memory_mib: int
    memory_basis: str
    memory_bandwidth_gbs: float
    data_center: bool
    node_label: str
    node_label_confidence: str
    source: tuple[str, ...]
    verified_on: str
    confidence: str
    max_gpus_per_node: int = 8
    aliases: tuple[str, ...] = ()
    brand: str | None = None
    mig_supported: bool = False

    @property
    def cc_tuple(self) -> tuple[int, int]:
        major, minor = self.compute_capability.split(".")
        return int(major), int(minor)
