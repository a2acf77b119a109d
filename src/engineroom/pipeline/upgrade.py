"""`upgrade`: from one release to another within a lane: the new spec, and what to know before it runs.

The differences are those of `matrix diff`; a spec is taken to both sides by the lanes themselves. Lanes
that end are refused: `migrate` is the way across.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engineroom.catalog import Catalog
from engineroom.errors import EngineroomError, FindingsError, UsageError, Where
from engineroom.lanes import LANES
from engineroom.names import LaneName, Support
from engineroom.pipeline import upgrade_parts as parts
from engineroom.pipeline.check import check
from engineroom.pipeline.job import Job, ResolvedTarget
from engineroom.pipeline.matrix import ReleaseDiff, diff_stacks
from engineroom.pipeline.matrix_affected import SpecDiff
from engineroom.pipeline.matrix_emitted import without_model
from engineroom.pipeline.matrix_spec import diff_spec
from engineroom.pipeline.own_folder import may_write, replaced
from engineroom.pipeline.upgrade_settings import (
    Added,
    touched_settings,
    tried,
    trtllm_settings,
    vllm_settings,
)
from engineroom.pipeline.upgrade_spec import ANEW, moved_text, stack_value, text_for
from engineroom.pipeline.upgrade_text import markdown
from engineroom.runner import files
from engineroom.spec.load import parse_spec
from engineroom.types import StackRelease
from engineroom.types.migration import SettingReport
from engineroom.types.upgrade import LaneEnd, TargetUpgrade, Upgrade

REPORT, REPORT_MD = "report.json", "report.md"


def upgrade(
    old: str,
    new: str,
    *,
    job: Job | None = None,
    catalog: Path | None = None,
    out: Path | None = None,
    image: str | None = None,
    assume_from: bool = False,
    write: bool = True,
    force: bool = False,
) -> Upgrade:
    """Compare two stacks, and write the spec for the new one with its report.

    Args:
        old, new: Triton releases, or versions: ``1.2.1``, ``trtllm-1.2.1``, ``vllm-0.24.0``.
        job: the spec to move; without one the report says what any spec would meet.
        catalog, out: overlay and workspace where there is no job. Files are written below
            ``<workspace>/upgrade/<old>-to-<new>/``, all or none.
        image: container of the new stack where it is a version.
        assume_from: take every target to be on `old`, whatever its stack says.
        write: off: nothing is written, and `paths` is empty.
        force: replace what the user changed in the folder, and keep what is not of `upgrade` there.

    Raises:
        UsageError: an unknown stack, the same one twice, a spec without a target on `old`, or a folder that
            cannot be written or holds files that the user changed or added.
        FindingsError: a lane of the spec ends with `new`, or nobody knows what `new` accepts.
    """
    facts = job.catalog if job else Catalog(catalog)
    left, right = (
        parts.stack_of(facts, name, key) for name, key in ((old, "--from"), (new, "--to"))
    )
    if left.id == right.id:
        raise UsageError(
            f"--from and --to are both {left.id}", hint="name two different releases or versions"
        )
    if image and right.id in facts.stacks:
        raise UsageError(
            f"{right.id} names its own image", where=Where(key="--image"),
            hint="drop --image, or set deploy.image in the spec",
        )  # fmt: skip
    base = (job.out if job else (out or Path("engineroom-out")).absolute()) / "upgrade"
    run = _Run(facts, left, right, image, base / f"{left.id}-to-{right.id}")
    if write:
        may_write(run.out, "upgrade", force=force, given=out)
    result = run.of_spec(job, assume_from) if job else run.of_any()
    return _written(result, job, force, out) if write else result


class _Run:
    """One comparison; `of_spec` and `of_any` are its two results."""

    def __init__(
        self, catalog: Catalog, old: StackRelease, new: StackRelease, image: str | None, out: Path
    ) -> None:
        self.catalog, self.old, self.new, self.image, self.out = catalog, old, new, image, out
        self.release = new.id in catalog.stacks
        facts = self.release and old.id in catalog.stacks
        both = bool(old.tensorrt_llm and new.tensorrt_llm)
        self.change: ReleaseDiff | None = (
            diff_stacks(catalog, old, new, facts=facts) if both else None
        )

    def of_any(self) -> Upgrade:
        """What any spec would meet: every lane of the two stacks."""
        lanes = self._lanes(list(LANES))
        if not lanes:
            raise UsageError(
                f"{self.old.id} and {self.new.id} have no runtime in common",
                hint="compare two Triton releases, two TensorRT-LLM versions, or two vLLM versions",
            )
        result = self._result(lanes)
        return replace(
            result,
            details=tuple(c.as_dict() for c in self.change.changes) if self.change else (),
            notes=tuple(
                f"{parts.ends(row)}; `engineroom migrate` is the way across"
                for row in lanes
                if row.ends
            ),
            rebuild=tuple(parts.rebuild_any(self.catalog, self.new, lanes)),
            rollback=(f"set the stack of each target back to {parts.shown(self.old)}",),
        )

    def of_spec(self, job: Job, assume_from: bool) -> Upgrade:
        """The spec's targets that are on the old side, moved to the new one."""
        moving = self._moving(job, assume_from)
        lanes = self._lanes([item.target.lane for item in moving])
        self._refuse(job, moving, lanes)
        value = stack_value(self.new, self.release, self.image)
        in_place, notes = moved_text(job.loaded, (item.index for item in moving), value)
        # In the old file's place: its relative paths hold there, and so do the lines of findings.
        after = replace(job, loaded=parse_spec(in_place, job.loaded.file))
        moved = {item.index: item for item in after.targets}
        unknown: list[str] = []
        touched = self._touched(job, unknown)
        targets: list[TargetUpgrade] = []
        for item in moving:
            there = moved[item.index]
            targets.append(self._target(job, item, there, touched))
            if targets[-1].unknown is not None:
                unknown.append(targets[-1].unknown)
        text, more = text_for(in_place, job.loaded.folder, self.out)
        stay = tuple(item.target.id for item in job.targets if item not in moving)
        if stay:
            notes.insert(0, f"targets on other stacks stay as they are: {', '.join(stay)}")
        if not self.release and not self.image:
            more.append(f"{self.new.id} names no image: add one with --image, or set deploy.image")
        deployed = job.loaded.spec.deploy.image
        if deployed:
            more.append(
                f"deploy.image stays {deployed}, and wins over the stack's image: change it too"
            )
        findings = _findings(job, after, unknown)
        result = self._result(lanes)
        return replace(
            result,
            spec=job.loaded.file.as_posix(),
            targets=tuple(targets),
            untouched=stay,
            findings=tuple(findings or ()),
            checked=findings is not None,
            notes=(*notes, *more),
            unknown=tuple(dict.fromkeys([*unknown, *result.unknown])),
            rebuild=tuple(parts.rebuild(self.catalog, self.new, moving, moved)),
            rollback=tuple(parts.rollback(job, moving, self.old, result.clients)),
            spec_text=text,
            comments_lost=ANEW in (*notes, *more),
        )

    def _lanes(self, wanted: Sequence[LaneName]) -> list[LaneEnd]:
        found = (
            parts.lane_end(self.catalog, self.old, self.new, lane) for lane in dict.fromkeys(wanted)
        )
        return [row for row in found if row is not None]

    def _moving(self, job: Job, assume_from: bool) -> list[ResolvedTarget]:
        """Targets on the old side."""
        found = [
            item
            for item in job.targets
            if item.stack.id == self.old.id
            or (assume_from and bool(item.stack.tensorrt_llm) == bool(self.old.tensorrt_llm))
        ]
        if not found:
            have = ", ".join(dict.fromkeys(item.stack.id for item in job.targets))
            raise UsageError(
                f"no target of the spec is on {self.old.id}; its stacks: {have}",
                where=job.loaded.where("targets"),
                hint=f"use --from {job.targets[0].stack.id}, or --assume-from to take every target to be "
                f"on {self.old.id}",
            )
        return found

    def _refuse(self, job: Job, moving: Sequence[ResolvedTarget], lanes: Sequence[LaneEnd]) -> None:
        """A lane that ends, or a version of which nobody knows what it accepts."""
        have = {row.lane: row for row in lanes}
        for item in moving:
            row, name = have.get(item.target.lane), item.target.id
            place = job.loaded.where(f"targets[{item.index}].lane")
            if row is None:
                raise FindingsError(
                    f"{name}: {self.new.id} has no runtime for the {item.target.lane} lane",
                    where=place,
                    hint="name a Triton release, or a version of that runtime",
                )
            if row.after is not Support.YES:
                raise FindingsError(
                    f"{name}: {parts.ends(row)} ({row.source})",
                    where=place,
                    hint="`engineroom migrate` writes the spec of the llmapi lane, the client field map and "
                    f"the A/B plan; or stay on {self.old.id}",
                )
            if self.catalog.lane_contract(row.lane, row.new_version) is None:
                vllm = row.lane is LaneName.VLLM
                known = self.catalog.vllm_versions if vllm else self.catalog.contract_versions
                raise FindingsError(
                    f"{name}: no contract of {row.new_version} ({self.new.id}): what it accepts is unknown, "
                    "so no spec is written for it",
                    where=job.loaded.where(f"targets[{item.index}].stack"),
                    hint=f"known versions: {', '.join(known)}; or add its contract to a --catalog overlay",
                )

    def _touched(self, job: Job, unknown: list[str]) -> SpecDiff | None:
        """`matrix diff --file`; what it does not say of vLLM is said by the engine arguments."""
        if self.change is None:
            return None
        found = diff_spec(job, self.change)
        others = {i.target.id for i in job.targets if not i.stack.tensorrt_llm}
        unknown += [text for text in found.unknown if text.split(":", 1)[0] not in others]
        return found

    def _target(
        self, job: Job, old: ResolvedTarget, new: ResolvedTarget, touched: SpecDiff | None
    ) -> TargetUpgrade:
        """Every setting that is written for the target; what only one side can write is unknown."""
        why: str | None = None
        rows: list[SettingReport] = []
        added: Added = {}
        try:
            _ = job.shape
        except UsageError:
            job = without_model(job)
        try:
            if old.target.lane is LaneName.VLLM:
                rows, added = vllm_settings(job, old, new)
            elif self.change is not None and touched is not None:
                rows, added = trtllm_settings(job, old, self.change, touched)
            if not rows:
                why = f"{old.target.id}: what is written for {self.old.id} is unknown: no contract"
        except EngineroomError as error:
            why = tried(old.target.id, error)
            rows = touched_settings(old, touched)
        return TargetUpgrade(old.target.id, new.target.id, old.target.lane, tuple(rows), added, why)

    def _result(self, lanes: Sequence[LaneEnd]) -> Upgrade:
        """What both kinds of result have."""
        changed = self.change if any(r.lane is not LaneName.VLLM for r in lanes) else None
        return Upgrade(
            old=self.old.id,
            new=self.new.id,
            spec=None,
            lanes=tuple(lanes),
            targets=(),
            untouched=(),
            clients=tuple(parts.clients(self.catalog, lanes)),
            rebuild=(),
            host=tuple(parts.hosts(self.old, self.new, lanes)),
            findings=(),
            changes=changed.counts() if changed else {},
            details=(),
            notes=(),
            unknown=changed.unknown if changed else (),
            rollback=(),
            spec_text=None,
            out=self.out,
            paths={},
        )


def _findings(before: Job, after: Job, unknown: list[str]) -> list[dict[str, Any]] | None:
    """What `check` says of the new spec and does not say of the old one; None: it could not run."""
    try:
        old = {(f.code, f.key) for f in check(before, artefacts=False)}
        new = check(after, artefacts=False)
    except EngineroomError as error:
        unknown.append(tried("check could not run", error))
        return None
    return [f.as_dict() for f in new if (f.code, f.key) not in old]


def _written(result: Upgrade, job: Job | None, force: bool, given: Path | None) -> Upgrade:
    names = {"report_json": REPORT, "report_md": REPORT_MD}
    if job is not None and result.spec_text is not None:
        own = job.loaded.file.name
        names = {"spec": "engineroom.yaml" if own in names.values() else own, **names}
    placed = replace(result, paths={key: result.out / name for key, name in names.items()})
    with replaced(result.out, "upgrade", force=force, given=given) as staging:
        if result.spec_text is not None and "spec" in names:
            files.write_text(staging / names["spec"], result.spec_text)
        files.write_json(staging / REPORT, placed.as_dict())
        files.write_text(staging / REPORT_MD, markdown(placed))
    return placed
