"""GPUs as NVML sees them, through `nvidia-ml-py` (module `pynvml`), which is optional."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

from engineroom.runner.machine.facts import MAX_GPUS, clean, version_of

_MIB = 1024 * 1024
# NVML's enum names a few brands otherwise than the container runtime's `brand=` does.
_VIRTUAL = ("nvidiavapps", "nvidiavpc", "nvidiavcs", "nvidiavws", "nvidiacloudgaming")


def reader(seconds: float, module: Any = None) -> Callable[[], dict[str, Any]] | None:
    """A function that asks NVML and gives up after `seconds`; None without `pynvml`."""
    if module is None:
        try:
            module = importlib.import_module("pynvml")
        except Exception:  # absent, or broken: nvidia-smi is asked instead
            return None
    return lambda: _within(seconds, lambda: query(module))


def query(nvml: Any) -> dict[str, Any]:
    """`gpus`, `driver` and `cuda`. A GPU may lack any fact; then it is None.

    Raises:
        Exception: NVML cannot start, e.g. there is no driver.
    """
    nvml.nvmlInit()
    try:
        brands = {
            value: name[len("NVML_BRAND_") :].lower().replace("_", "")
            for name, value in vars(nvml).items()
            if name.startswith("NVML_BRAND_")
        }
        count = min(int(nvml.nvmlDeviceGetCount()), MAX_GPUS)
        gpus = [_gpu(nvml, brands, index) for index in range(count)]
        driver = clean(_ask(nvml.nvmlSystemGetDriverVersion) or "")
        number = _ask(nvml.nvmlSystemGetCudaDriverVersion_v2)
        cuda = f"{int(number) // 1000}.{int(number) % 1000 // 10}" if number else None
        return {"gpus": gpus, "driver": driver if version_of(driver) else None, "cuda": cuda}
    finally:
        _ask(nvml.nvmlShutdown)


def _gpu(nvml: Any, brands: dict[int, str], index: int) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = _ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    capability = _ask(nvml.nvmlDeviceGetCudaComputeCapability, handle)
    brand = brands.get(_ask(nvml.nvmlDeviceGetBrand, handle))
    return {
        "index": index,
        "name": clean(_ask(nvml.nvmlDeviceGetName, handle) or "unknown"),
        "compute_capability": f"{int(capability[0])}.{int(capability[1])}" if capability else None,
        "memory_mib": int(memory.total) // _MIB if memory else None,
        "memory_free_mib": int(memory.free) // _MIB if memory else None,
        "mig": _mig(nvml, handle),
        "brand": brand[len("nvidia") :] if brand in _VIRTUAL else brand,
    }


def _mig(nvml: Any, handle: Any) -> bool | None:
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except Exception as error:
        # NotSupported is the answer of a GPU that cannot be partitioned.
        return False if "notsupported" in type(error).__name__.lower() else None


def _ask(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except Exception:
        return None


def _within(seconds: float, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `call` gives or raises; a driver that hangs must not hang us."""
    box: list[dict[str, Any] | Exception] = []

    def work() -> None:
        try:
            box.append(call())
        except Exception as error:
            box.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if not box:
        raise TimeoutError(f"no answer within {seconds:g} s")
    if isinstance(box[0], Exception):
        raise box[0]
    return box[0]
