"""A Triton release, or a TensorRT-LLM version with an image."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StackRelease:
    """What a target runs on.

    Attributes:
        id: ``26.07`` for a Triton release, ``trtllm-1.4.0rc4`` for an explicit version.
        image: container reference, or None when nobody named one.
        tensorrt_llm: version string as the container reports it.
        toolkit_driver: driver that ships with the image's CUDA toolkit; not a minimum.
        min_driver: floor of the CUDA major line (minor-version compatibility).
        require_cuda: the image's `NVIDIA_REQUIRE_CUDA`, or None when no source gives it. Where it does
            not hold the container does not start; where it holds nothing is said about the driver.
    """

    id: str
    image: str | None
    tensorrt_llm: str
    tensorrt: str | None = None
    torch: str | None = None
    cuda: str | None = None
    python: str | None = None
    toolkit_driver: str | None = None
    min_driver: str | None = None
    require_cuda: str | None = None
    source: tuple[str, ...] = ()
    confidence: str = "unknown"
    note: str | None = None
