"""Calls of the build and launch tools in a shell script, and every other line as a leaf."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engineroom.reading import shell
from engineroom.reading.shell import Assignment, Command, Script
from engineroom.reading.shell_values import Word
from engineroom.types.migration import BuildCall, BuildFlag, Leaf

_MODULES = {"tensorrt_llm.commands.build": "trtllm-build"}
_OPTION = re.compile(r"--?[A-Za-z][\w-]*")
_NAME = r"(?:token|secret|password|passwd|api[_-]?key|access[_-]key)"
_SECRET = re.compile(rf"(?:^|[_-]){_NAME}\Z", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|nvapi-[\w-]{20,}|ghp_[A-Za-z0-9]{20,}|github_pat_\w{20,})"
)
_SECRET_WORD = re.compile(rf"([A-Za-z_-]*{_NAME}(?:=| +))([^\s$'\"][^\s'\"]{{5,}})", re.IGNORECASE)
HIDDEN = "(not shown)"
POSITIONAL = "argument"


@dataclass
class _Counter:
    counts: dict[str, int] = field(default_factory=dict)

    def next(self, name: str) -> int:
        self.counts[name] = self.counts.get(name, -1) + 1
        return self.counts[name]


def read_script(
    file: str, text: str, tools: Sequence[str]
) -> tuple[tuple[BuildCall, ...], tuple[Leaf, ...], dict[str, str], tuple[tuple[int, str], ...]]:
    """(calls, leaves, variables with a known value, problems).

    Args:
        file: as shown in reports.
        tools: programs whose calls are read; a path before the name does not matter.
    """
    script = shell.read(text)
    calls: list[BuildCall] = []
    leaves: list[Leaf] = []
    counter = _Counter()
    for item in script.items:
        if isinstance(item, Assignment):
            at = counter.next(f"variable {item.name}")
            key = f"variable {item.name}" + (f"#{at + 1}" if at else "")
            leaves.append(
                Leaf(file, key, item.line, _hidden(item.name, item.value or item.written))
            )
            continue
        found = list(_calls(file, item, tools, counter))
        if not found:
            key = f"command[{counter.next('command')}]"
            words = " ".join(w.written for w in item.words)
            leaves.append(Leaf(file, key, item.line, _hidden("", words[:2000])))
        for call in found:
            calls.append(call)
            leaves += _leaves(call)
    known = {
        i.name: i.value for i in script.items if isinstance(i, Assignment) and i.value is not None
    }
    return tuple(calls), tuple(leaves), known, _problems(script)


def _problems(script: Script) -> tuple[tuple[int, str], ...]:
    return script.problems


def _hidden(name: str, text: str) -> str:
    """Secrets stay out of reports, whoever put them into the script."""
    if name and _SECRET.search(name) and text and not text.startswith("$"):
        return HIDDEN
    return _SECRET_WORD.sub(rf"\1{HIDDEN}", _SECRET_VALUE.sub(HIDDEN, text))


def _calls(
    file: str, command: Command, tools: Sequence[str], counter: _Counter
) -> Iterator[BuildCall]:
    """The calls in one command: mpirun starts several programs, each after a `:`."""
    if not any(_tool(word, tools) for word in command.words):
        return
    for words in _programs(command.words):
        at = next((i for i, w in enumerate(words) if _tool(w, tools) not in (None, "mpirun")), None)
        launcher = next((i for i, w in enumerate(words) if _tool(w, tools) == "mpirun"), None)
        if launcher is not None or (at and words[0].written.startswith("-")):
            start = 0 if launcher is None else launcher + 1
            yield _call(file, "mpirun", words[: launcher or 0], words[start:at], command, counter)
        if at is not None:
            tool = _tool(words[at], tools) or ""
            yield _call(file, tool, words[: at + 1], words[at + 1 :], command, counter)


def _programs(words: Sequence[Word]) -> Iterator[Sequence[Word]]:
    start = 0
    for at, word in enumerate(words):
        if word.values == (":",) and at:
            yield words[start:at]
            start = at + 1
    yield words[start:]


def _tool(word: Word, tools: Sequence[str]) -> str | None:
    for value in word.values[:1]:
        name = value.rsplit("/", 1)[-1]
        name = _MODULES.get(name, name)
        if name in tools:
            return name
    return None


def _call(
    file: str,
    tool: str,
    program: Sequence[Word],
    rest: Sequence[Word],
    command: Command,
    counter: _Counter,
) -> BuildCall:
    return BuildCall(
        file=file,
        line=(program[-1] if program else rest[0] if rest else command).line,
        tool=tool,
        index=counter.next(tool),
        program=" ".join(value for word in program for value in word.values),
        flags=tuple(_flags(rest)),
    )


def _flags(words: Sequence[Word]) -> Iterator[BuildFlag]:
    """Options with the words that follow them, one piece a value where a variable holds several."""
    name, written, values, unresolved, line = "", [""], [""], [""], 0
    open_ = False

    def done() -> Iterator[BuildFlag]:
        if open_:
            yield BuildFlag(
                name, tuple(written), tuple(values), line, tuple(dict.fromkeys(unresolved))
            )

    for word in words:
        for i, value in enumerate(word.values):
            found = _OPTION.match(value)
            first, equals, inner = value.partition("=")
            if found and (found.end() == len(value) or (equals and found[0] == first)):
                yield from done()
                name, line, open_ = first, word.line, True
                values = [inner] if equals else []
                written = [word.written] if equals and len(word.values) == 1 else []
                unresolved = list(word.unresolved) if equals else []
            elif open_ and name != POSITIONAL:
                values.append(value)
                unresolved += word.unresolved
                written += [] if i and len(word.values) > 1 else [word.written]
            else:
                yield from done()
                name, line, open_ = POSITIONAL, word.line, True
                written, values, unresolved = [word.written], [value], list(word.unresolved)
    yield from done()


def _leaves(call: BuildCall) -> Iterator[Leaf]:
    base = f"{call.tool}[{call.index}]"
    if not call.flags:
        yield Leaf(call.file, base, call.line, call.program)
    counts = _Counter()
    for flag in call.flags:
        at = counts.next(flag.name)
        name = f"{base}.{flag.name}" + (f"#{at + 1}" if at else "")
        yield Leaf(call.file, name, flag.line, _hidden(flag.name, flag.value))


def flag_key(call: BuildCall, flag: BuildFlag) -> str:
    """The key of the flag's leaf."""
    same = [f for f in call.flags if f.name == flag.name]
    at = next(i for i, f in enumerate(same) if f is flag)
    return f"{call.tool}[{call.index}].{flag.name}" + (f"#{at + 1}" if at else "")


