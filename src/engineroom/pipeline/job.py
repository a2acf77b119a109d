"""What every verb works on: a spec, the catalog, a workspace, a run id and a reporter."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from engineroom.catalog import Catalog, Contract, KvRecipe, WeightRecipe
from engineroom.catalog.load import in_range
from engineroom.errors import FindingsError, SpecError, UsageError, Where
from engineroom.lanes import LANES, Lane, LaneRequest
from engineroom.runner import model_source
from engineroom.runner.verified import Verified
from engineroom.spec import LoadedSpec, Target, load_spec
from engineroom.types import Finding, GpuSku, ModelShape, StackRelease


class Reporter:
    """Where a verb says what it is doing; this one says nothing. The terminal has its own."""

    def note(self, text: str) -> None:
        """A line of progress."""

    def progress(self, phase: str, done: int, total: int) -> None:
        """A bar: `total` 0 means unknown."""

    def answer(self, text: str) -> None:
        """A piece of a streamed answer."""

    def line(self, text: str) -> None:
        """A line of a tool's output as it comes; its log has all of them."""


@dataclass(frozen=True)
class ResolvedTarget:
    """A target with what the catalog knows about it."""

    index: int
    target: Target
    sku: GpuSku
    stack: StackRelease
    contract: Contract | None
    lane: Lane

    def known_contract(self) -> Contract:
        """The contract.

        Raises:
            FindingsError: the stack's version is unknown: build and render refuse.
        """
        if self.contract is None:
            raise FindingsError(
                f"{self.target.id}: no contract of {self.stack.runtime_name} "
                f"{self.stack.runtime_version}; what it accepts is unknown, so nothing is written for it",
                hint="use a known version, or add its contract to a --catalog overlay",
            )
        return self.contract


@dataclass(frozen=True)
class Job:
    """One invocation on one spec.

    Attributes:
        out: the workspace; everything engineroom writes for the spec is below it.
        run_id: in every manifest of this invocation.
    """

    loaded: LoadedSpec
    catalog: Catalog
    out: Path
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:16])
    reporter: Reporter = field(default_factory=Reporter)

    @contextlib.contextmanager
    def located(self) -> Iterator[None]:
        """Errors that name only a key of the spec get its file and line."""
        try:
            yield
        except SpecError:
            raise
        except UsageError as error:
            if error.where is not None and error.where.key and error.where.file is None:
                error.where = self.loaded.where(error.where.key)
            raise

    def place_of(self, finding: Finding) -> Where:
        """File, line and key of a finding: in the file it names, else in the spec."""
        if finding.file is not None:
            return Where(finding.file, finding.line, finding.key)
        return self.loaded.where(finding.key)

    @cached_property
    def targets(self) -> tuple[ResolvedTarget, ...]:
        """Every target, resolved.

        Raises:
            SpecError: all unknown SKUs and stacks at once.
        """
        resolved: list[ResolvedTarget] = []
        problems: list[UsageError] = []
        for i, target in enumerate(self.loaded.spec.targets):
            try:
                sku = self.catalog.sku(target.sku, self.loaded.where(f"targets[{i}].sku"))
                where = self.loaded.where(f"targets[{i}].stack")
                stack = self.catalog.lane_stack(target.stack, target.lane, where)
            except UsageError as error:
                problems.append(error)
                continue
            contract = self.catalog.lane_contract(target.lane, stack.runtime_version)
            resolved.append(ResolvedTarget(i, target, sku, stack, contract, LANES[target.lane]))
        if problems:
            raise SpecError(problems)
        return tuple(resolved)

    @property
    def own_files(self) -> Path:
        """Folder of the workspace for locks and digests; no artefact, and safe to remove."""
        return self.out / ".engineroom"

    @cached_property
    def verified(self) -> Verified:
        """Digests of files that were verified before; a verb that may write saves it at its end."""
        return Verified(self.own_files / "verified.json")

    @cached_property
    def local_model(self) -> Path | None:
        """The model folder, or None for a hub id that is not on this machine."""
        with self.located():
            return model_source.local_folder(
                self.loaded.spec.model, self.loaded.folder, download=False
            )

    @cached_property
    def shape(self) -> ModelShape | None:
        with self.located():
            return None if self.local_model is None else model_source.read_shape(self.local_model)

    @cached_property
    def weight_recipe(self) -> WeightRecipe:
        p = self.loaded.spec.precision
        key = "precision.recipe" if p.recipe else "precision.weights"
        return self.catalog.weight_recipe(p.recipe or str(p.weights), self.loaded.where(key))

    @cached_property
    def kv_recipe(self) -> KvRecipe:
        key = "precision.kv_cache"
        return self.catalog.kv_recipe(self.loaded.spec.precision.kv_cache, self.loaded.where(key))

    @property
    def group_size(self) -> int | None:
        groups = self.weight_recipe.group_size
        return (self.loaded.spec.precision.group_size or groups.default) if groups else None

    @property
    def checkpoint_prefix(self) -> str:
        """Beginning of the folder name of checkpoints in the spec's two precisions.

        Raises:
            UsageError: no recipe for one of them.
        """
        group = f"-g{self.group_size}" if self.weight_recipe.group_size else ""
        return f"{self.weight_recipe.id}{group}-kv_{self.kv_recipe.id}-"

    def lane_request(self, resolved: ResolvedTarget, checkpoint: str) -> LaneRequest:
        """What a lane method gets; `checkpoint` is relative to the workspace.

        Raises:
            FindingsError: no contract of the version.
        """
        version, lane = resolved.stack.runtime_version, resolved.lane
        contract = resolved.known_contract()
        if not in_range(version, lane.stack_versions):
            raise FindingsError(
                f"{resolved.target.id}: the {lane.name} lane is written for "
                f"{resolved.stack.runtime_name} {lane.stack_versions}, not {version}",
                hint="choose another stack or lane",
            )
        limits = resolved.target.limits
        shape = self.shape
        return LaneRequest(
            spec=self.loaded.spec,
            target=resolved.target,
            sku=resolved.sku,
            stack=resolved.stack,
            contract=contract,
            weight_recipe=self.weight_recipe,
            kv_recipe=self.kv_recipe,
            max_seq_len=limits.max_seq_len or (shape.max_position_embeddings if shape else None),
            checkpoint=checkpoint,
            shape=shape,
        )


def open_job(
    spec_file: Path,
    *,
    catalog: Path | None = None,
    out: Path | None = None,
    reporter: Reporter | None = None,
) -> Job:
    """Load spec and catalog.

    Args:
        out: workspace; by default ``engineroom-out/<name>`` below the working directory.

    Raises:
        SpecError, UsageError: with file, line and key.
    """
    loaded = load_spec(spec_file)
    workspace = (out or Path("engineroom-out") / loaded.spec.name).absolute()
    return Job(loaded, Catalog(catalog), workspace, reporter=reporter or Reporter())


def only_targets(job: Job, wanted: str | None) -> tuple[ResolvedTarget, ...]:
    """All targets, or the one of that id.

    Raises:
        UsageError: no such target.
    """
    if wanted is None:
        return job.targets
    chosen = tuple(item for item in job.targets if item.target.id == wanted)
    if not chosen:
        known = ", ".join(item.target.id for item in job.targets)
        raise UsageError(f"no target `{wanted}` in the spec", hint=f"targets: {known}")
    return chosen
