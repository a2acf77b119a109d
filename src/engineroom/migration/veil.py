"""Keeps secrets of an old setup out of everything that is written about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from engineroom.migration import secrets
from engineroom.types.migration import OldSetup, SettingReport


class Veil:
    """Hides secrets by the names before them, by their form, and where their values are repeated.

    Attributes:
        known: values of the setup's files that their names say are secrets.
    """

    def __init__(self, setup: OldSetup) -> None:
        self.known = secrets.Known(_pairs(setup))

    def text(self, text: str) -> str:
        """A sentence with words of the files in it."""
        return self.known.hide(secrets.hidden(text))

    def page(self, text: str) -> str:
        """A whole file of ours, whose own words are kept; half a surrogate pair is written escaped."""
        return self.known.hide(text).encode("utf-8", "backslashreplace").decode()

    def data(self, value: Any) -> Any:
        """JSON data, each value by its key."""
        return self.known.tree(secrets.hidden_tree(value))

    def settings(self, rows: Iterable[SettingReport]) -> tuple[SettingReport, ...]:
        """Settings with their values hidden, each by its own name too."""
        return tuple(self._setting(row) for row in rows)

    def _setting(self, row: SettingReport) -> SettingReport:
        name = _name(row.key)
        return replace(
            row,
            key=self.known.hide(row.key),
            old_value=self.known.tree(secrets.hidden_tree(row.old_value, name)),
            new_value=self.known.tree(secrets.hidden_tree(row.new_value, row.new_key or "")),
            what=self.text(row.what),
            todo=self.text(row.todo),
        )


def _name(key: str) -> str:
    """The part of a leaf's key that names its value: `parameters.hf_token`, `variable HF_TOKEN#2`."""
    return "" if key.startswith("ensemble_scheduling.") else key


def _pairs(setup: OldSetup) -> Iterator[tuple[str, str]]:
    yield from setup.variables.items()
    for model in setup.models:
        yield from model.parameters.items()
        yield from model.filled.items()
    for call in setup.calls:
        yield "", call.program
        for flag in call.flags:
            yield flag.name, flag.value
            yield flag.name, " ".join(flag.written)
    for leaf in setup.leaves:
        if isinstance(leaf.value, str):
            yield _name(leaf.key), leaf.value