FILL_DEFAULTS = {"max_queue_size": "0", "max_queue_delay_microseconds": "0"}
"""What fill_template.py puts in where a call names no value (@ v0.19.0)."""


def substitutions(calls: Sequence[BuildCall]) -> dict[str, dict[str, str]]:
    """Model folder to the values that `fill_template.py` calls put into its config.pbtxt.

    A value with an unknown variable in it is left out.
    """
    found: dict[str, dict[str, str]] = {}
    for call in calls:
        if call.tool != "fill_template.py":
            continue
        words = [
            v for f in call.flags if f.name in ("-i", "--in_place", POSITIONAL) for v in f.values
        ]
        path = next((w for w in words if w.endswith(".pbtxt")), None)
        pairs = next((w for w in words if ":" in w and not w.endswith(".pbtxt")), "")
        if path is None:
            continue
        folder = path.replace("\\", "/").rpartition("/")[0].rpartition("/")[2]
        target = found.setdefault(folder, dict(FILL_DEFAULTS))
        for pair in _split(pairs, ","):
            name, *value = _split(pair, ":")
            if value and "${" not in value[0] and "$(" not in value[0]:
                target[name.replace("\\", "")] = ":".join(value).replace("\\", "")
    return found


def _split(text: str, mark: str) -> list[str]:
    """At marks that no backslash is before; the backslashes stay."""
    parts, current, escaped = [], "", False
    for char in text:
        if escaped or char == "\\":
            current += char
            escaped = not escaped and char == "\\"
        elif char == mark:
            parts.append(current)
            current = ""
        else:
            current += char
    return [*parts, current]
