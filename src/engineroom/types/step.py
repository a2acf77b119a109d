"""Work as data: a step to run, and a file to write."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Step:
    """One command or one in-process action of a build, ready to print, run or ship.

    Attributes:
        name: short verb phrase, e.g. ``build-engine``.
        argv: words of the command, never a shell string; empty for a packaging step.
        image: container the command belongs to, or None.
        inputs: POSIX paths relative to the workspace root.
        outputs: POSIX paths relative to the step's output directory.
        reasons: why each choice was made, keyed by flag or setting.
        output_flag: the flag whose word names the output directory; an executor puts its own there.
        gpus: GPUs the command needs, on one host.
        host_memory_bytes: estimate of the host memory that it takes at its peak; None: not known.
    """

    name: str
    argv: tuple[str, ...]
    image: str | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reasons: dict[str, str] = field(default_factory=dict)
    output_flag: str | None = None
    gpus: int = 0
    host_memory_bytes: int | None = None

    def argv_into(self, folder: str) -> tuple[str, ...]:
        """The command with its output directory at `folder`.

        Raises:
            ValueError: `output_flag` is not in the command; the lane made it, so it is our fault.
        """
        if self.output_flag is None:
            return self.argv
        at = self.argv.index(self.output_flag) + 1
        return (*self.argv[:at], folder, *self.argv[at + 1 :])

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "argv": list(self.argv),
            "image": self.image,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "reasons": dict(self.reasons),
            "output_flag": self.output_flag,
            "gpus": self.gpus,
            "host_memory_bytes": self.host_memory_bytes,
        }


@dataclass(frozen=True)
class RenderedFile:
    """A file of a rendered tree: POSIX path relative to its root, and UTF-8 text with LF."""

    path: str
    text: str

    @property
    def data(self) -> bytes:
        return self.text.encode("utf-8")
