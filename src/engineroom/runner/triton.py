"""The real tritonserver of the `nvidia-pytriton` wheel, with the reference runtime behind it.

What the wheel needs, found by running it: the Python stub of this interpreter's version beside the
Python backend; the environment's bin directory first in PATH (the stub runs isolated and ignores
PYTHONPATH); and LD_LIBRARY_PATH with the wheel's own libraries and the base interpreter's LIBDIR, or
compiled modules load against another libpython.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType

from engineroom.errors import ExternalToolError, MissingError, missing_extra
from engineroom.runner.process import describe_exit, die_with_parent

READY_SECONDS = 300


@dataclass(frozen=True)
class Endpoints:
    """Loopback ports of a running server."""

    http: int
    grpc: int
    metrics: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http}"


def find_wheel() -> tuple[Path, Path]:
    """(tritonserver folder, its libraries' folder) of the installed wheel.

    Raises:
        MissingError: not Linux, or the wheel is not installed.
    """
    if sys.platform != "linux":
        raise MissingError(
            "tritonserver runs on Linux only",
            hint="use a Linux machine or container for `serve`; the other verbs work here",
        )
    found = importlib.util.find_spec("pytriton")
    if found is None or not found.submodule_search_locations:
        raise missing_extra("serve", "nvidia-pytriton")
    package = Path(next(iter(found.submodule_search_locations)))
    return package / "tritonserver", package.parent / "nvidia_pytriton.libs"


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, on loopback."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]
    finally:
        for item in sockets:
            item.close()


class TritonServer:
    """A server on loopback; use as a context manager.

    Args:
        repository: model repository on disk.
        work: a folder for the backend directory and a copy of the repository; its path must be plain,
            because Triton's Python backend starts its stubs through a shell line.
        log: file for the server's output.
        bin_dir: `bin` of the environment whose packages the models import; this one's by default.
        template_roots: where the reference runtime's files are.
        http_port: 0 picks a free one; gRPC and metrics always get free ones.
        engine_backend: folder of a Python-based backend to stand where `tensorrtllm` would, instead
            of the one with the reference runtime.
        python_threads: `thread-pool-size` of the Python backend: a model that calls another holds a
            thread of it while it waits.
        modules: further Python modules or packages for the models' sys.path.
        env: further environment variables of the server and its models.
        extra_args: further options of the server, such as ``--model-control-mode=explicit``.
    """

    def __init__(
        self,
        repository: Path,
        work: Path,
        template_roots: tuple[Path, ...],
        *,
        log: Path,
        http_port: int = 0,
        bin_dir: Path | None = None,
        engine_backend: Path | None = None,
        python_threads: int = 128,
        modules: Sequence[Path] = (),
        env: Mapping[str, str] = MappingProxyType({}),
        extra_args: Sequence[str] = (),
    ) -> None:
        tritonserver, libraries = find_wheel()
        self.work, self.log = work, log
        log.parent.mkdir(parents=True, exist_ok=True)
        models = work / "models"
        shutil.copytree(repository, models)
        standin = engine_backend or _find(template_roots, "engine_standin/tensorrtllm")
        backends = self._assemble(tritonserver, template_roots, standin, modules)
        ports = free_ports(3)
        self.endpoints = Endpoints(http_port or ports[0], ports[1], ports[2])
        self._argv = [
            str(tritonserver / "bin/tritonserver"),
            f"--model-repository={models}",
            f"--backend-directory={backends}",
            "--exit-on-error=true",
            "--http-address=127.0.0.1",
            f"--http-port={self.endpoints.http}",
            "--grpc-address=127.0.0.1",
            f"--grpc-port={self.endpoints.grpc}",
            "--metrics-address=127.0.0.1",
            f"--metrics-port={self.endpoints.metrics}",
            f"--backend-config=python,thread-pool-size={python_threads}",
            "--exit-timeout-secs=20",
            *extra_args,
        ]
        libdir = sysconfig.get_config_var("LIBDIR") or ""
        old_path = os.environ.get("LD_LIBRARY_PATH", "")
        self._env = {
            **os.environ,
            "PATH": f"{bin_dir or Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(libraries), libdir, old_path])),
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            **env,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def _assemble(
        self, tritonserver: Path, roots: tuple[Path, ...], standin: Path, modules: Sequence[Path]
    ) -> Path:
        backends = self.work / "backends"
        shutil.rmtree(backends, ignore_errors=True)
        python = backends / "python"
        shutil.copytree(tritonserver / "backends/python", python)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stub = tritonserver / f"python_backend_stubs/{version}/triton_python_backend_stub"
        if not stub.is_file():
            raise MissingError(
                f"nvidia-pytriton has no Python stub for {version}", hint="use Python 3.10 to 3.13"
            )
        shutil.copy2(stub, python)
        # The backend folder is on the models' sys.path: the reference runtime goes there, so that a
        # rendered repository holds nothing of it.
        shutil.copytree(
            _find(roots, "reference/engineroom_reference"), python / "engineroom_reference"
        )
        for name in ("runtime_api.py", "text_codec.py", "metrics.py"):
            shutil.copy2(_find(roots, f"shared/{name}"), python)
        for module in modules:
            copy = shutil.copytree if module.is_dir() else shutil.copy2
            copy(module, python / module.name)
        shutil.copytree(standin, backends / "tensorrtllm")
        shutil.copytree(_find(roots, "vllm_standin/vllm"), backends / "vllm")
        return backends

    def start(self) -> None:
        """Start the process; `wait_ready` says when it serves."""
        with self.log.open("wb") as sink:
            # A session of its own, so that Ctrl-C reaches us first and we stop it in order.
            self._process = subprocess.Popen(
                self._argv,
                env=self._env,
                stdout=sink,
                stderr=sink,
                cwd=self.work,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process.pid

    def wait_ready(self, seconds: float = READY_SECONDS) -> float:
        """Seconds until the server was ready.

        Raises:
            ExternalToolError: it ended, or was not ready in time; has the errors of its log.
        """
        process = self._process
        if process is None:
            raise RuntimeError("the server was not started")
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            code = process.poll()
            if code is not None:
                raise ExternalToolError(
                    f"tritonserver {describe_exit(code)} while loading{self._errors()}",
                    hint=f"see {self.log}",
                )
            if self._ready():
                return time.monotonic() - started
            time.sleep(0.1)
        self.stop()
        raise ExternalToolError(
            f"tritonserver was not ready after {seconds:.0f} s{self._errors()}",
            hint=f"see {self.log}",
        )

    def _ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.endpoints.http, timeout=2)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _errors(self, most: int = 4) -> str:
        # Two level-E lines come on every machine without a GPU and mean nothing.
        noise = ("CudaDriverHelper", "unable to create stream", "DCGM", "NVML", "PinnedMemory")
        text = self.log.read_text(encoding="utf-8", errors="replace")
        lines = [
            line.strip()
            for line in text.splitlines()
            if (line.startswith("E") or "error" in line.lower())
            and not any(n in line for n in noise)
        ]
        return ":\n    " + "\n    ".join(lines[:most]) if lines else ""

    def poll(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def stop(self, seconds: float = 30) -> int | None:
        """SIGTERM, a bounded wait, then SIGKILL to the process group; returns the exit code."""
        process = self._process
        if process is None:
            return None
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(seconds)
            finally:
                # Out of patience, or a second Ctrl-C: nothing may outlive this call.
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait(10)
        return process.returncode

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _find(roots: tuple[Path, ...], name: str) -> Path:
    return next(root / name for root in reversed(roots) if (root / name).exists())


def work_folder() -> Path:
    """A fresh temporary folder; Unix socket paths and backends live there."""
    return Path(tempfile.mkdtemp(prefix="engineroom-serve-"))
