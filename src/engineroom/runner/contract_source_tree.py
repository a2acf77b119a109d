"""Reads a TensorRT-LLM source tree as text and syntax trees; nothing in it is ever imported or run.

The tree is somebody else's, so every read is bounded: size, line length, nesting, number of modules.
"""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from engineroom.errors import UsageError, Where

T = TypeVar("T")

# The largest file that is read upstream, llm_args.py of late 2026, has about 315,000 characters.
MAX_BYTES = 4 << 20
MAX_LINE = 100_000
MAX_MODULES = 400
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Unknown:
    """A part of the contract that could not be read, and why."""

    path: str
    reason: str

    def as_dict(self) -> dict[str, str]:
        return {"path": self.path, "reason": self.reason}


@dataclass(frozen=True)
class Module:
    """One parsed file: what its top level defines and imports.

    `imports` maps a local name to (dotted module, name in it); the name is None for `import x`.
    """

    path: str
    body: ast.Module
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    assigns: dict[str, ast.expr] = field(default_factory=dict)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)


class SourceTree:
    """Files below one directory.

    Raises:
        UsageError: the root is no directory.
    """

    def __init__(self, root: Path, option: str = "--from-source") -> None:
        if not root.is_dir():
            what, holds = (
                ("source tree", "`tensorrt_llm/`, as in a checkout")
                if option == "--from-source"
                else ("folder of Triton families", "`inflight_batcher_llm/` or `llmapi/`")
            )
            raise UsageError(
                f"the {what} is not a directory",
                where=Where(root.as_posix(), key=option),
                hint=f"name the folder that holds {holds}",
            )
        self.root = root
        self.unknown: list[Unknown] = []
        self.digests: dict[str, str] = {}
        self._modules: dict[str, Module | None] = {}

    def note(self, path: str, reason: str) -> None:
        """Record that a part of the contract stays unknown; the first reason for a path is kept."""
        if all(item.path != path for item in self.unknown):
            self.unknown.append(Unknown(path, reason))

    # ---- files
    def has(self, name: str) -> bool:
        return (self.root / name).is_file()

    def folders(self, name: str) -> list[str]:
        base = self.root / name
        return sorted(p.name for p in base.iterdir() if p.is_dir()) if base.is_dir() else []

    def text(self, name: str) -> str:
        """A file's text.

        Raises:
            UsageError: it is outside the root, too large, has a huge line, or is not UTF-8.
        """
        path = self.root / name
        if not path.resolve().is_relative_to(self.root.resolve()):
            raise _refuse(path, "is a link that leaves the source tree")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise _refuse(path, f"has {size} bytes, more than the {MAX_BYTES} that are read")
        raw = path.read_bytes()
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _refuse(path, f"is not UTF-8 at byte {error.start}") from None
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > MAX_LINE:
                raise _refuse(path, f"has a line of {len(line)} characters", number)
        self.digests[name] = hashlib.sha256(raw).hexdigest()
        return text

    # ---- modules
    def module(self, name: str, *, needed: bool = False) -> Module | None:
        """The parsed file, or None when it is absent or (unless `needed`) has a syntax error.

        Raises:
            UsageError: a hostile file; with `needed` also a syntax error.
        """
        if name not in self._modules:
            if len(self._modules) >= MAX_MODULES:
                raise _refuse(self.root / name, f"is more than the {MAX_MODULES} modules followed")
            self._modules[name] = self._parse(name, needed) if self.has(name) else None
        return self._modules[name]

    def _parse(self, name: str, needed: bool) -> Module | None:
        text = self.text(name)
        path = self.root / name
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # odd escapes in upstream's strings
                body = ast.parse(text)
        except SyntaxError as error:
            if needed or "nested" in str(error.msg):
                raise _refuse(path, f"is not Python here: {error.msg}", error.lineno) from None
            self.note(name, f"line {error.lineno}: {error.msg}")
            return None
        except (ValueError, RecursionError, MemoryError):
            raise _refuse(path, "is nested too deeply, or has a null byte") from None
        module = Module(name, body)
        for statement, first in _top_level(body.body):
            _enter(module, statement, first)
        return module

    def dotted(self, name: str) -> Module | None:
        """The module of a dotted name below `tensorrt_llm`."""
        parts = name.split(".")
        if parts[0] != "tensorrt_llm" or not all(part.isidentifier() for part in parts):
            return None
        base = "/".join(parts)
        return self.module(f"{base}.py") or self.module(f"{base}/__init__.py")

    # ---- git
    def commit(self) -> str | None:
        """The commit of a checkout, read from its `.git` directory; None for an exported tree."""
        git = self.root / ".git"
        try:
            head = (git / "HEAD").read_text(encoding="utf-8")[:200].strip()
            if head.startswith("ref: "):
                ref = head[5:]
                if not re.fullmatch(r"[\w./-]+", ref) or ".." in ref:
                    return None
                loose = git / ref
                if loose.is_file():
                    head = loose.read_text(encoding="utf-8")[:200].strip()
                else:
                    packed = (git / "packed-refs").read_text(encoding="utf-8")[:MAX_BYTES]
                    head = next((row[:40] for row in packed.splitlines() if row[41:] == ref), "")
        except (OSError, UnicodeDecodeError):
            return None
        return head if _COMMIT.fullmatch(head) else None


def _refuse(path: Path, reason: str, line: int | None = None) -> UsageError:
    return UsageError(
        f"the file {reason}",
        where=Where(path.as_posix(), line),
        hint="give an unchanged TensorRT-LLM source tree (a checkout, or `git archive`)",
    )


def _top_level(
    body: Iterable[ast.stmt], first: bool = True, depth: int = 0
) -> Iterator[tuple[ast.stmt, bool]]:
    """Top-level statements, those below `if` and `try` included; False marks alternatives."""
    for statement in body:
        if isinstance(statement, ast.If | ast.Try) and depth < 5:
            yield from _top_level(statement.body, first, depth + 1)
            rest = list(statement.orelse)
            if isinstance(statement, ast.Try):
                rest += [s for handler in statement.handlers for s in handler.body]
            yield from _top_level(rest, False, depth + 1)
        else:
            yield statement, first


def _enter(module: Module, statement: ast.stmt, first: bool) -> None:
    if isinstance(statement, ast.ClassDef):
        _put(module.classes, statement.name, statement, first)
    elif isinstance(statement, ast.FunctionDef):
        _put(module.functions, statement.name, statement, first)
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                _put(module.assigns, target.id, statement.value, first)
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        if isinstance(statement.target, ast.Name):
            _put(module.assigns, statement.target.id, statement.value, first)
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            local = alias.asname or alias.name.split(".")[0]
            dotted = alias.name if alias.asname else local
            _put(module.imports, local, (dotted, None), first)
    elif isinstance(statement, ast.ImportFrom):
        source = _absolute(module.path, statement.module, statement.level)
        for alias in statement.names:
            _put(module.imports, alias.asname or alias.name, (source, alias.name), first)


def _put(table: dict[str, T], name: str, value: T, first: bool) -> None:
    if first:
        table[name] = value
    else:
        table.setdefault(name, value)


def _absolute(path: str, name: str | None, level: int) -> str:
    """The dotted module of an import; `level` counts the leading dots."""
    if level == 0:
        return name or ""
    package = path.removesuffix(".py").removesuffix("/__init__").split("/")
    up = level - 1 if path.endswith("/__init__.py") else level
    kept = package[: len(package) - up] if up else package
    return ".".join([*kept, *([name] if name else [])])
