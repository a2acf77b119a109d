"""What a failed step's log says, by the rows that `explain-log` knows."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path

from engineroom.catalog import Catalog
from engineroom.errors import EngineroomError
from engineroom.names import Severity
from engineroom.pipeline.explain_log import Known, explain_log
from engineroom.runner.executors import StepFailed


@contextlib.contextmanager
def explained(catalog: Catalog) -> Iterator[None]:
    """Add to a StepFailed of this block what its log says; every other error passes.

    The rows are those of `catalog`. An executor cannot do this itself: it lies below `explain_log`.

    Raises:
        StepFailed: with the same log, tail and code; its hint says more.
    """
    try:
        yield
    except StepFailed as error:
        overlay = catalog.roots[-1] if len(catalog.roots) > 1 else None
        error.hint = "\n  ".join(
            text for text in (error.hint, *_hints(error.log, overlay)) if text is not None
        )
        raise


def _hints(log: Path, overlay: Path | None) -> list[str]:
    """The root cause among the log's known lines, and where to read the rest."""
    more = f"engineroom explain-log {shlex.quote(log.as_posix())}"
    try:
        explanation = explain_log(str(log), catalog=overlay)
    except EngineroomError:
        return []  # a log that cannot be read explains nothing; the failure is the message
    root = next((k for k in explanation.known if k.severity is Severity.ERROR), None)
    return [] if root is None else [_words(root), f"more: {more}"]


def _words(known: Known) -> str:
    row = known.row
    cause, step = row.fill(row.cause, known.values), row.fill(row.next_step, known.values)
    return f"line {known.line} of the log ({row.id}): {cause} {step}"
