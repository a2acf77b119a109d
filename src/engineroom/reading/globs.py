"""The two glob languages that Helm uses, matched in time linear in the text.

`.helmignore` has Go's filepath.Match (`*` stops at `/`, no `**`); `.Files.Glob` has gobwas/glob with
`/` as separator (`*` stops at it, `**` does not, `{a,b}` are alternatives).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

MAX_PATTERN = 1_000
MAX_TEXT = 4_000
_Step = tuple[str, Callable[[str], bool] | None]


class PatternError(ValueError):
    """A pattern that Helm refuses."""


def path_match(pattern: str, path: str) -> bool:
    """filepath.Match.

    Raises:
        PatternError: a class that is not closed, or a dangling backslash.
    """
    return _run(_steps(pattern, double_star=False, negation="^"), path)


def files_match(pattern: str, path: str) -> bool:
    """Whether `.Files.Glob` of the pattern holds the path; a broken pattern holds every file."""
    try:
        return any(
            _run(_steps(p, double_star=True, negation="!"), path) for p in _alternatives(pattern)
        )
    except PatternError:
        return True


def _run(steps: tuple[_Step, ...], text: str) -> bool:
    if len(text) > MAX_TEXT:
        return False
    states = _closure({0}, steps)
    for char in text:
        following = set()
        for at in states:
            if at >= len(steps):
                continue
            kind, accepts = steps[at]
            if kind == "**" or (kind == "*" and char != "/"):
                following.add(at)
            elif accepts is not None and accepts(char):
                following.add(at + 1)
        states = _closure(following, steps)
        if not states:
            return False
    return len(steps) in states


def _closure(states: set[int], steps: tuple[_Step, ...]) -> set[int]:
    """Stars may match nothing."""
    out = set()
    for at in states:
        out.add(at)
        while at < len(steps) and steps[at][1] is None:
            at += 1
            out.add(at)
    return out


@lru_cache(maxsize=512)
def _steps(pattern: str, *, double_star: bool, negation: str) -> tuple[_Step, ...]:
    if len(pattern) > MAX_PATTERN:
        raise PatternError("a pattern too long to be one")
    steps: list[_Step] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "*":
            double = double_star and pattern.startswith("**", at)
            at += 1 if double else 0
            steps.append(("**" if double else "*", None))
        elif char == "?":
            steps.append(("?", lambda c: c != "/"))
        elif char == "[":
            accepts, at = _class(pattern, at + 1, negation)
            steps.append(("class", accepts))
        else:
            if char == "\\":
                at += 1
                if at >= len(pattern):
                    raise PatternError("a backslash at the end")
            steps.append(("char", pattern[at].__eq__))
        at += 1
    return tuple(steps)


def _class(pattern: str, at: int, negation: str) -> tuple[Callable[[str], bool], int]:
    """The test of `[…]` whose content begins at `at`, and where it ends."""
    negated = pattern[at : at + 1] == negation
    at += 1 if negated else 0
    ranges: list[tuple[str, str]] = []
    while at < len(pattern) and (pattern[at] != "]" or not ranges):
        low, at = _class_char(pattern, at)
        high = low
        if pattern[at : at + 1] == "-":
            high, at = _class_char(pattern, at + 1)
        ranges.append((low, high))
    if at >= len(pattern):
        raise PatternError("a class that is not closed")
    return lambda c: c != "/" and any(a <= c <= b for a, b in ranges) != negated, at


def _class_char(pattern: str, at: int) -> tuple[str, int]:
    if pattern[at : at + 1] == "\\":
        at += 1
    if at >= len(pattern) or pattern[at] == "]":
        raise PatternError("a class that is not closed")
    return pattern[at], at + 1


def _alternatives(pattern: str) -> list[str]:
    """`a{b,c}` as `ab` and `ac`; at most 100."""
    done: list[str] = []
    todo = [pattern]
    while todo and len(done) < 100:
        text = todo.pop()
        start = text.find("{")
        end = text.find("}", start)
        if start < 0 or end < 0:
            done.append(text)
            continue
        inner = text.rfind("{", start, end)
        for choice in text[inner + 1 : end].split(","):
            if len(todo) < 200:
                todo.append(text[:inner] + choice + text[end + 1 :])
    return done
