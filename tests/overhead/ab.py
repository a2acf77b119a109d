"""Interleaved A/B of our rendered repositories against upstream's own files.

    python -m tests.overhead.ab --upstream CLONE --out FOLDER [--repeats 5] [--seconds 4]

CLONE is a clone of triton-inference-server/tensorrtllm_backend (see upstream.py). Writes
FOLDER/runs.jsonl and FOLDER/fragment.md and prints a table; --fold FILE makes the tables again from
a runs.jsonl.

All servers run for the whole time and those that are not asked idle: starting one costs 5 to 20 CPU
seconds (torch and transformers are imported by three of upstream's processes), which would heat the
machine and fill the page cache before every run, while an idle server uses about 0.01 CPU; that is
measured and stated with the conditions. CPU time is counted in the asked server's processes only.
Within a repeat each kind and concurrency is run by all series in turn, each time beginning with
another one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conftest import TINY
from tests.overhead import ours, procs, report, upstream
from tests.overhead.client import KINDS, STREAMED, Target, closed_loop
from tests.overhead.servers import ECHO, FLOOR, TOKENS, serve

SENTENCE = "the quick brown fox jumps over a lazy dog and runs home "
PROMPT = " ".join((SENTENCE * 9).split()[:100])
LLMAPI = {"max_tokens": "sampling_param_max_tokens", "stream": "streaming", "batched": False}
# Upstream's model repeats the prompt unless it is told not to; ours leaves it out by default.
SERIES = {
    "ours-bls": ("ours-engine", "tensorrt_llm_bls", {}),
    "upstream-bls": ("upstream-engine", "tensorrt_llm_bls", {}),
    "ours-ensemble": ("ours-engine", "ensemble", {}),
    "upstream-ensemble": ("upstream-engine", "ensemble", {}),
    "ours-llmapi": ("ours-llmapi", "tensorrt_llm", LLMAPI),
    "upstream-llmapi": ("upstream-llmapi", "tensorrt_llm", LLMAPI),
    "floor-llmapi": ("floor-llmapi", "tensorrt_llm", LLMAPI),
    "echo": ("echo", "echo", {}),
}


class Bench:
    """Running servers and the targets on them."""

    def __init__(self, servers: dict[str, Any], chosen: list[str], merge: bool) -> None:
        self.merge = merge
        self.names = {name: procs.watch(server.pid) for name, server in servers.items()}
        self.targets: dict[str, Target] = {}
        self.server_of: dict[str, str] = {}
        for series in chosen:
            where, model, more = SERIES[series]
            if where not in servers:
                continue
            ports = servers[where].endpoints
            self.targets[series] = Target(ports.http, ports.grpc, model, **more)
            self.server_of[series] = where

    def idle_cpu(self, seconds: float = 5.0) -> float:
        """CPUs that all servers use together while nothing is asked."""
        before = [procs.usage(names).total for names in self.names.values()]
        time.sleep(seconds)
        after = [procs.usage(names).total for names in self.names.values()]
        return (sum(after) - sum(before)) / seconds

    async def run(
        self, series: str, kind: str, concurrency: int, seconds: float, warm: float, tokens: int
    ) -> dict[str, Any]:
        """One row (see report.py), without its repeat.

        Raises:
            RuntimeError: a request failed, or an answer had another number of events.
        """
        target, names = self.targets[series], self.names[self.server_of[series]]
        connections = [
            target.connect(kind, PROMPT, tokens, f"c{place}") for place in range(concurrency)
        ]
        try:
            await asyncio.wait_for(closed_loop(connections, warm), warm + 30)
            before, start = procs.usage(names), time.perf_counter()
            answers = await asyncio.wait_for(closed_loop(connections, seconds), seconds + 30)
            took, after = time.perf_counter() - start, procs.usage(names)
        finally:
            for connection in connections:
                await connection.close()
        events = tokens if kind in STREAMED else 1
        least = 1 if self.merge and series.startswith("ours") else events
        wrong = {a.events for a in answers if not least <= a.events <= events}
        if wrong:
            raise RuntimeError(f"{series}, {kind}: {sorted(wrong)} events instead of {events}")
        cpu = {name: after.by_model[name] - before.by_model[name] for name in after.by_model}
        row = report.row_of(answers, took, cpu, after.own - before.own, after.busy - before.busy)
        return {"series": series, "kind": kind, "concurrency": concurrency, **row}


@contextlib.contextmanager
def bench(
    source: upstream.Source | None,
    work: Path,
    chosen: list[str],
    *,
    decoupled: bool = True,
    merge: bool = False,
    step_ms: float = 0,
    text_work: bool = False,
) -> Iterator[Bench]:
    """Assemble and start what the series need.

    Args:
        merge: `serving.merge_events` of ours.
        text_work: the LLM API's double tokenizes and detokenizes as upstream's LLM does.
    """
    needed = {SERIES[series][0] for series in chosen}
    tokenizer = work / "model/checkpoint"
    shutil.copytree(TINY, tokenizer)
    folders = {"echo": ECHO}
    if any(name.startswith("upstream") for name in needed):
        if source is None:
            raise SystemExit("--upstream is needed for upstream's series")
        upstream.assemble(source, tokenizer, work / "upstream", decoupled=decoupled)
        folders["upstream-engine"] = work / "upstream/engine"
        folders["upstream-llmapi"] = work / "upstream/llmapi"
    for lane in ("engine", "llmapi"):
        if f"ours-{lane}" in needed:
            folders[f"ours-{lane}"] = work / "ours" / lane
            serving = {"streaming": decoupled, "merge_events": merge}
            ours.render(folders[f"ours-{lane}"], lane, tokenizer, serving=serving)
    if "floor-llmapi" in needed:
        folders["floor-llmapi"] = work / "floor"
        ours.render(work / "floor", "llmapi", tokenizer, serving={"streaming": decoupled})
        shutil.copy(FLOOR, work / "floor/tensorrt_llm/1/model.py")
    with contextlib.ExitStack() as stack:
        servers = {}
        for name in sorted(needed):
            env = {"STANDIN_STEP_MS": f"{step_ms:g}"}
            if text_work and name.endswith("-llmapi"):
                env["STANDIN_TOKENIZER"] = str(tokenizer)
            if name == "upstream-llmapi":
                env["STANDIN_TRTLLM_VERSION"] = source.version if source else ""
            log = work / "logs" / f"{name}.log"
            theirs = name.startswith("upstream")
            server = serve(folders[name], log=log, env=env, upstream=theirs)
            servers[name] = stack.enter_context(server)
        yield Bench(servers, chosen, merge)


async def measure(b: Bench, a: argparse.Namespace, sink: Path) -> list[dict[str, Any]]:
    rows = []
    order = list(b.targets)
    for repeat in range(a.repeats):
        for kind in a.kinds.split(","):
            for concurrency in map(int, a.concurrency.split(",")):
                order = order[1:] + order[:1]
                for series in order:
                    row = await b.run(series, kind, concurrency, a.seconds, a.warmup, a.tokens)
                    row["repeat"] = repeat
                    rows.append(row)
                    with sink.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
                    mark = " disturbed" if row["disturbed"] else ""
                    print(
                        f"{repeat} {kind:11} {concurrency:3} {series:18} "
                        f"{row['server_cpu_ms']:7.3f} ms {row['rps']:7.1f}/s "
                        f"other {row['other_cpu']:.2f}{mark} {row['cpu_ms_by_model']}",
                        flush=True,
                    )
    return rows


def conditions(a: argparse.Namespace, idle: float) -> dict[str, str]:
    import importlib.metadata as metadata

    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} CPUs, {platform.machine()}, shared by servers and client",
        "server": f"tritonserver of nvidia-pytriton {metadata.version('nvidia-pytriton')}",
        "Python": f"{platform.python_version()}, transformers {metadata.version('transformers')}",
        "upstream": f"{a.upstream_version} ({a.upstream_commit[:12]}), one instance a model",
        "ours": f"rendered for TensorRT-LLM 1.2.1, default features, merge_events {a.merge}",
        "engine": "tests/standins, "
        + (f"{a.step_ms:g} ms between events" if a.step_ms else "answers at once"),
        "text in the LLM API's double": "tokenized and detokenized as by TensorRT-LLM's own Python"
        if a.text_work
        else "none",
        "request": f"{len(PROMPT.split())} words, {a.tokens} tokens",
        "runs": f"{a.repeats} repeats of {a.seconds:g} s after {a.warmup:g} s, interleaved",
        "idle servers": f"{idle:.3f} CPU together",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--upstream", type=Path, help="clone of tensorrtllm_backend")
    parser.add_argument("--upstream-commit", default=upstream.COMMIT)
    parser.add_argument("--upstream-prefix", default="", help="folder of all_models in the clone")
    parser.add_argument("--upstream-without", default="", help="models to leave out")
    parser.add_argument("--upstream-version", default="0.19.0", help="of TensorRT-LLM")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--fold", type=Path, help="only make the tables of this runs.jsonl")
    parser.add_argument("--series", default=",".join(SERIES))
    parser.add_argument("--kinds", default="generate,stream,grpc", help=", ".join(KINDS))
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--warmup", type=float, default=0.7)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument(
        "--step-ms",
        type=float,
        default=0,
        help="pause before each event of all engines and of echo",
    )
    parser.add_argument(
        "--merge", choices=("true", "false"), default="true",
        help="ours may put tokens into one event that are ready before the last one has left; "
        "false: as many events as upstream",
    )  # fmt: skip
    parser.add_argument(
        "--text-work",
        action="store_true",
        help="the double of the LLM API does what TensorRT-LLM's own Python does with text",
    )
    parser.add_argument("--decoupled", choices=("true", "false"), default="true")
    a = parser.parse_args()
    if a.merge == "true" and "grpc-stream" in a.kinds and "ours-llmapi" in a.series and not a.fold:
        parser.error(
            "the gRPC client knows the end of a stream by counting events, and ours-llmapi merges "
            "some: add --merge false, or leave grpc-stream or ours-llmapi out"
        )
    a.out.mkdir(parents=True, exist_ok=True)
    if a.fold:
        rows = [json.loads(line) for line in a.fold.read_text(encoding="utf-8").splitlines()]
        facts = {"runs": str(a.fold)}
    else:
        work = Path(tempfile.mkdtemp(prefix="overhead-ab-"))
        try:
            source = a.upstream and upstream.Source(
                a.upstream,
                a.upstream_commit,
                a.upstream_prefix,
                a.upstream_version,
                tuple(filter(None, a.upstream_without.split(","))),
            )
            flags = {
                "decoupled": a.decoupled == "true",
                "merge": a.merge == "true",
                "text_work": a.text_work,
            }
            with bench(source, work, a.series.split(","), step_ms=a.step_ms, **flags) as b:
                facts = conditions(a, b.idle_cpu())
                rows = asyncio.run(measure(b, a, a.out / "runs.jsonl"))
        finally:
            shutil.rmtree(work, ignore_errors=True)
    (a.out / "fragment.md").write_text(report.markdown(rows, facts), encoding="utf-8")
    print(report.table(rows))


if __name__ == "__main__":
    main()
