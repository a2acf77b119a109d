"""Ranges of the executors' options: a number that is out of range is refused by name, before anything
starts."""

from __future__ import annotations

import math
import re
from pathlib import PurePosixPath

from engineroom.errors import UsageError, Where

MAX_RETRIES = 100
"""More starts than this are a loop, not a retry."""
MAX_SECONDS = 86400.0
MIN_POLL = 0.05
"""Seconds; each look at a Job is a process and a request to the API server."""
MAX_UID = (1 << 31) - 1
"""As Kubernetes has it (apimachinery, util/validation: IsValidUserID), and less than any system takes."""

_DOCKER_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?")


def check_retries(executor: str, value: int) -> None:
    """Raises UsageError."""
    _check_number(executor, "retries", value, 0, MAX_RETRIES, whole=True)


def check_user(executor: str, value: int) -> None:
    """Raises UsageError."""
    _check_number(executor, "user", value, 0, MAX_UID, whole=True)


def check_seconds(executor: str, option: str, value: float, low: float = 0.0) -> None:
    """Raises UsageError."""
    _check_number(executor, option, value, low, MAX_SECONDS)


def check_docker_user(executor: str, value: str) -> None:
    """``uid:gid``, a number or a name each; empty is the default. Raises UsageError."""
    if value and not _DOCKER_USER.fullmatch(value):
        raise _refused(executor, "user", value, "it is uid:gid, such as 1000:1000")


def check_sub_path(executor: str, value: str) -> None:
    """A folder of the claim: relative, and not above it, as Kubernetes demands. Raises UsageError."""
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or "\0" in value:
        raise _refused(executor, "sub_path", value, "it is a folder of the claim, without `..`")


def _check_number(
    executor: str, option: str, value: float, low: float, high: float, *, whole: bool = False
) -> None:
    kinds = (int,) if whole else (int, float)
    number = isinstance(value, kinds) and not isinstance(value, bool)
    # Compared before `isfinite`, which a very large int does not fit into.
    if not number or not low <= value <= high or not math.isfinite(value):
        kind = "a whole number" if whole else "a number"
        raise _refused(executor, option, value, f"it is {kind} from {low:g} to {high:.10g}")


def _refused(executor: str, option: str, value: object, why: str) -> UsageError:
    text = repr(value) if isinstance(value, str) else _short(value)
    return UsageError(
        f"{text[:60]} does not fit the option `{option}` of the executor `{executor}`: {why}",
        where=Where(key="--executor-option"),
    )


def _short(value: object) -> str:
    try:
        return str(value)
    except ValueError:  # a number of more digits than Python prints
        return "a number of thousands of digits"
