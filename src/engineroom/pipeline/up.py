"""`up`: the whole chain for the spec's targets, with a summary of what was real and what stood in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from engineroom.errors import ExternalToolError
from engineroom.names import RuntimeName
from engineroom.pipeline.build import Artefact, build
from engineroom.pipeline.check import require_no_errors
from engineroom.pipeline.deploy import deploy
from engineroom.pipeline.generate import Generated, generate
from engineroom.pipeline.job import Job, ResolvedTarget
from engineroom.pipeline.plan import plan
from engineroom.pipeline.quantize import Checkpoint, find, quantize
from engineroom.pipeline.render import Repository, folder, render
from engineroom.pipeline.serve import serve
from engineroom.runner import chat, files

SUMMARY = "summary.json"
SCHEMA_VERSION = 1
QUESTION = "What is the capital of France?"
REFERENCE = str(RuntimeName.REFERENCE)


@dataclass
class Stage:
    """One line of the summary; `artefacts` rows have lane, path, sha256 and stood_in."""

    name: str
    status: str = "ok"
    seconds: float = 0.0
    artefacts: list[dict[str, Any]] = field(default_factory=list)
    real: str = ""

    def add(self, lane: str, path: str, sha256: str, stood_in: str | None = None) -> None:
        self.artefacts.append({"lane": lane, "path": path, "sha256": sha256, "stood_in": stood_in})


@dataclass(frozen=True)
class Summary:
    """What `up` did."""

    stages: tuple[Stage, ...]
    answers: tuple[Generated, ...]

    @property
    def ok(self) -> bool:
        return all(stage.status == "ok" for stage in self.stages)

    def as_dict(self, job: Job) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "name": job.loaded.spec.name,
            "run_id": job.run_id,
            "catalog_digest": job.catalog.digest,
            "stages": {
                stage.name: {
                    "status": stage.status,
                    "seconds": round(stage.seconds, 2),
                    "artefacts": stage.artefacts,
                    "what_was_real": stage.real,
                }
                for stage in self.stages
            },
        }


class _Chain:
    """Runs stages in order, timing each; a stage is ok only if it is for every lane."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.stages: list[Stage] = []
        self.lanes = {str(item.target.lane) for item in job.targets}

    def run(self, name: str, work: Callable[[Stage], None], real: str) -> None:
        stage = Stage(name, real=real)
        self.stages.append(stage)
        self.job.reporter.note(f"stage {name}")
        started = time.monotonic()
        try:
            work(stage)
            absent = self.lanes - {row["lane"] for row in stage.artefacts}
            if absent:
                stage.status = "failed"
        except BaseException:
            stage.status = "failed"
            raise
        finally:
            stage.seconds = time.monotonic() - started

    def write(self, name: str, **facts: Any) -> tuple[str, str]:
        """A JSON result of a stage: (relative path, sha256)."""
        path = self.job.out / "results" / f"{name}.json"
        files.write_json(path, {"schema_version": 1, "run_id": self.job.run_id, **facts})
        return path.relative_to(self.job.out).as_posix(), files.sha256_file(path)


def up(
    job: Job,
    *,
    runtime: RuntimeName = RuntimeName.TENSORRT_LLM,
    question: str = QUESTION,
    max_tokens: int = 48,
) -> Summary:
    """Run check, plan, quantize, build, render, serve, generate, deploy.

    With ``runtime`` reference, an engine that cannot be compiled here is its build plan, and serving
    is done by the reference runtime; both are marked ``stood_in``. Repositories of one lane differ
    only in SKU sizes, so each lane is served once, from its first target.

    Writes ``summary.json`` into the workspace, also when a stage fails.

    Raises:
        EngineroomError: of the stage that failed.
    """
    chain = _Chain(job)
    answers: list[Generated] = []
    stood_in = REFERENCE if runtime is RuntimeName.REFERENCE else None
    try:
        chain.run("check", lambda s: _check(chain, s), "rules over the shipped facts")
        chain.run("plan", lambda s: _plan(chain, s), "arithmetic; no GPU was asked")
        chain.run("quantize", lambda s: _quantize(chain, s), "ModelOpt PTQ and its exporters")
        chain.run("build", lambda s: _build(chain, s, stood_in), _build_real(stood_in))
        chain.run(
            "render",
            lambda s: _render(chain, s, runtime, stood_in),
            "Jinja, parsed by Triton's ModelConfig",
        )
        chain.run(
            "serve",
            lambda s: _serve(chain, s, runtime, question, max_tokens, answers),
            _serve_real(stood_in),
        )
        chain.run(
            "generate",
            lambda s: _generated(chain, s, answers, question, stood_in),
            _serve_real(stood_in),
        )
        chain.run(
            "deploy",
            lambda s: _deploy(chain, s, stood_in),
            "Helm SDK and kubernetes-validate; no cluster",
        )
    finally:
        summary = Summary(tuple(chain.stages), tuple(answers))
        files.write_json(job.out / SUMMARY, summary.as_dict(job))
    return summary


