"""Facts about this machine, from /proc, /sys, nvidia-smi and the environment.

Standard library only, Python 3.8 or newer: this module is part of the file that a pod runs
(:mod:`engineroom.runner.preflight`). Sizes are in bytes unless the name ends in `mib`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MAX_TEXT = 64 * 1024
MAX_GPUS = 128


@dataclass(frozen=True)
class Roots:
    """Where facts are read from; tests point it at made-up trees.

    Attributes:
        root: for /.dockerenv, /run/.containerenv and /usr/local/cuda.
        seconds: patience with nvidia-smi and NVML, each.
        disk: path to an object with `total` and `free` in bytes; raises OSError.
    """

    proc: str = "/proc"
    sys: str = "/sys"
    dev: str = "/dev"
    root: str = "/"
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    seconds: float = 10.0
    disk: Callable[[str], Any] = shutil.disk_usage

    def which(self, tool: str) -> str | None:
        return shutil.which(tool, path=self.env.get("PATH", ""))


# ---- reading


def read(path: Path) -> str | None:
    """At most 64 KiB of a regular file, or None; never waits on a pipe or device."""
    try:
        if not path.is_file():
            return None
        with path.open("rb") as file:
            return file.read(_MAX_TEXT).decode("utf-8", "replace")
    except (OSError, ValueError):
        return None


def _names(folder: Path, pattern: str, most: int) -> list[str]:
    try:
        return sorted(path.name for path in folder.glob(pattern))[:most]
    except OSError:
        return []


def _is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def clean(text: Any, most: int = 200) -> str:
    """Printable and short: names come from files and tools that we do not trust."""
    raw = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
    return "".join(c if c.isprintable() else "?" for c in raw[:most]).strip()


def version_of(text: Any) -> tuple[int, ...] | None:
    """`580.95.05` as (580, 95, 5); None when it is no driver version."""
    parts = str(text).split(".")
    good = 1 <= len(parts) <= 4 and all(re.fullmatch(r"[0-9]{1,5}", part) for part in parts)
    return tuple(int(part) for part in parts) if good else None


def run_tool(argv: list[str], roots: Roots) -> tuple[int | None, str, str | None]:
    """(exit code, stdout, problem) within `roots.seconds` and 64 KiB; the whole group is ended."""
    name, until = Path(argv[0]).name, time.monotonic() + roots.seconds
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            env=dict(roots.env),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return None, "", f"{name} cannot be started: {clean(error)}"
    got = bytearray()

    def pump() -> None:
        while child.stdout is not None and len(got) < _MAX_TEXT:
            try:
                block = child.stdout.read(4096)
            except (OSError, ValueError):
                return
            if not block:
                return
            got.extend(block)

    reader = threading.Thread(target=pump, daemon=True)
    reader.start()
    reader.join(roots.seconds)
    late = reader.is_alive()
    code: int | None = None
    if not late and len(got) < _MAX_TEXT:
        try:
            code = child.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = True
    if code is None:
        try:
            if hasattr(os, "killpg"):
                os.killpg(child.pid, signal.SIGKILL)
            else:
                child.kill()
            child.wait(5)
        except (OSError, subprocess.TimeoutExpired):
            pass  # in an uninterruptible wait on the driver: nothing more can be done
        why = f"did not answer within {roots.seconds:g} s" if late else "printed too much"
        return None, "", f"{name} {why}"
    return code, bytes(got).decode("utf-8", "replace"), None


# ---- GPUs

_SMI = ("index", "memory.total", "memory.free", "driver_version", "mig.mode.current", "compute_cap")

_SMI_NONE = re.compile(r"ended with exit code (6|9|12):")
"""Nothing found, no driver loaded, no NVML library (nvidia-smi manual page, RETURN VALUE). Others, such
as 15 for a GPU that fell off the bus, or a signal, do not say that there is no GPU."""


def _smi(roots: Roots) -> dict[str, Any] | str:
    """GPUs as nvidia-smi lists them, or why not. `compute_cap` is unknown to drivers before R510."""
    tool = roots.which("nvidia-smi")
    if tool is None:
        return "nvidia-smi is not on PATH"
    text, problem, code = "", None, None
    fields = list(_SMI)
    for fields in (list(_SMI), list(_SMI[:-1])):
        query = "--query-gpu=" + ",".join([*fields, "name"])
        code, text, problem = run_tool([tool, query, "--format=csv,noheader,nounits"], roots)
        if problem is not None or code == 0 or "compute_cap" not in text:
            break
    if problem is not None:
        return problem
    if "No devices were found" in text:
        return {"gpus": [], "driver": None, "cuda": None}
    first = clean(next(iter(text.splitlines()), ""), 120)
    if code != 0:
        return f"nvidia-smi ended with exit code {code}: {first}"
    gpus, driver = [], None
    for line in text.splitlines()[:MAX_GPUS]:
        cells = [cell.strip() for cell in line.split(",", len(fields))]
        if len(cells) != len(fields) + 1 or not cells[0].isdigit():
            return f"nvidia-smi printed something else than a list of GPUs: {first}"
        row = dict(zip([*fields, "name"], cells))
        if version_of(row["driver_version"]):
            driver = row["driver_version"]
        gpus.append(
            {
                "index": int(row["index"][:6]),
                "name": clean(row["name"]),
                "compute_capability": _capability(row.get("compute_cap")),
                "memory_mib": _mib(row["memory.total"]),
                "memory_free_mib": _mib(row["memory.free"]),
                "mig": {"Enabled": True, "Disabled": False, "[N/A]": False}.get(
                    row["mig.mode.current"]
                ),
                "brand": None,
            }
        )
    if not gpus:
        return "nvidia-smi printed nothing"
    _, banner, _ = run_tool([tool], roots)
    match = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d{1,3}\.\d{1,3})", banner)
    return {"gpus": gpus, "driver": driver, "cuda": match[1] if match else None}


def _capability(text: Any) -> str | None:
    return str(text) if re.fullmatch(r"\d{1,2}\.\d{1,2}", str(text)) else None


def _mib(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _proc_driver(roots: Roots) -> str | None:
    """The loaded kernel module's version: `… Kernel Module [for x86_64]  580.95.05  …`."""
    text = read(Path(roots.proc, "driver/nvidia/version")) or ""
    match = re.search(r"Kernel Module(?: for \S{1,20})?\s+(\d{3,4}(?:\.\d{1,4}){1,2})\b", text)
    return match[1] if match else None


