"""A Triton release, or an explicit runtime version with an image."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class VllmRelease:
    """The vllm-python-py3 container of a Triton release.

    Attributes:
        version: the public vLLM version; `build` is the container's own string.
    """

    version: str
    image: str | None
    build: str | None = None
    cuda: str | None = None
    python: str | None = None
    toolkit_driver: str | None = None
    min_driver: str | None = None
    source: tuple[str, ...] = ()
    confidence: str = "unknown"
    note: str | None = None


@dataclass(frozen=True)
class StackRelease:
    """What a target runs on.

    Attributes:
        id: ``26.07`` for a Triton release, ``trtllm-1.4.0rc4`` for an explicit version.
        image: container reference, or None when nobody named one.
        tensorrt_llm: version string as the container reports it; empty where the stack is vLLM's.
        toolkit_driver: driver that ships with the image's CUDA toolkit; not a minimum.
        min_driver: floor of the CUDA major line (minor-version compatibility).
        require_cuda: the image's `NVIDIA_REQUIRE_CUDA`, or None when no source gives it. Where it does
            not hold the container does not start; where it holds nothing is said about the driver.
        vllm: the release's vLLM container, or None when it has none.
        runtime_name: the runtime this stack is for.
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
    vllm: VllmRelease | None = None
    runtime_name: str = "TensorRT-LLM"

    @property
    def runtime_version(self) -> str:
        """Version of the runtime this stack is for."""
        if self.runtime_name == "vLLM" and self.vllm is not None:
            return self.vllm.version
        return self.tensorrt_llm

    def of_vllm(self) -> StackRelease | None:
        """The same release with its vLLM container in the place of the TensorRT-LLM one."""
        if self.vllm is None:
            return None
        v = self.vllm
        return replace(
            self, image=v.image, tensorrt_llm="", tensorrt=None, torch=None, cuda=v.cuda,
            python=v.python, toolkit_driver=v.toolkit_driver, min_driver=v.min_driver,
            require_cuda=None, source=v.source, confidence=v.confidence, note=v.note,
            runtime_name="vLLM",
        )  # fmt: skip
