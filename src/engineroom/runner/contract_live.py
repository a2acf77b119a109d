"""A contract from an environment that has TensorRT-LLM installed, by a child process of its Python."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from engineroom.errors import ExternalToolError, MissingError, UsageError, Where
from engineroom.runner import contract_live_child, contract_source_triton
from engineroom.runner.contract_source import assemble, checked_version
from engineroom.runner.contract_source_tree import SourceTree
from engineroom.runner.process import describe_exit, die_with_parent

# Importing tensorrt_llm loads CUDA libraries and MPI: minutes on a cold disk.
TIMEOUT_S = 600
_MAX_ANSWER = 32 << 20
_WAYS = (
    "run it in the container of a stack, or install TensorRT-LLM from NVIDIA's own index; "
    "a source tree needs neither: --from-source DIR"
)


def capture_installed(
    python: str,
    version: str | None = None,
    all_models: Path | None = None,
    timeout_s: float = TIMEOUT_S,
) -> dict[str, Any]:
    """The contract of what `python` has installed.

    Args:
        python: the interpreter; only an executable of this name or path, never a command line.
        version: checked against `tensorrt_llm.__version__`.
        all_models: the container's Triton models; the Python package has none.

    Raises:
        MissingError: no such interpreter, no tensorrt_llm, or only the stub of PyPI.
        ExternalToolError: importing it failed, or the child died or hung.
    """
    answer = _ask(python, timeout_s)
    _refuse(answer, python)
    number = checked_version(version, answer.get("version"), "tensorrt_llm.__version__")
    sections: dict[str, Any] = answer["sections"]
    unknown: list[dict[str, str]] = list(answer.get("unknown", []))
    if all_models is not None:
        tree = SourceTree(all_models, "--all-models")
        sections["triton"] = contract_source_triton.triton(tree, tree)
        unknown += [item.as_dict() for item in tree.unknown]
    else:
        sections["triton"] = {"families": {}}
        unknown.append(
            {
                "path": "triton.families",
                "reason": "the Python package has no Triton models: give --all-models DIR",
            }
        )
    return assemble(
        number,
        sections,
        git={"commit": None, "note": "an installed package; it names no commit"},
        capture={"method": "installed", "files": {}, "unknown": unknown},
    )


def _ask(python: str, timeout_s: float) -> dict[str, Any]:
    script = Path(contract_live_child.__file__).resolve()
    with tempfile.TemporaryDirectory(prefix="engineroom-capture-") as folder:
        out, log = Path(folder) / "answer.json", Path(folder) / "log"
        try:
            with out.open("wb") as sink, log.open("wb") as errors:
                code = subprocess.run(
                    [python, str(script)],
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=errors,
                    timeout=timeout_s,
                    check=False,
                    preexec_fn=die_with_parent if os.name == "posix" else None,
                ).returncode
        except (OSError, ValueError) as error:
            raise MissingError(
                f"`{python}` cannot be started: {getattr(error, 'strerror', None) or error}",
                where=Where(key="--python"),
                hint="name the Python of the environment that has TensorRT-LLM",
            ) from None
        except subprocess.TimeoutExpired:
            raise ExternalToolError(
                f"importing tensorrt_llm took longer than {timeout_s:g} s",
                where=Where(key="--python"),
                hint="import it once by hand in that environment, and see what it waits for",
            ) from None
        tail = log.read_bytes()[-600:].decode("utf-8", "replace").strip()
        if code != 0 or out.stat().st_size > _MAX_ANSWER:
            raise ExternalToolError(
                f"the child of `{python}` {describe_exit(code)}: {tail}",
                hint="import tensorrt_llm by hand in that environment",
            )
        try:
            answer = json.loads(out.read_bytes())
        except ValueError:
            answer = None
    if not isinstance(answer, dict):
        raise ExternalToolError(
            f"`{python}` gave no answer: {tail}", hint="is it a Python of 3.8 or newer?"
        )
    return answer


def _refuse(answer: dict[str, Any], python: str) -> None:
    kind, told = answer.get("error"), answer.get("message")
    if kind == "absent":
        raise MissingError(f"`{python}` has no tensorrt_llm", hint=_WAYS)
    if kind == "stub":
        raise MissingError(
            f"the tensorrt_llm of `{python}` is only a stub ({told}): it has no llmapi.llm_args",
            hint=_WAYS,
        )
    if kind == "import":
        raise ExternalToolError(
            f"`{python}` cannot import its tensorrt_llm: {told}",
            hint="it needs the CUDA driver's libraries: use a machine or container with a GPU, "
            "or --from-source DIR",
        )
    if kind is not None:
        raise ExternalToolError(
            f"reading tensorrt_llm in `{python}` failed: {told}",
            hint="this version has another shape than we know; --from-source DIR may still read it",
        )
    if not isinstance(answer.get("sections"), dict):
        raise UsageError(f"`{python}` gave no sections", hint=_WAYS)