def _proc_gpus(roots: Roots) -> list[dict[str, Any]]:
    folder = Path(roots.proc, "driver/nvidia/gpus")
    gpus = []
    for index, name in enumerate(_names(folder, "*", MAX_GPUS)):
        text = read(folder / name / "information") or ""
        match = re.search(r"^Model:[ \t]*(.+)$", text, re.MULTILINE)
        gpus.append({
            "index": index, "name": clean(match[1]) if match else "unknown",
            "compute_capability": None, "memory_mib": None, "memory_free_mib": None,
            "mig": None, "brand": None,
        })  # fmt: skip
    return gpus


def gpu_facts(roots: Roots, nvml: Callable[[], dict[str, Any]] | None = None) -> dict[str, Any]:
    """NVML first, then nvidia-smi, then /proc. `gpus` is None when nobody gave a clear answer."""
    problems: list[str] = []
    kernel = _proc_driver(roots)
    facts: dict[str, Any] | None = None
    source: str | None = None
    if nvml is not None:
        try:
            facts, source = nvml(), "nvml"
        except Exception as error:
            problems.append(f"NVML: {clean(error) or type(error).__name__}")
    unclear = False
    if facts is None:
        answer = _smi(roots)
        if isinstance(answer, dict):
            facts, source = answer, "nvidia-smi"
        else:
            problems.append(answer)
            unclear = "not on PATH" not in answer and not _SMI_NONE.search(answer)
    if facts is None:
        listed = _proc_gpus(roots)
        # A loaded driver without anybody to ask, or a tool that hangs, proves nothing.
        known = bool(listed) or not (unclear or kernel)
        facts = {"gpus": listed if known else None, "driver": None, "cuda": None}
        source = "proc" if listed else None
    return {
        "gpus": facts["gpus"],
        "gpu_source": source,
        "gpu_problems": problems,
        "driver": facts["driver"] or kernel,
        "cuda": facts["cuda"],
    }


