"""One error family; ``cli`` maps it to a message and an exit code in one place.

Each error says what is wrong, where (file and key path), why, and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from engineroom.names import ExitCode


@dataclass(frozen=True)
class Where:
    """A place in a user's file: path, 1-based line, dotted key path; any part may be missing."""

    file: str | None = None
    line: int | None = None
    key: str | None = None

    def __str__(self) -> str:
        place = self.file or ""
        if self.line is not None:
            place += f":{self.line}"
        if self.key:
            place = f"{place}: `{self.key}`" if place else f"`{self.key}`"
        return place


class EngineroomError(Exception):
    """Base of everything engineroom raises on purpose.

    Args:
        message: what is wrong, and why.
        hint: the fix, as a line to type or a value to set.
        where: file, line and key path.
    """

    exit_code: ExitCode = ExitCode.INTERNAL

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        where: Where | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where

    def render(self) -> str:
        """The message as the terminal shows it, without a trailing newline."""
        head = f"{self.where}: {self.message}" if self.where and str(self.where) else self.message
        return f"error: {head}" + (f"\n  fix: {self.hint}" if self.hint else "")

    def as_dict(self) -> dict[str, object]:
        """The same facts for ``--log-format json``."""
        where = self.where or Where()
        return {
            "level": "error",
            "message": self.message,
            "hint": self.hint,
            "file": where.file,
            "line": where.line,
            "key": where.key,
            "exit_code": int(self.exit_code),
        }


class UsageError(EngineroomError):
    """Bad arguments or a file the user named that is not what it should be."""

    exit_code = ExitCode.USAGE


class SpecError(UsageError):
    """A spec that does not validate; carries every problem found, not only the first."""

    def __init__(self, problems: list[UsageError]) -> None:
        if not problems:
            raise ValueError("a SpecError needs at least one problem")
        super().__init__(problems[0].message, hint=problems[0].hint, where=problems[0].where)
        self.problems = problems

    def render(self) -> str:
        return "\n".join(problem.render() for problem in self.problems)


class CatalogError(UsageError):
    """A catalog file (shipped or overlaid) that breaks its schema."""


class FindingsError(EngineroomError):
    """A verb refuses to go on because the checks found errors."""

    exit_code = ExitCode.FINDINGS


class ExternalToolError(EngineroomError):
    """A tool we started ended badly; its own code is in the message."""

    exit_code = ExitCode.EXTERNAL


class MissingError(EngineroomError):
    """A missing extra, tool, platform or GPU."""

    exit_code = ExitCode.MISSING


class InternalError(EngineroomError):
    """A state that our own code should have made impossible."""

    exit_code = ExitCode.INTERNAL


def missing_extra(extra: str, module: str) -> MissingError:
    """The answer when an optional dependency is not installed."""
    return MissingError(
        f"this verb needs `{module}`, which is not installed",
        hint=f"pip install 'engineroom[{extra}]'",
    )


def artefact_error(path: PurePath | str, reason: str, *, hint: str | None = None) -> UsageError:
    """The answer when a file on disk is not the artefact it claims to be."""
    return UsageError(reason, where=Where(file=str(path)), hint=hint)
