"""`matrix diff --file`: the settings of a spec that a change of version touches.

Both sides are computed by the lanes themselves: what engineroom writes for the old version, and for
the new one. A setting whose value is written out is not touched by a new default.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from engineroom.catalog import Contract
from engineroom.catalog.contract_index import ContractIndex, Key, index
from engineroom.catalog.value_diff import fits
from engineroom.catalog.version_change import Change, ChangeKind
from engineroom.errors import EngineroomError, UsageError
from engineroom.names import KvCacheFormat, Support
from engineroom.pipeline.job import Job, ResolvedTarget
from engineroom.pipeline.matrix import ReleaseDiff
from engineroom.pipeline.matrix_affected import Affected, SpecDiff
from engineroom.pipeline.matrix_emitted import (
    LEFT_TO_DEFAULT,
    emitted,
    in_use,
    setting_of,
    short_name,
    without_model,
)
from engineroom.planning.support_matrix import lane_support
from engineroom.types import StackRelease


def diff_spec(job: Job, change: ReleaseDiff) -> SpecDiff:
    """Which settings of the spec the change touches, taking every target to be on the old side.

    Raises:
        SpecError: the spec names an unknown SKU or stack.
    """
    affected: list[Affected] = []
    unknown: list[str] = []
    defaults: dict[tuple[str, str], tuple[str, str, Any, Any, bool]] = {}
    sides = _Sides(
        change,
        index(change.old_contract) if change.old_contract else None,
        index(change.new_contract) if change.new_contract else None,
    )
    try:
        _ = job.shape
    except UsageError as error:
        unknown.append(f"the model is not here, so its own sizes are not known: {error.message}")
        job = without_model(job)
    for item in job.targets:
        if not item.stack.tensorrt_llm:
            unknown.append(
                f"{item.target.id}: it runs on {item.stack.runtime_name}, which this comparison of "
                "TensorRT-LLM versions says nothing about"
            )
            continue
        touched = _Target(job, item, sides)
        affected += touched.run()
        unknown += touched.unknown
        defaults |= {row[:2]: row for row in touched.new_defaults()}
    ordered = {(a.target, a.setting, a.emitted, a.kind): a for a in affected}
    return SpecDiff(tuple(ordered.values()), tuple(defaults.values()), tuple(unknown))


@dataclass(frozen=True)
class _Sides:
    """The change with both contracts indexed."""

    change: ReleaseDiff
    old: ContractIndex | None
    new: ContractIndex | None


class _Target:
    """One target on both sides of the change."""

    def __init__(self, job: Job, item: ResolvedTarget, sides: _Sides) -> None:
        self.job, self.item, self.sides = job, item, sides
        self.change = change = sides.change
        self.unknown: list[str] = []
        self.old = self._emitted(change.old, change.old_contract, sides.old)
        self.new = None
        lane, version = item.target.lane, change.new.tensorrt_llm
        gone = lane_support(job.catalog, lane, version)[0] is Support.NO
        if self.old is not None and not gone:
            self.new = self._emitted(change.new, change.new_contract, sides.new)

    def _emitted(
        self, stack: StackRelease, contract: Contract | None, names: ContractIndex | None
    ) -> dict[Key, Any] | None:
        if contract is None or names is None:
            self.unknown.append(
                f"{self.item.target.id}: no contract of TensorRT-LLM {stack.tensorrt_llm}, so what "
                "engineroom would write there is unknown"
            )
            return None
        try:
            return emitted(self.job, self.item, stack, contract, names)
        except EngineroomError as error:
            self.unknown.append(f"{self.item.target.id} on {stack.id}: {error.message}")
            return None

    def run(self) -> list[Affected]:
        found = self._lane() + self._support() + self._driver()
        if self.old is None or self.sides.old is None:
            return found
        for change in self.change.changes:
            for name in change.old_names:
                key = (change.area, name)
                if key in self.old:
                    effect = self._effect(change, self.old[key])
                    if effect is not None:
                        found.append(self._affected(key, self.old[key], change, effect))
        for change in self._redefaulted():
            if short_name(change.name) in LEFT_TO_DEFAULT:
                found.append(self._left_to_default(change))
        return found

    def new_defaults(self) -> Iterator[tuple[str, str, Any, Any, bool]]:
        """Re-defaulted names in use that no setting of a spec reaches."""
        for c in self._redefaulted():
            if short_name(c.name) not in LEFT_TO_DEFAULT:
                lane = str(self.item.target.lane)
                yield lane, c.name, c.old_value, c.new_value, c.certain

    def _redefaulted(self) -> Iterator[Change]:
        return in_use(self.change.changes, self.old or {}, self.sides.old)

    def _effect(self, change: Change, value: Any) -> str | None:
        """What happens to a written value, or None when nothing does."""
        version = self.change.new.tensorrt_llm
        names = ", ".join(change.new_names)
        new = self.sides.new
        entry = new.entries.get((change.area, change.new_names[0])) if new and names else None
        doubt = f" ({change.note})" if change.note else ""
        if change.kind is ChangeKind.REMOVED:
            return f"{version} does not have it{doubt}"
        if change.kind in (ChangeKind.RENAMED, ChangeKind.MOVED):
            return f"{version} calls it {names}{doubt}"
        if change.kind is ChangeKind.DEPRECATED:
            return f"{version} still takes it, as deprecated{doubt}"
        if change.kind is ChangeKind.UNKNOWN:
            return f"whether {version} has it is unknown{doubt}"
        if change.kind is ChangeKind.VALUES and str(value) not in map(str, change.new_value):
            return (
                f"{version} does not take {value!r}; it takes {', '.join(change.new_value)}{doubt}"
            )
        if change.kind is ChangeKind.RETYPED and entry is not None and not fits(value, entry):
            return f"{version} wants {entry.type}, not {value!r}{doubt}"
        return None  # a new default does not reach a value that is written out

    def _affected(self, key: Key, value: Any, change: Change, effect: str) -> Affected:
        name = key[1]
        return self._row(
            setting_of(name, self.item.index),
            str(key[0]),
            name,
            value,
            str(change.kind),
            change.certain,
            effect,
            (
                {
                    "area": str(key[0]),
                    "setting": name,
                    "value": value,
                    "note": f"written for {self.change.old.id}",
                },
            ),
            change.new_names,
        )

    def _left_to_default(self, change: Change) -> Affected:
        """A setting that the spec leaves to TensorRT-LLM, whose default is another one now."""
        place = setting_of(change.name, self.item.index)
        note = f" ({change.note})" if change.note else ""
        return self._row(
            place,
            str(change.area),
            change.name,
            None,
            str(change.kind),
            change.certain,
            f"not written, so the default applies: {change.old_value!r} before, "
            f"{change.new_value!r} in {self.change.new.tensorrt_llm}{note}",
            ({"area": "spec", "setting": place, "value": change.old_value, "note": "old default"},),
        )

    def _row(
        self,
        setting: str,
        area: str,
        name: str | None,
        value: Any,
        kind: str,
        certain: bool,
        effect: str,
        restore: tuple[dict[str, Any], ...] = (),
        names: tuple[str, ...] = (),
    ) -> Affected:
        return Affected(
            self.item.target.id,
            setting,
            self.job.loaded.where(setting),
            area,
            name,
            value,
            kind,
            certain,
            effect,
            self._written_in_new(names, setting) if name else {},
            (self._pin(), *restore),
        )

    def _written_in_new(self, names: tuple[str, ...], setting: str) -> dict[str, Any]:
        """What engineroom writes on the new side: the new names, else fresh ones of the setting."""
        new, old = self.new or {}, self.old or {}
        found = {key[1]: value for key, value in new.items() if key[1] in names}
        return found or {
            key[1]: value
            for key, value in new.items()
            if key not in old and setting_of(key[1], self.item.index) == setting
        }

    def _pin(self) -> dict[str, Any]:
        """The line that goes back to the old side."""
        key = f"targets[{self.item.index}].stack"
        stack = self.change.old
        value: Any = stack.id
        if stack.id not in self.job.catalog.stacks:
            value = {"trtllm": stack.tensorrt_llm}
            current = self.item.target.stack
            image = None if isinstance(current, str) else current.image
            if image and not isinstance(current, str) and current.trtllm == stack.tensorrt_llm:
                value["image"] = image
        where = self.job.loaded.where(key)
        return {
            "area": "spec",
            "setting": key,
            "value": value,
            "file": where.file,
            "line": where.line,
        }

    # ---- settings that are engineroom's own
    def _lane(self) -> list[Affected]:
        lane = self.item.target.lane
        before, _, _ = lane_support(self.job.catalog, lane, self.change.old.tensorrt_llm)
        after, reason, source = lane_support(self.job.catalog, lane, self.change.new.tensorrt_llm)
        if before is after or after is Support.YES:
            return []
        kind = "removed" if after is Support.NO else "unknown"
        key = f"targets[{self.item.index}].lane"
        effect = f"{lane} lane in {self.change.new.tensorrt_llm}: {after}; {reason} ({source})"
        return [self._row(key, "lane", None, str(lane), kind, after is Support.NO, effect)]

    def _support(self) -> list[Affected]:
        catalog, item = self.job.catalog, self.item
        precision = self.job.loaded.spec.precision
        found: list[Affected] = []
        axes = [("weights", str(precision.weights))]
        if precision.kv_cache is not KvCacheFormat.AUTO:
            axes.append(("kv_cache", str(precision.kv_cache)))
        lane = item.target.lane
        if lane_support(catalog, lane, self.change.new.tensorrt_llm)[0] is Support.NO:
            return []  # the lane is gone, and says so
        for axis, fmt in axes:
            before, after = (
                catalog.precision_support(
                    lane, side.tensorrt_llm, axis, fmt, item.sku.compute_capability
                )
                for side in (self.change.old, self.change.new)
            )
            if before[0] is not after[0] and after[0] is not Support.YES:
                kind = "unknown" if after[0] is Support.UNKNOWN else "support"
                effect = (
                    f"{fmt} on {item.sku.id} (compute capability {item.sku.compute_capability}): "
                    f"{before[0]} before, {after[0]} in {self.change.new.tensorrt_llm} ({after[1]})"
                )
                key = f"precision.{axis}"
                found.append(self._row(key, "support", None, fmt, kind, kind == "support", effect))
        return found

    def _driver(self) -> list[Affected]:
        driver = self.item.target.driver
        found: list[Affected] = []
        if driver is None:
            return found
        for fact, meaning in (
            ("min_driver", "the floor of its CUDA line"),
            ("toolkit_driver", "the driver of its CUDA toolkit"),
        ):
            before, after = getattr(self.change.old, fact), getattr(self.change.new, fact)
            if before and after and _numbers(before) <= _numbers(driver) < _numbers(after):
                effect = f"driver {driver} is below {after}, {meaning} ({fact}; {before} before)"
                key = f"targets[{self.item.index}].driver"
                found.append(self._row(key, "stack", None, driver, "changed", True, effect))
                break
        return found


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