# ---- the rest of the machine


def _cgroup_values(base: Path, path: str, name: str) -> list[str]:
    """A file of a cgroup and of all its parents, nearest first.

    Inside a container the path may be the host's; then only the root's file is there, which is the
    container's own.
    """
    parts = [part for part in path.split("/") if part not in ("", ".", "..")][:64]
    found = []
    for length in range(len(parts), -1, -1):
        text = read(base.joinpath(*parts[:length], name))
        if text is not None:
            found.append(text.strip())
    return found


def cgroup_facts(roots: Roots) -> dict[str, Any]:
    """Memory limit in bytes and CPU quota in CPUs: the tightest of this process's cgroup and parents."""
    base = Path(roots.sys, "fs/cgroup")
    paths = {"": "/", "memory": "/", "cpu": "/"}
    for line in (read(Path(roots.proc, "self/cgroup")) or "").splitlines()[:64]:
        cells = line.split(":", 2)
        if len(cells) == 3:
            paths.update({c: cells[2] for c in cells[1].split(",") if c in paths})
    if _is_dir(base / "memory"):
        version: int | None = 1
        memory = _cgroup_values(base / "memory", paths["memory"], "memory.limit_in_bytes")
        pairs: list[tuple[str, str]] = []
        for folder in ("cpu", "cpu,cpuacct"):
            where = base / folder
            quotas = _cgroup_values(where, paths["cpu"], "cpu.cfs_quota_us")
            pairs += zip(quotas, _cgroup_values(where, paths["cpu"], "cpu.cfs_period_us"))
    else:
        version = 2 if _is_dir(base) else None
        memory = _cgroup_values(base, paths[""], "memory.max")
        cells2 = [text.split() for text in _cgroup_values(base, paths[""], "cpu.max")]
        pairs = [(c[0], c[1]) for c in cells2 if len(c) == 2]
    # "max", -1 and v1's 2^63 rounded down to a page all mean no limit.
    limits = [int(t) for t in memory if re.fullmatch(r"[0-9]{1,19}", t) and int(t) < 2**60]
    quotas_cpu = [
        int(q) / int(p)
        for q, p in pairs
        if re.fullmatch(r"[0-9]{1,15}", q) and re.fullmatch(r"[1-9][0-9]{0,15}", p)
    ]
    return {
        "version": version,
        "memory_limit_bytes": min(limits, default=None),
        "cpu_quota": round(min(quotas_cpu), 3) if quotas_cpu else None,
    }


def _cpus(roots: Roots) -> int | None:
    text = read(Path(roots.proc, "self/status")) or ""
    match = re.search(r"^Cpus_allowed_list:[ \t]*([0-9,-]{1,4000})$", text, re.MULTILINE)
    total = 0
    for part in match[1].split(",") if match else []:
        ends = [int(p[:6]) for p in part.split("-", 1) if p.isdigit()]
        total += max(0, ends[-1] - ends[0] + 1) if ends else 0
    return total or os.cpu_count()


def _limits(roots: Roots) -> dict[str, Any]:
    """Soft limits: bytes (nofile: descriptors), "unlimited", or None when unknown."""
    text = read(Path(roots.proc, "self/limits")) or ""
    rows = {"memlock": "Max locked memory", "stack": "Max stack size", "nofile": "Max open files"}
    found: dict[str, Any] = {}
    for name, label in rows.items():
        match = re.search(rf"^{label}\s+(unlimited|[0-9]{{1,20}})\s", text, re.MULTILINE)
        value = match[1] if match else None
        found[name] = int(value) if value and value.isdigit() else value
    return found


