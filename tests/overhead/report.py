"""The arithmetic of the comparison, and its tables. Nothing here measures.

A row is one run of one series (a model of one side) at one kind and concurrency:
{series, kind, concurrency, repeat, requests, seconds, rps, p50_ms, p95_ms, p99_ms, ttft_p50_ms,
ttft_p95_ms, events, server_cpu_ms, cpu_ms_by_model, client_cpu_ms, other_cpu, disturbed}.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from tests.overhead.client import Answer

ECHO = "echo"
DISTURBED = 0.1
"""CPUs that others used during a run; over this the run is marked."""
COMPARISONS = (
    ("engine lane, BLS", "ours-bls", "upstream-bls"),
    ("engine lane, ensemble", "ours-ensemble", "upstream-ensemble"),
    ("llmapi lane", "ours-llmapi", "upstream-llmapi"),
    ("for information: our BLS against upstream's ensemble", "ours-bls", "upstream-ensemble"),
    ("for information: llmapi floor", "floor-llmapi", "upstream-llmapi"),
)
LIMIT = 0.5
JUDGED = 3
"""The first three comparisons are judged by `LIMIT`."""
Row = Mapping[str, Any]


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    rank = max(1, -int(-share * len(ordered) // 1))
    return ordered[rank - 1]


def row_of(
    answers: list[Answer],
    seconds: float,
    server_cpu: Mapping[str, float],
    client_cpu: float,
    busy: float,
) -> dict[str, Any]:
    """Figures of one run.

    Args:
        seconds: how long it took, from the first request to the last answer.
        server_cpu: CPU seconds by model. `client_cpu` and `busy`: of this process and the machine.
    """
    if not answers:
        raise ValueError("no request was answered")
    count, total = len(answers), sum(server_cpu.values())
    other = (busy - total - client_cpu) / seconds
    took, first = [a.seconds for a in answers], [a.first for a in answers]
    return {
        "requests": count,
        "seconds": round(seconds, 3),
        "rps": round(count / seconds, 1),
        "p50_ms": round(1e3 * quantile(took, 0.50), 2),
        "p95_ms": round(1e3 * quantile(took, 0.95), 2),
        "p99_ms": round(1e3 * quantile(took, 0.99), 2),
        "ttft_p50_ms": round(1e3 * quantile(first, 0.50), 2),
        "ttft_p95_ms": round(1e3 * quantile(first, 0.95), 2),
        "events": round(sum(a.events for a in answers) / count, 3),
        "server_cpu_ms": round(1e3 * total / count, 3),
        "cpu_ms_by_model": {k: round(1e3 * v / count, 3) for k, v in sorted(server_cpu.items())},
        "client_cpu_ms": round(1e3 * client_cpu / count, 3),
        "other_cpu": round(other, 2),
        "disturbed": other > DISTURBED,
    }


def values(
    rows: Iterable[Row], series: str, kind: str, concurrency: int, figure: str
) -> list[float]:
    return [
        row[figure]
        for row in rows
        if (row["series"], row["kind"], row["concurrency"]) == (series, kind, concurrency)
    ]


def median(
    rows: Iterable[Row], series: str, kind: str, concurrency: int, figure: str
) -> float | None:
    found = values(rows, series, kind, concurrency, figure)
    return statistics.median(found) if found else None


def ratio(rows: list[Row], ours: str, upstream: str, kind: str, concurrency: int) -> float | None:
    """(ours - echo) / (upstream - echo) of the medians of server CPU.

    None where one is missing, and where upstream's median is not over all of echo's runs: its
    difference to echo is then noise, and a quotient by it would say nothing.
    """
    found = [median(rows, s, kind, concurrency, "server_cpu_ms") for s in (ours, upstream, ECHO)]
    if None in found:
        return None
    mine, theirs, floor = (float(x or 0) for x in found)
    if theirs <= max(values(rows, ECHO, kind, concurrency, "server_cpu_ms")):
        return None
    return (mine - floor) / (theirs - floor)


def ratio_range(
    rows: list[Row], ours: str, upstream: str, kind: str, concurrency: int
) -> tuple[float, float] | None:
    """Least and greatest ratio of the repeats, each with its own echo run."""
    repeats = {row["repeat"] for row in rows}
    found = []
    for repeat in sorted(repeats):
        part = [row for row in rows if row["repeat"] == repeat]
        one = ratio(part, ours, upstream, kind, concurrency)
        if one is not None:
            found.append(one)
    return (min(found), max(found)) if found else None


def cells(rows: Iterable[Row]) -> list[tuple[str, int]]:
    """(kind, concurrency) in the order of their first run."""
    return list(dict.fromkeys((row["kind"], row["concurrency"]) for row in rows))


def _spread(found: list[float]) -> str:
    if not found:
        return "-"
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def verdicts(rows: list[Row]) -> list[dict[str, Any]]:
    """One entry a comparison, kind and concurrency that was run: ratio, range, whether within LIMIT."""
    found = []
    for at, (title, ours, upstream) in enumerate(COMPARISONS):
        for kind, concurrency in cells(rows):
            run = [values(rows, s, kind, concurrency, "rps") for s in (ours, upstream, ECHO)]
            if not all(run):
                continue
            value = ratio(rows, ours, upstream, kind, concurrency)
            found.append(
                {
                    "comparison": title,
                    "kind": kind,
                    "concurrency": concurrency,
                    "ratio": value,
                    "range": ratio_range(rows, ours, upstream, kind, concurrency),
                    "judged": at < JUDGED,
                    "within": None if value is None else value <= LIMIT,
                }
            )
    return found


def markdown(rows: list[Row], conditions: Mapping[str, str]) -> str:
    """The fragment for docs/measurements/repository-overhead.md."""
    lines = ["| condition | value |", "| --- | --- |"]
    lines += [f"| {key} | {value} |" for key, value in conditions.items()]
    marked = sum(1 for row in rows if row["disturbed"])
    lines += [
        "",
        f"{len(rows)} runs, {marked} of them disturbed (others used over {DISTURBED} CPU).",
    ]
    lines += ["", "Ratio: (ours - echo) / (upstream - echo), medians of server CPU ms a request."]
    lines += ["Range: least and greatest of the repeats.", ""]
    lines += [
        "| comparison | kind | concurrency | ratio | range |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    for entry in verdicts(rows):
        value = "- | within the spread of echo"
        if entry["ratio"] is not None:
            low, high = entry["range"] or (entry["ratio"],) * 2
            value = f"{entry['ratio']:.2f} | {low:.2f} to {high:.2f}"
        lines.append(
            f"| {entry['comparison']} | {entry['kind']} | {entry['concurrency']} | {value} |"
        )
    lines += [
        "",
        "Medians (least to greatest of the repeats); ms but for requests/s and events a request.",
        "",
    ]
    figures = {
        "server CPU": "server_cpu_ms", "requests/s": "rps", "p50": "p50_ms", "p95": "p95_ms",
        "p99": "p99_ms", "TTFT p50": "ttft_p50_ms", "events": "events",
    }  # fmt: skip
    head = ["series", "kind", "concurrency", *figures]
    lines += ["| " + " | ".join(head) + " |", "| --- | --- |" + " ---: |" * (len(head) - 2)]
    series = list(dict.fromkeys(row["series"] for row in rows))
    for kind, concurrency in cells(rows):
        for name in series:
            found = [values(rows, name, kind, concurrency, figure) for figure in figures.values()]
            if found[0]:
                text = " | ".join(_spread(f) for f in found)
                lines.append(f"| {name} | {kind} | {concurrency} | {text} |")
    lines += ["", "Server CPU ms a request by process (medians).", ""]
    lines += ["| series | kind | concurrency | processes |", "| --- | --- | ---: | --- |"]
    for kind, concurrency in cells(rows):
        for name in series:
            parts = values(rows, name, kind, concurrency, "cpu_ms_by_model")
            if parts:
                lines.append(f"| {name} | {kind} | {concurrency} | {_parts(parts)} |")
    return "\n".join(lines) + "\n"


def _parts(found: list[Any]) -> str:
    names = dict.fromkeys(name for part in found for name in part)
    return ", ".join(
        f"{name} {statistics.median(part.get(name, 0.0) for part in found):.2f}" for name in names
    )


def table(rows: list[Row]) -> str:
    """For the terminal: one line a comparison, kind and concurrency."""
    lines = [
        f"{'comparison':52} {'kind':12} {'conc':>4} {'ours':>7} {'upstr.':>7} {'echo':>6} ratio"
    ]
    names = {title: (ours, upstream) for title, ours, upstream in COMPARISONS}
    for entry in verdicts(rows):
        where = (entry["kind"], entry["concurrency"], "server_cpu_ms")
        ours, upstream = names[entry["comparison"]]
        cpu = [median(rows, s, *where) or 0.0 for s in (ours, upstream, ECHO)]
        mark = "  over" if entry["judged"] and entry["within"] is False else ""
        value = "    -" if entry["ratio"] is None else f"{entry['ratio']:5.2f}"
        lines.append(
            f"{entry['comparison']:52} {entry['kind']:12} {entry['concurrency']:4} "
            f"{cpu[0]:7.2f} {cpu[1]:7.2f} {cpu[2]:6.2f} {value}{mark}"
        )
    return "\n".join(lines)
