"""What drafting a spec decides about single settings; everything else follows a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from engineroom.types.migration import BuildCall, Fate, Leaf, OldModel, OldSetup


@dataclass(frozen=True)
class Decision:
    """What became of one leaf. `source`: names of the table's `sources`."""

    fate: Fate
    new_key: str | None
    new_value: Any
    what: str
    todo: str
    source: tuple[str, ...]


@dataclass
class Draft:
    """A spec in the making.

    Attributes:
        spec: plain data of `engineroom.yaml`.
        decisions: by (file, key) of the leaf.
        missing: what the user must fill in.
        notes: what should be known and belongs to no one setting.
    """

    setup: OldSetup
    spec: dict[str, Any] = field(default_factory=dict)
    decisions: dict[tuple[str, str], Decision] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def target(self) -> dict[str, Any]:
        found: dict[str, Any] = self.spec["targets"][0]
        return found

    @property
    def serving(self) -> dict[str, Any]:
        found: dict[str, Any] = self.spec.setdefault("serving", {})
        return found

    @property
    def features(self) -> dict[str, Any]:
        found: dict[str, Any] = self.serving.setdefault("features", {})
        return found

    def decide(
        self,
        leaves: Iterable[Leaf | None],
        fate: Fate,
        new_key: str | None,
        new_value: Any,
        what: str,
        todo: str = "",
        source: tuple[str, ...] = ("spec", "contract"),
    ) -> None:
        for leaf in leaves:
            if leaf is not None:
                decision = Decision(fate, new_key, new_value, what, todo, source)
                self.decisions[leaf.file, leaf.key] = decision

    def carry(
        self,
        leaves: Iterable[Leaf | None],
        new_key: str,
        value: Any,
        what: str,
        others: Iterable[Leaf] = (),
    ) -> None:
        """The value went into the spec; a leaf that says otherwise is told whether another one says it.

        Args:
            others: leaves of the same thing whose fate is decided elsewhere.
        """
        group = [leaf for leaf in leaves if leaf is not None]
        said = any(same(self.filled(leaf), value) for leaf in [*group, *others])
        for leaf in group:
            told = what
            if self.known(leaf) and not same(self.filled(leaf), value):
                told += (
                    f"; another file or option says {value}, which holds"
                    if said
                    else f"; {value} is taken"
                )
            self.decide([leaf], Fate.MOVED, new_key, value, told)

    def filled(self, leaf: Leaf) -> Any:
        """The value with what the script puts in for placeholders of a config.pbtxt."""
        model = next((m for m in self.setup.models if m.file == leaf.file), None)
        text = leaf.value
        for name, value in model.filled.items() if model and isinstance(text, str) else ():
            text = text.replace(f"${{{name}}}", value)
        return text

    def known(self, leaf: Leaf) -> bool:
        """Whether reading alone tells the value: no variable or placeholder is left in it."""
        text = str(self.filled(leaf))
        return not any(mark in text for mark in ("${", "$(", "`"))

    # ---- leaves by what they are
    def parameter(self, key: str, *kinds: str) -> list[Leaf]:
        """Leaves of a parameter in the models of these kinds; of engine models only the service's own."""
        files = {m.file for m in self.setup.models if m.kind in kinds and self.setup.speaks(m)}
        wanted = f"parameters.{key}"
        return [leaf for leaf in self.setup.leaves if leaf.file in files and leaf.key == wanted]

    def field(self, model: OldModel, path: str) -> Leaf | None:
        return self._one(model.file, path)

    def engine(self, *paths: str) -> list[Leaf]:
        """Leaves of the engine's and the checkpoint's config.json."""
        files = [e.file for e in (self.setup.engine, self.setup.checkpoint) if e is not None]
        return [leaf for f in files for path in paths if (leaf := self._one(f, path)) is not None]

    def flags(self, call: BuildCall | None, *names: str) -> list[Leaf]:
        if call is None:
            return []
        base = f"{call.tool}[{call.index}]."
        wanted = {f"{base}{name}" for name in names}
        return [
            leaf
            for leaf in self.setup.leaves
            if leaf.file == call.file and leaf.key.partition("#")[0] in wanted
        ]

    def _one(self, file: str, key: str) -> Leaf | None:
        return next((x for x in self.setup.leaves if x.file == file and x.key == key), None)


def same(old: Any, new: Any) -> bool:
    """Whether an old value and a new one say the same: text, numbers, and words for booleans."""
    if old == new:
        return True
    text = str(old).strip().lower()
    if isinstance(new, bool):
        return text in (("true", "1", "t", "enable") if new else ("false", "0", "f", "disable"))
    if isinstance(new, (int, float)):
        try:
            return float(text) == float(new)
        except ValueError:
            return False
    return text == str(new).lower()


def number(text: str | None) -> int | None:
    """A whole number of a flag or a parameter; None where it is none or has a placeholder."""
    if text is None or not text.strip().lstrip("+").isdigit() or len(text) > 15:
        return None
    return int(text)
