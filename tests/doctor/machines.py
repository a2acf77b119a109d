"""Made-up machines: /proc, /sys and /dev trees, an nvidia-smi script, a module like pynvml."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from engineroom.runner.machine.facts import Roots

MIB, GIB = 2**20, 2**30
H100 = "NVIDIA H100 80GB HBM3"
OLD, MIDDLE, NEW = "535.104.05", "580.95.05", "590.48.01"

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max stack size            {stack:<20} unlimited            bytes
Max open files            {nofile:<20} 1048576              files
Max locked memory         {memlock:<20} {memlock:<20} bytes
"""


@dataclass
class Disk:
    total: int
    free: int


class Machine:
    """A folder of made-up trees; every method adds facts and returns the machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sizes = {"shm": Disk(64 * GIB, 64 * GIB), "": Disk(4000 * GIB, 3000 * GIB)}
        for name in ("proc", "sys/fs/cgroup", "dev/shm", "root", "bin"):
            (folder / name).mkdir(parents=True)
        self.env = {"PATH": str(folder / "bin"), "HOME": str(folder / "root")}
        self.seconds = 5.0
        self.memory(512 * GIB)
        self.limits()
        self.put("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-15,32-35\n")

    def put(self, name: str, text: str | bytes) -> Machine:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return self

    def memory(self, total: int) -> Machine:
        kb = total // 1024
        return self.put("proc/meminfo", f"MemTotal:  {kb} kB\nMemAvailable: {kb // 2} kB\n")

    def limits(self, stack: str = "67108864", memlock: str = "unlimited") -> Machine:
        text = LIMITS.format(stack=stack, memlock=memlock, nofile="1048576")
        return self.put("proc/self/limits", text)

    def shm(self, size: int) -> Machine:
        self.sizes["shm"] = Disk(size, size)
        return self

    def disk(self, free: int) -> Machine:
        self.sizes[""] = Disk(4000 * GIB, free)
        return self

    def driver(self, version: str, flavour: str = "Open Kernel Module for x86_64") -> Machine:
        text = f"NVRM version: NVIDIA UNIX {flavour}  {version}  Release Build  (builder)\n"
        return self.put("proc/driver/nvidia/version", text + "GCC version: gcc 12\n")

    def smi(self, script: str) -> Machine:
        """`nvidia-smi` as a shell script."""
        path = self.folder / "bin/nvidia-smi"
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(0o755)
        return self

    def tool(self, name: str) -> Machine:
        path = self.folder / "bin" / name
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return self

    def gpus(
        self,
        count: int = 1,
        *,
        driver: str = NEW,
        name: str = H100,
        cc: str = "9.0",
        memory: int = 81559,
        free: int | None = None,
        mig: str = "Disabled",
        cuda: str = "13.1",
    ) -> Machine:
        """A driver and an nvidia-smi that lists GPUs in the order of fields it is asked for."""
        free = memory - 600 if free is None else free
        rows = "\n".join(
            f"{i}, {memory}, {free}, {driver}, {mig}, {cc}, {name}" for i in range(count)
        )
        self.put("smi.csv", rows + "\n")
        self.smi(
            'case "$1" in\n'
            "--query-gpu=index,memory.total,memory.free,driver_version,mig.mode.current,compute_cap,name)"
            f' /bin/cat "{self.folder}/smi.csv" ;;\n'
            "--*) echo 'Field is not a valid field to query.'; exit 2 ;;\n"
            f"*) echo '| NVIDIA-SMI {driver}   Driver Version: {driver}   CUDA Version: {cuda} |' ;;\n"
            "esac\n"
        )
        return self.driver(driver)

    def roots(self) -> Roots:
        def disk(path: str) -> Any:
            return self.sizes["shm" if path.endswith("/shm") else ""]

        at = {name: str(self.folder / name) for name in ("proc", "sys", "dev", "root")}
        return Roots(**at, env=dict(self.env), seconds=self.seconds, disk=disk)


class NVMLError(Exception):
    """Base of what a pynvml-like module raises."""


class NVMLError_NotSupported(NVMLError):
    """As on a GPU that cannot be partitioned."""


def no_nvml() -> Any:
    """pynvml on a machine without a driver."""

    def init() -> None:
        raise NVMLError("NVML Shared Library Not Found")

    return SimpleNamespace(nvmlInit=init)


def nvml(
    count: int,
    *,
    driver: Any = NEW,
    mig: Any = (0, 0),
    memory: int = 81559,
    name: Any = H100,
    brand: int = 14,
) -> Any:
    """A module like pynvml with `count` GPUs; `mig` may be an exception to raise."""

    def mig_mode(handle: int) -> Any:
        if isinstance(mig, Exception):
            raise mig
        return mig

    return SimpleNamespace(
        NVML_BRAND_TESLA=2,
        NVML_BRAND_NVIDIA_VCS=9,
        NVML_BRAND_NVIDIA=14,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetName=lambda h: name,
        nvmlDeviceGetMemoryInfo=lambda h: SimpleNamespace(
            total=memory * MIB + 5, free=(memory - 600) * MIB
        ),
        nvmlDeviceGetCudaComputeCapability=lambda h: (9, 0),
        nvmlDeviceGetMigMode=mig_mode,
        nvmlDeviceGetBrand=lambda h: brand,
        nvmlSystemGetDriverVersion=lambda: driver,
        nvmlSystemGetCudaDriverVersion_v2=lambda: 13010,
    )


def package(folder: Path, name: str, version: str, *requires: str, files: str = "") -> None:
    """A `dist-info` folder as pip leaves it."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    os.makedirs(info)  # noqa: PTH103
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {text}" for text in requires]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    (info / "RECORD").write_text(files)