def _build_real(stood_in: str | None) -> str:
    engine = "the plan, no engine" if stood_in else "trtllm-build"
    return f"llmapi, vllm: package; engine: {engine}"


def _serve_real(stood_in: str | None) -> str:
    return "real tritonserver; tokens by transformers on CPU" if stood_in else "tritonserver"


def _each_lane(job: Job) -> list[ResolvedTarget]:
    """The first target of every lane, in the spec's order."""
    first: dict[str, ResolvedTarget] = {}
    for item in job.targets:
        first.setdefault(str(item.target.lane), item)
    return list(first.values())


def _check(chain: _Chain, stage: Stage) -> None:
    findings = require_no_errors(chain.job)
    path, digest = chain.write("check", findings=[f.as_dict() for f in findings])
    for item in _each_lane(chain.job):
        stage.add(str(item.target.lane), path, digest)


def _plan(chain: _Chain, stage: Stage) -> None:
    plans = plan(chain.job)
    path, digest = chain.write("plan", plans=[p.as_dict() for p in plans])
    for lane in sorted({p.lane for p in plans}):
        stage.add(lane, path, digest)


def _quantize(chain: _Chain, stage: Stage) -> None:
    checkpoint = cast(Checkpoint, quantize(chain.job))
    for item in _each_lane(chain.job):
        stage.add(
            str(item.target.lane),
            checkpoint.relative(chain.job),
            str(checkpoint.manifest["digest"]),
        )


def _build(chain: _Chain, stage: Stage, stood_in: str | None) -> None:
    artefacts = cast(list[Artefact], build(chain.job, allow_plan=stood_in is not None))
    for item in artefacts:
        stage.add(
            str(item.target.target.lane),
            item.relative(chain.job),
            str(item.manifest["digest"]),
            stood_in if item.is_engine_plan else None,
        )


def _render(chain: _Chain, stage: Stage, runtime: RuntimeName, stood_in: str | None) -> None:
    for repository in cast(list[Repository], render(chain.job, runtime=runtime)):
        path = repository.path.relative_to(chain.job.out).as_posix()
        stage.add(str(repository.target.target.lane), path, repository.digest, stood_in)


def _serve(
    chain: _Chain,
    stage: Stage,
    runtime: RuntimeName,
    question: str,
    max_tokens: int,
    answers: list[Generated],
) -> None:
    """Start each lane's server once, and ask while it runs."""
    job = chain.job
    for item in _each_lane(job):
        lane = str(item.target.lane)
        with serve(job, item.target.id, runtime=runtime) as serving:
            job.reporter.note(
                f"{lane}: ready after {serving.ready_seconds:.1f} s, asking: {question}"
            )
            tokenizer = _tokenizer_folder(job)
            answer = generate(
                serving.server.endpoints.url,
                question,
                max_tokens=max_tokens,
                stream=job.loaded.spec.serving.streaming,
                tokenizer=tokenizer,
                reporter=job.reporter,
            )
            answers.append(answer)
        if not answer.answer.text:
            raise ExternalToolError(f"{lane}: the server answered with no text")
        path = folder(job, item, runtime)
        stage.add(
            lane,
            path.relative_to(job.out).as_posix(),
            serving.repository.digest,
            REFERENCE if runtime is RuntimeName.REFERENCE else None,
        )


def _tokenizer_folder(job: Job) -> Path | None:
    """The checkpoint's folder, when it has a chat template to wrap the question in."""
    checkpoint = find(job).path / "hf"
    return checkpoint if chat.template_of(checkpoint) else None


def _generated(
    chain: _Chain, stage: Stage, answers: list[Generated], question: str, stood_in: str | None
) -> None:
    for answer in answers:
        path, digest = chain.write(
            f"generate-{answer.lane}",
            question=question,
            runtime=stood_in or "tensorrt_llm",
            **answer.as_dict(),
        )
        stage.add(answer.lane, path, digest, stood_in)


def _deploy(chain: _Chain, stage: Stage, stood_in: str | None) -> None:
    for release in deploy(chain.job, dry_run=True, allow_plan=stood_in is not None):
        path = release.path.relative_to(chain.job.out).as_posix()
        digest = files.sha256_file(release.path / "manifests.yaml")
        stage.add(str(release.target.target.lane), path, digest, release.stood_in)
