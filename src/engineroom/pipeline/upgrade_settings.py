"""`upgrade`: what becomes of each setting that engineroom writes for a target, name by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engineroom.catalog import VllmContract
from engineroom.catalog.contract_index import ContractIndex, Key, index
from engineroom.catalog.contract_parts import Area
from engineroom.errors import EngineroomError
from engineroom.pipeline.job import Job, ResolvedTarget
from engineroom.pipeline.matrix import ReleaseDiff
from engineroom.pipeline.matrix_affected import Affected, SpecDiff
from engineroom.pipeline.matrix_emitted import emitted
from engineroom.types.migration import Fate, SettingReport

_FILES = {
    Area.LLM_ARGS: "llm_args.yaml",
    Area.BUILD: "trtllm-build",
    Area.TRITON: "config.pbtxt",
}
_FATES = {
    "removed": Fate.IMPOSSIBLE,
    "renamed": Fate.RENAMED,
    "moved": Fate.MOVED,
    "redefaulted": Fate.REDEFAULTED,
    "deprecated": Fate.KEPT,
    "values": Fate.IMPOSSIBLE,
    "retyped": Fate.IMPOSSIBLE,
    "support": Fate.IMPOSSIBLE,
    "unknown": Fate.IMPOSSIBLE,
    "changed": Fate.KEPT,
}
"""Kind of a change -> fate of a setting that it touches. Unknown is never kept."""
Added = dict[str, Any]


def trtllm_settings(
    job: Job, item: ResolvedTarget, change: ReleaseDiff, touched: SpecDiff
) -> tuple[list[SettingReport], Added]:
    """(a row for each name that is written for the old version, names that are new with their values).

    Raises:
        EngineroomError: nothing can be written for one of the versions.
    """
    old_contract, new_contract = change.old_contract, change.new_contract
    if old_contract is None or new_contract is None:
        return [], {}
    left, right = index(old_contract), index(new_contract)
    old = emitted(job, item, change.old, old_contract, left)
    new = emitted(job, item, change.new, new_contract, right)
    rows = [a for a in touched.affected if a.target == item.target.id]
    found = [_row(key, value, new, rows, change) for key, value in old.items()]
    found += [_spec_row(row) for row in rows if row.emitted is None or _key(row) not in old]
    for lane, name, before, after, certain in touched.new_defaults:
        if lane == str(item.target.lane):
            doubt = "" if certain else " (not proven for exactly this version)"
            found.append(
                SettingReport(
                    _file(_area_of(name, left)), name, None, before, Fate.REDEFAULTED, name, after,
                    f"not written, so the default applies, and it is another one{doubt}",
                    "measure speed and compare answers; no key of the spec reaches it",
                    _source(change, _area_of(name, left)),
                )
            )  # fmt: skip
    known = {name for _, name in old} | {
        name for row in found if row.new_key for name in row.new_key.split(", ")
    }
    added = {name: value for (_, name), value in new.items() if name not in known}
    return found, added


def _key(row: Affected) -> Key:
    return Area(row.area), str(row.emitted)


def _row(
    key: Key, value: Any, new: Mapping[Key, Any], rows: Sequence[Affected], change: ReleaseDiff
) -> SettingReport:
    area, name = key
    source = _source(change, area)
    version = change.new.tensorrt_llm
    touching = [r for r in rows if r.emitted == name and r.area == str(area)]
    row = next((r for r in touching if r.kind != "deprecated"), next(iter(touching), None))
    if row is None:
        if key not in new:
            return SettingReport(
                _file(area), name, None, value, Fate.REDEFAULTED, None, None,
                f"not written for {version}: the default there holds", "compare answers and speed", source,
            )  # fmt: skip
        same = new[key] == value
        return SettingReport(
            _file(area), name, None, value, Fate.KEPT if same else Fate.REDEFAULTED, name, new[key],
            "same name and value" if same else f"another value is written for {version}",
            "" if same else "compare answers and speed", source,
        )  # fmt: skip
    fate = _FATES[row.kind]
    written = row.emitted_in_new
    if fate is Fate.IMPOSSIBLE and written:
        fate = Fate.MOVED  # the same setting of the spec is written under other names
    if not written and key in new and fate in (Fate.RENAMED, Fate.MOVED):
        written = {name: new[key]}  # the old name is an alias that is still written
    if fate is Fate.KEPT:
        written = written or ({name: new[key]} if key in new else {})
    new_key = ", ".join(written) or None
    new_value = next(iter(written.values())) if len(written) == 1 else (dict(written) or None)
    todo = ""
    if fate is Fate.IMPOSSIBLE:
        todo = f"stay on {change.old.id}, or do without it ({row.setting})"
    elif fate in (Fate.RENAMED, Fate.MOVED) and not written:
        todo = f"nothing is written under the new name in {version}; check {row.setting}"
    return SettingReport(
        _file(area), name, None, value, fate, new_key, new_value, row.effect, todo, source
    )


def _spec_row(row: Affected) -> SettingReport:
    """A setting that is the spec's own: lane, support, driver, or one left to a default."""
    back = "; ".join(
        f"{step['setting']}: {step['value']}" for step in row.rollback if step["area"] == "spec"
    )
    return SettingReport(
        str(row.where.file or "spec"), row.setting, row.where.line, row.value, _FATES[row.kind],
        row.setting, row.value, row.effect, f"the old behaviour comes back with {back}",
        "the support tables and contracts of both versions",
    )  # fmt: skip