def disk_facts(roots: Roots, path: str) -> dict[str, Any] | None:
    """Total and free bytes of the file system that `path` is or will be on."""
    try:
        place = Path(path).absolute()
        there = next((p for p in (place, *place.parents) if os.access(p, os.F_OK)), place)
        usage = roots.disk(str(there))
    except (OSError, ValueError):
        return None
    return {
        "path": clean(path, 4096),
        "total_bytes": int(usage.total),
        "free_bytes": int(usage.free),
    }


def _container(roots: Roots) -> list[str]:
    """Evidence that this is the inside of a container; empty when there is none."""
    marks = (".dockerenv", "run/.containerenv")
    evidence = [f"/{name}" for name in marks if os.access(Path(roots.root, name), os.F_OK)]
    if roots.env.get("KUBERNETES_SERVICE_HOST"):
        evidence.append("KUBERNETES_SERVICE_HOST")
    groups = read(Path(roots.proc, "1/cgroup")) or ""
    evidence += [w for w in ("kubepods", "docker", "containerd", "libpod") if w in groups]
    return evidence


_SHOWN = (
    "NVIDIA_REQUIRE_CUDA", "NVIDIA_DISABLE_REQUIRE", "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES", "CUDA_VISIBLE_DEVICES", "CUDA_VERSION", "HF_HOME",
)  # fmt: skip


def _memory(roots: Roots) -> dict[str, int | None]:
    text = read(Path(roots.proc, "meminfo")) or ""
    found: dict[str, int | None] = {}
    for name, label in (("total_bytes", "MemTotal"), ("available_bytes", "MemAvailable")):
        match = re.search(rf"^{label}:\s+([0-9]{{1,15}}) kB", text, re.MULTILINE)
        found[name] = int(match[1]) * 1024 if match else None
    return found


def collect(
    roots: Roots | None = None,
    *,
    nvml: Callable[[], dict[str, Any]] | None = None,
    workspace: str = ".",
) -> dict[str, Any]:
    """Every fact; what cannot be read is None. Values of secrets are never read out.

    Args:
        nvml: gives `gpus`, `driver` and `cuda` as NVML has them; may raise anything.
        workspace: folder whose free space counts; it need not exist yet.
    """
    roots = roots or Roots()
    env = roots.env
    cgroup = cgroup_facts(roots)
    cache = env.get("XDG_CACHE_HOME") or str(Path(env.get("HOME", "/"), ".cache"))
    hub = env.get("HF_HUB_CACHE") or str(
        Path(env.get("HF_HOME") or Path(cache, "huggingface"), "hub")
    )
    shm = Path(roots.dev, "shm")
    compat = _names(Path(roots.root, "usr/local/cuda/compat"), "libcuda.so.*", 16)
    return {
        **gpu_facts(roots, nvml),
        "platform": sys.platform,
        "python": ".".join(str(number) for number in sys.version_info[:3]),
        "container": _container(roots),
        "cuda_toolkit": _is_dir(Path(roots.root, "usr/local/cuda")),
        "cuda_compat": [clean(name) for name in compat],
        "env": {name: clean(env[name], 20_000) for name in _SHOWN if name in env},
        "hf_token_set": bool(env.get("HF_TOKEN") or env.get("HUGGING_FACE_HUB_TOKEN")),
        "shm": disk_facts(roots, str(shm)) if _is_dir(shm) else None,
        "memory": {**_memory(roots), "cgroup_limit_bytes": cgroup["memory_limit_bytes"]},
        "cgroup_version": cgroup["version"],
        "cpus": {"count": _cpus(roots), "quota": cgroup["cpu_quota"]},
        "limits": _limits(roots),
        "disks": {"workspace": disk_facts(roots, workspace), "hf_cache": disk_facts(roots, hub)},
    }
