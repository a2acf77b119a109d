"""Where a build is, read from the lines of its log.

`trtllm-build` has no progress of its own, but says when each part of its work is over, once a rank;
with several workers the ranks' lines mix and do not say whose they are, so parts are counted. A line
that is not known changes nothing.

Sources of the wording: logs in NVIDIA/TensorRT-LLM issues #2894 (network and weights, 0.17) and #2324
(compiling and writing, 0.13), examples/models/core/gpt/README.md (``--workers``, end of a build), and
collabora/WhisperLive issue #369 (all of it, 2025).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

STEPS: tuple[tuple[str, str], ...] = (
    ("network", "Total time of constructing network from module object"),
    ("weights", "Build TensorRT engine "),
    ("compiling", "Engine generation completed in "),
    ("writing", "Engine serialized. Total time:"),
)
"""(phase, text of the line that ends it), in their order, each once a rank."""

END = "Total time of building all engines"
FINISHING = "finishing"
MAX_LINE = 2000
"""Characters of a line that are looked at: the tool's own lines are short."""

_ANSI = re.compile(r"\x1b\[[0-9;]{0,20}m")


@dataclass(frozen=True)
class Progress:
    """A phase of a build and how much of the whole is done.

    Attributes:
        phase: short words for a person, e.g. ``compiling``.
        done: parts that are over, of `total`; never falls, but a step that is started again begins anew.
    """

    phase: str
    done: int
    total: int


class PhaseReader:
    """Reads one run's log, line by line.

    Args:
        ranks: engines that the build makes.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = max(1, ranks)
        self._ended = [0] * len(STEPS)
        self._over = False

    @property
    def progress(self) -> Progress:
        total = self.ranks * len(STEPS) + 1
        if self._over:
            return Progress(FINISHING, total, total)
        # The phase of the rank that is furthest: the others say the same a little later.
        open_phases = [name for (name, _), n in zip(STEPS, self._ended) if n < self.ranks]
        ahead = max((i for i, n in enumerate(self._ended) if n), default=-1) + 1
        phase = STEPS[ahead][0] if ahead < len(STEPS) else (open_phases or [FINISHING])[-1]
        return Progress(phase, sum(self._ended), total)

    def feed(self, line: str) -> Progress | None:
        """The new state when the line changed it, else None."""
        before = self.progress
        text = _ANSI.sub("", line[:MAX_LINE])
        for at, (_, words) in enumerate(STEPS):
            if words in text:
                self._ended[at] = min(self.ranks, self._ended[at] + 1)
                # A version that does not print an earlier line has done that part nevertheless.
                for earlier in range(at):
                    self._ended[earlier] = max(self._ended[earlier], self._ended[at])
        if END in text:
            self._over = True
        after = self.progress
        return after if after != before else None
