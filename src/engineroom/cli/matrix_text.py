"""Tables of `matrix` as plain lines: starting Rich would cost half of the time `show` takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engineroom.catalog.version_change import Change
    from engineroom.pipeline.matrix import ReleaseDiff
    from engineroom.pipeline.matrix_affected import Affected, SpecDiff
    from engineroom.planning.support_matrix import Cell

_EXAMPLES = 2
_SHORT = {"not-implemented": "not-impl."}
_WIDTH = 100


def matrix_lines(cells: Sequence[Cell], legend: str) -> Iterator[str]:
    """One table a lane and axis; sources as numbered notes below."""
    notes: dict[str, int] = {}
    for lane in dict.fromkeys(c.lane for c in cells):
        rows = [c for c in cells if c.lane == lane]
        first = rows[0]
        yield f"{lane} lane, {first.runtime} ({_stack_text(first)})"
        heads = list(dict.fromkeys((c.compute_capability, c.skus) for c in rows))
        names = [
            list(skus[:_EXAMPLES]) + (["…"] if len(skus) > _EXAMPLES else []) for _, skus in heads
        ]
        depth = max((len(n) for n in names), default=0)
        table = [["", *(cc for cc, _ in heads)]]
        table += [["", *(n[i] if i < len(n) else "" for n in names)] for i in range(depth)]
        for axis in dict.fromkeys(c.axis for c in rows):
            table.append(["weights" if axis == "weights" else "KV cache"])
            for fmt in dict.fromkeys(c.format for c in rows if c.axis == axis):
                line = [f"  {fmt}"]
                for cell in (c for c in rows if c.axis == axis and c.format == fmt):
                    text = cell.source if cell.reason is None else f"{cell.reason} ({cell.source})"
                    number = notes.setdefault(text, len(notes) + 1)
                    line.append(f"{_SHORT.get(str(cell.support), str(cell.support))} [{number}]")
                table.append(line)
        yield from _aligned(table)
        yield ""
    yield legend
    for text, number in notes.items():
        yield f"[{number}] {text}"


def _stack_text(cell: Cell) -> str:
    return "no Triton release named" if cell.stack.startswith("trtllm-") else f"Triton {cell.stack}"


def _aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    columns = max(len(row) for row in table)
    widths = [max(len(row[i]) for row in table if len(row) > i) for i in range(columns)]
    for row in table:
        yield "  ".join(text.ljust(widths[i]) for i, text in enumerate(row)).rstrip()


def diff_lines(change: ReleaseDiff) -> Iterator[str]:
    """Every change, one kind after the other; parts that go as a whole in one line."""
    yield _title(change)
    for kind in change.counts():
        rows = [c for c in change.changes if c.kind == kind]
        yield f"{kind} ({len(rows)})"
        inner: dict[tuple[Any, str | None], int] = {}
        for row in rows:
            if row.within:
                inner[(row.area, row.within)] = inner.get((row.area, row.within), 0) + 1
        tops = [c for c in rows if not c.within]
        if kind == "added":
            for area in dict.fromkeys(c.area for c in tops):
                texts = (_with_inner(c, inner) for c in tops if c.area == area)
                yield from _wrapped(f"  {area}: ", texts)
        else:
            for row in tops:
                yield f"  {row.area}  {_with_inner(row, inner)}{_values(row)}{_doubt(row)}"
        shown = {(c.area, c.name) for c in tops}
        for (area, name), count in inner.items():
            if (area, name) not in shown:
                yield f"  {area}  {count} name(s) in {name}"
    statements = change.contracts.statements if change.contracts else ()
    if statements:
        yield "stated by the change lists, not about one key:"
        yield from (f"  {s.version} {s.kind}: {s.text}" for s in statements)
    for text in change.unknown:
        yield f"unknown: {text}"
    if any(not c.certain for c in change.changes):
        yield "? = not proven for exactly this version"


def spec_lines(change: ReleaseDiff, touched: SpecDiff) -> Iterator[str]:
    """The settings of a spec that are touched, each with its way back."""
    yield _title(change)
    groups: dict[tuple[str, ...], list[Affected]] = {}
    for row in touched.affected:
        groups.setdefault((row.target, row.setting, row.kind, row.effect), []).append(row)
    for rows in groups.values():
        row = rows[0]
        mark = "" if row.certain else " ?"
        yield f"{row.kind.upper()}{mark}  {row.where}  ({row.target})"
        pairs = [f"`{r.emitted}` = {_text(r.value)}" for r in rows if r.emitted]
        what = f"{row.area} {', '.join(pairs)}" if pairs else f"{row.value}"
        yield f"      {what}: {row.effect}"
        written = {k: v for r in rows for k, v in r.emitted_in_new.items()}
        if written:
            there = ", ".join(f"{k} = {_text(v)}" for k, v in written.items())
            yield f"      engineroom writes there: {there}"
        steps = [s for s in _steps(rows) if s["area"] == "spec"]
        again = "; that writes the old names and values again" if pairs and len(steps) == 1 else ""
        yield f"      rollback: {'; '.join(map(_way_back, steps))}{again}"
    yield f"{len({(a.target, a.setting) for a in touched.affected})} setting(s) touched"
    for lane, name, old, new, certain in touched.new_defaults:
        mark = "" if certain else " ?"
        yield (
            f"new default that no setting reaches ({lane}): {name}: {_text(old)} -> {_text(new)}{mark}"
        )
    for text in (*touched.unknown, *change.unknown):
        yield f"unknown: {text}"


def _steps(rows: Sequence[Affected]) -> list[dict[str, Any]]:
    return list({str(step): step for row in rows for step in row.rollback}.values())


def _way_back(step: dict[str, Any]) -> str:
    value = step["value"]
    shown = (
        "{" + ", ".join(f"{k}: {v}" for k, v in value.items()) + "}"
        if isinstance(value, dict)
        else f'"{value}"'
        if step["setting"].endswith(".stack")
        else _text(value)
    )
    place = f" ({step['file']}:{step['line']})" if step.get("line") else ""
    note = f" ({step['note']})" if step.get("note") else ""
    return f"set {step['setting']}: {shown}{place}{note}"


def _title(change: ReleaseDiff) -> str:
    a, b = change.old, change.new
    sides = [
        f"{s.id} (TensorRT-LLM {s.tensorrt_llm})"
        if not s.id.startswith("trtllm-")
        else f"TensorRT-LLM {s.tensorrt_llm}"
        for s in (a, b)
    ]
    known = [
        c.confidence if c else "no contract" for c in (change.old_contract, change.new_contract)
    ]
    return f"{sides[0]} -> {sides[1]}; confidence of the contracts: {known[0]}, {known[1]}"


def _with_inner(row: Change, inner: dict[tuple[Any, str | None], int]) -> str:
    count = inner.get((row.area, row.name), 0)
    arrow = f" -> {', '.join(row.new_names)}" if row.old_names and row.new_names else ""
    arrow = "" if row.old_names == row.new_names else arrow
    return (
        ", ".join(row.old_names or row.new_names) + arrow + (f" and its {count}" if count else "")
    )


def _values(row: Change) -> str:
    if row.kind in ("redefaulted", "retyped", "changed"):
        return f": {_text(row.old_value)} -> {_text(row.new_value)}"
    if row.kind == "values":
        old, new = list(row.old_value), list(row.new_value)
        gone, came = [v for v in old if v not in new], [v for v in new if v not in old]
        return f": no longer {', '.join(gone) or '-'}; new {', '.join(came) or '-'}"
    return ""


def _doubt(row: Change) -> str:
    return ("" if row.certain else " ?") + (f"  ({row.note})" if row.note else "")


def _text(value: Any) -> str:
    if value is None:
        return "unset"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wrapped(head: str, texts: Iterable[str]) -> Iterator[str]:
    line = head
    for text in texts:
        if len(line) + len(text) > _WIDTH and line != head:
            yield line.rstrip()
            line = " " * 4
        line += f"{text}, "
    yield line.removesuffix(", ")