def touched_settings(item: ResolvedTarget, touched: SpecDiff | None) -> list[SettingReport]:
    """What is known to be touched where one of the sides cannot be written."""
    rows = touched.affected if touched else ()
    return [_spec_row(row) for row in rows if row.target == item.target.id]


def _area_of(name: str, names: ContractIndex) -> Area:
    return next((area for area in Area if (area, name) in names.entries), Area.LLM_ARGS)


def _file(area: Area) -> str:
    return _FILES.get(area, str(area))


def _source(change: ReleaseDiff, area: Area) -> str:
    sides = ((change.contracts.sources if change.contracts else None) or {}).get(str(area), {})
    texts = [text for version in sides.values() for text in version]
    versions = f"contracts of TensorRT-LLM {change.old.tensorrt_llm} and {change.new.tensorrt_llm}"
    return "; ".join([versions, *dict.fromkeys(texts)][:4])


def vllm_settings(
    job: Job, old: ResolvedTarget, new: ResolvedTarget
) -> tuple[list[SettingReport], Added]:
    """The same for engine arguments of the vllm lane, by the contracts of the two vLLM versions.

    Raises:
        EngineroomError: no contract of one of the versions.
    """
    left, right = old.known_contract(), new.known_contract()
    if not isinstance(left, VllmContract) or not isinstance(right, VllmContract):
        return [], {}
    before, after = (_arguments(job, side) for side in (old, new))
    source = f"vllm-project/vllm vllm/engine/arg_utils.py of {left.version} and {right.version}"
    found: list[SettingReport] = []

    def put(name: str, value: Any, fate: Fate, now: Any, what: str, todo: str = "") -> None:
        key = None if fate is Fate.IMPOSSIBLE else name
        found.append(
            SettingReport("engine_args.yaml", name, None, value, fate, key, now, what, todo, source)
        )

    for name, value in before.items():
        facts = right.engine_args.get(name)
        allowed = facts.get("allowed") if facts else None
        if facts is None:
            put(name, value, Fate.IMPOSSIBLE, None, f"vLLM {right.version} does not have it",
                f"stay on {old.stack.id}, or do without it")  # fmt: skip
        elif allowed and value not in allowed and after.get(name) == value:
            put(name, value, Fate.IMPOSSIBLE, None,
                f"vLLM {right.version} takes {', '.join(map(str, allowed))}",
                f"choose one of them, or stay on {old.stack.id}")  # fmt: skip
        elif name not in after:
            put(name, value, Fate.REDEFAULTED, facts.get("default"),
                f"not written for {right.version}: the default there holds")  # fmt: skip
        elif after[name] == value:
            put(name, value, Fate.KEPT, value, "same name and value")
        else:
            put(name, value, Fate.REDEFAULTED, after[name],
                f"another value is written for {right.version}", "compare answers and speed")  # fmt: skip
    for name, facts in left.engine_args.items():
        other = right.engine_args.get(name)
        if name in before or name in after or other is None:
            continue
        if "default" in facts and "default" in other and facts["default"] != other["default"]:
            put(name, facts["default"], Fate.REDEFAULTED, other["default"],
                "not written, so the default applies, and it is another one",
                "measure speed and compare answers")  # fmt: skip
    return found, {name: value for name, value in after.items() if name not in before}


def _arguments(job: Job, item: ResolvedTarget) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for document in item.lane.documents(job.lane_request(item, "checkpoints/CHECKPOINT")).values():
        found |= document
    return found


def tried(what: str, error: EngineroomError) -> str:
    """A line for `unknown`; messages about a target begin with its id already."""
    return error.message if error.message.startswith(what) else f"{what}: {error.message}"
