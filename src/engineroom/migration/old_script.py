"""Calls of the build and launch tools in a shell script, and every other line as a leaf."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from engineroom.migration import secrets
from engineroom.reading import shell
from engineroom.reading.shell import Assignment, Command
from engineroom.reading.shell_values import Word, holds
from engineroom.types.migration import BuildCall, BuildFlag, Leaf

_MODULES = {"tensorrt_llm.commands.build": "trtllm-build"}
_OPTION = re.compile(r"--?[A-Za-z][\w-]*")
_SAYS = frozenset(
    {"echo", "printf", ":", "true", "false", "logger", "which", "type", "hash", "alias", "grep", "egrep",
     "sed", "awk", "test", "[", "[[", "cat", "ls", "rm", "cp", "mv", "mkdir", "touch", "chmod", "chown",
     "pip", "pip3", "apt", "apt-get", "yum", "man", "tee", "head", "tail", "read"}
)  # fmt: skip
"""Programs whose words are no calls, even where they name a tool."""
_PATHS = (
    "--checkpoint_dir",
    "--output_dir",
    "--engine_dir",
    "--model_dir",
    "-i",
    "-o",
    "-m",
    "--in_place",
)
"""Options whose relative path starts where the script's ``cd`` went."""
_LOCAL = ("--checkpoint_dir", "--output_dir", "--engine_dir")
_SHOWN = 2000
"""Characters of a value in reports."""
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
    leaves: list[Leaf] = []
    counter = _Counter()
    found: list[tuple[Command, list[BuildCall]]] = []
    for item in script.items:
        if isinstance(item, Command):
            flat = replace(item, words=_flat(item.words))
            found.append((flat, list(_calls(file, flat, tools, counter))))
    runs = {c.tool for command, calls in found if not command.uncalled for c in calls}
    commands = iter(found)
    counter, calls = _Counter(), []
    problems = list(script.problems)
    for item in script.items:
        if isinstance(item, Assignment):
            at = counter.next(f"variable {item.name}")
            key = f"variable {item.name}" + (f"#{at + 1}" if at else "")
            shown = item.written if item.value is None else item.value
            leaves.append(Leaf(file, key, item.line, _hidden(item.name, shown)))
            continue
        command, here = next(commands)
        taken = [c for c in here if not command.uncalled or c.tool not in runs]
        if not taken:
            key = f"command[{counter.next('command')}]"
            words = secrets.hidden_words(w.written for w in item.words)
            told = f"({item.uncalled}) " if item.uncalled else ""
            leaves.append(Leaf(file, key, item.line, told + _hidden("", words)))
        for call in taken:
            call = replace(call, index=counter.next(call.tool))
            calls.append(call)
            leaves += _leaves(call)
            if command.uncalled:
                problems.append(
                    (call.line, f"{call.tool} stands only {command.uncalled}: taken as if it ran")
                )
    for document in script.documents:
        named = [tool for tool in tools if tool in document.text]
        if named:
            problems.append(
                (document.line, f"a text that is written to a file names {named[0]}: not read; "
                 "give that file as --build-script, if it builds the engine")
            )  # fmt: skip
    known = {
        i.name: i.value
        for i in script.items
        if isinstance(i, Assignment) and i.value is not None and i.certain
    }
    return tuple(calls), tuple(leaves), known, tuple(sorted(problems))


def _flat(words: Sequence[Word]) -> tuple[Word, ...]:
    """One word a value: a variable may hold a whole command.

    A value with an unknown part is split around it, as blanks inside ``$(…)`` split nothing.
    """
    flat: list[Word] = []
    for word in words:
        pieces = list(word.values)
        if word.unresolved and word.written.startswith("$"):
            pieces = [p for v in word.values for p in _blanks(v)]
        if len(pieces) == 1 and len(word.values) == 1:
            flat.append(word)
            continue
        for at, piece in enumerate(pieces):
            unknown = tuple(n for n in word.unresolved if holds(piece, n))
            flat.append(Word("" if at else word.written, (piece,), unknown, word.line))
    return tuple(flat)


def _blanks(text: str) -> list[str]:
    """Split at blanks outside ``${…}``, ``$(…)`` and backquotes."""
    parts, current, depth, quoted = [], "", 0, False
    for at, char in enumerate(text):
        depth += (char in "{(" and (depth > 0 or text[at - 1 : at] == "$")) - (
            char in "})" and depth > 0
        )
        quoted ^= char == "`"
        if char.isspace() and not depth and not quoted:
            parts.append(current)
            current = ""
        else:
            current += char
    whole = [p for p in [*parts, current] if p]
    return whole if not depth and not quoted else [text]


def _hidden(name: str, text: str) -> str:
    """Secrets stay out of reports, whoever put them into the script."""
    clean = secrets.hidden_value(name, text[: 4 * _SHOWN])  # a secret at the cut is not shown
    return clean if len(clean) <= _SHOWN else clean[:_SHOWN] + " …"


def _calls(
    file: str, command: Command, tools: Sequence[str], counter: _Counter
) -> Iterator[BuildCall]:
    """The calls in one command: mpirun starts several programs, each after a `:`."""
    first = next((v for w in command.words for v in w.values), "").rsplit("/", 1)[-1]
    if first in _SAYS or not any(_tool(word, tools) for word in command.words):
        return
    if [v for w in command.words for v in w.values][:2] in (["command", "-v"], ["command", "-V"]):
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
        flags=tuple(_from(command.folder, flag) for flag in _flags(rest)),
    )


def _from(folder: str, flag: BuildFlag) -> BuildFlag:
    """Relative paths of an option, from the folder that the script went to."""
    if not folder or flag.name not in (*_PATHS, POSITIONAL):
        return flag
    return replace(
        flag,
        values=tuple(
            f"{folder}/{v.removeprefix('./')}"
            if v.startswith(("./", "../"))
            or (flag.name in _LOCAL and v and v[0] not in "/$~")
            or (v.endswith(".pbtxt") and v[0] not in "/$~" and ":" not in v)
            else v
            for v in flag.values
        ),
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
                written = [word.written or value] if equals and len(word.values) == 1 else []
                unresolved = list(word.unresolved) if equals else []
            elif open_ and name != POSITIONAL:
                values.append(value)
                unresolved += word.unresolved
                written += [word.written] if word.written and not i else []
            else:
                yield from done()
                name, line, open_ = POSITIONAL, word.line, True
                written, values, unresolved = (
                    [word.written or value],
                    [value],
                    list(word.unresolved),
                )
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
