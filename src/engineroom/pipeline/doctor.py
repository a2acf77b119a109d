"""`doctor`: this machine against the targets of a spec, and the file that judges a pod's machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from math import ceil
from pathlib import Path
from typing import Any

from engineroom.catalog import Catalog
from engineroom.checks import TargetContext, drivers, order
from engineroom.checks import machine as software
from engineroom.checks.require_cuda import evaluate
from engineroom.errors import UsageError, Where
from engineroom.names import LaneName, Severity
from engineroom.pipeline.job import Job, ResolvedTarget, only_targets, open_job
from engineroom.planning import weight_bytes
from engineroom.planning.capacity import MIB, WeightBytes, rank_weight_bytes
from engineroom.runner import files, model_source, preflight
from engineroom.runner.machine import judge, nvml, packages
from engineroom.runner.machine.facts import Roots, collect, version_of
from engineroom.spec import DeploymentSpec
from engineroom.types import Finding, StackRelease

GIB = 1024 * MIB
NCCL_SHM = GIB
"""`--shm-size=1g`, NCCL user guide; only ranks that talk to each other need it."""
_BRANCHES = (
    "450.0", "470.0", "510.0", "525.0", "535.0", "545.0", "550.0", "555.0", "560.0", "565.0",
    "570.0", "575.0", "580.0", "590.0", "595.0", "610.0",
)  # fmt: skip
"""Starts of driver branches: where a rule about drivers may change its mind."""
_OLDEST = "100.0"


@dataclass(frozen=True)
class Diagnosis:
    """What `doctor` found.

    Attributes:
        machine: the facts, see `runner/machine/facts.py`; None is "not known".
        verdict: ``unfit`` (an error), ``doubtful`` (a warning), else ``fits``.
        targets: verdict of each target that was judged, by id.
    """

    machine: Mapping[str, Any]
    findings: tuple[Finding, ...]
    verdict: str
    targets: Mapping[str, str]

    @property
    def has_gpu(self) -> bool:
        return bool(self.machine["gpus"])

    def fails(self, fail_on: str) -> bool:
        """Whether a finding is at or above `fail_on`; ``unknown`` counts unknowns of any severity."""
        return judge.fails([f.as_dict() for f in self.findings], fail_on)

    def summary(self) -> list[str]:
        """The facts that matter most, a line each."""
        m = self.machine
        gpus = ["unknown"] if m["gpus"] is None else [_gpu_line(gpu) for gpu in m["gpus"]]
        memory, cpus, shm = m["memory"], m["cpus"], m["shm"]
        disks = ", ".join(
            f"{name} {judge.size(disk['free_bytes'])} free"
            for name, disk in m["disks"].items()
            if disk is not None
        )
        capped = memory["cgroup_limit_bytes"]
        return [
            *(f"gpu       {line}" for line in gpus or ["none"]),
            f"driver    {m['driver'] or 'unknown'}, CUDA up to {m['cuda'] or 'unknown'}",
            f"container {', '.join(m['container']) or 'no sign of one'}",
            f"memory    {_size(memory['total_bytes'])}, cgroup limit {_size(capped, 'none')}, "
            f"/dev/shm {_size(shm and shm['total_bytes'])}",
            f"cpus      {cpus['count'] or 'unknown'}, quota {cpus['quota'] or 'none'}",
            f"disk      {disks or 'unknown'}",
            "packages  " + ", ".join(f"{name} {v}" for name, v in m["packages"].items()),
        ]

    def as_dict(self) -> dict[str, Any]:
        return {
            "machine": dict(self.machine),
            "findings": [f.as_dict() for f in self.findings],
            "verdict": self.verdict,
            "targets": dict(self.targets),
        }


def _gpu_line(gpu: Mapping[str, Any]) -> str:
    memory = gpu["memory_mib"] or "?"
    return (
        f"{gpu['index']}: {gpu['name']}, compute capability {gpu['compute_capability'] or 'unknown'}, "
        f"{memory} MiB{', MIG on' if gpu['mig'] else ''}"
    )


def _size(number: int | None, without: str = "unknown") -> str:
    return without if number is None else judge.size(number)


def doctor(
    spec_file: Path | None = None,
    *,
    target: str | None = None,
    stack: str | None = None,
    catalog: Path | None = None,
    out: Path | None = None,
    roots: Roots | None = None,
    nvml_module: Any = None,
    package_paths: Sequence[str] | None = None,
) -> Diagnosis:
    """Look at this machine and judge it against every target of the spec, or the one named.

    Args:
        spec_file: None looks at the machine alone.
        stack: a Triton release instead of the targets' own, or for a machine without a spec.
        out: the workspace, whose disk counts.
        roots, nvml_module, package_paths: stand in for the real machine.

    Raises:
        SpecError, UsageError: the spec is wrong, or names what is not there.
    """
    roots = roots or Roots()
    if spec_file is None and target is not None:
        raise UsageError("--target needs a spec", hint="add --file engineroom.yaml")
    job = None if spec_file is None else open_job(spec_file, catalog=catalog, out=out)
    facts = Catalog(catalog) if job is None else job.catalog
    release = None if stack is None else facts.stack(stack, Where(key="--stack"))
    items = () if job is None else only_targets(job, target)
    installed = packages.installed(package_paths)
    workspace = str(job.out if job else out or Path.cwd())
    reader = nvml.reader(roots.seconds, nvml_module)
    machine = collect(roots, nvml=reader, workspace=workspace)
    machine.update(packages.facts(installed, roots))
    found: list[Finding] = [*software.pins(installed)]
    found += software.container_toolkit(machine, needs_gpu=bool(items))
    found += software.python_version(machine, _requires_python())
    verdicts = {}
    if job is None:
        found += _without_spec(machine, release, facts)
        found += software.tensorrt_llm(installed, release.tensorrt_llm if release else None)
    for item in items:
        chosen = item if release is None else replace(item, stack=_own(release, item))
        mine = _judge_target(job, chosen, machine) if job else []
        mine += software.tensorrt_llm(installed, chosen.stack.tensorrt_llm or None)
        verdicts[item.target.id] = _verdict(mine)
        found += mine
    ordered = tuple(order(found))
    return Diagnosis(machine, ordered, _verdict(ordered), verdicts)


def _own(release: StackRelease, item: ResolvedTarget) -> StackRelease:
    """The release as the target's lane runs on it; the target's own stack where it has no container."""
    return release if item.stack.tensorrt_llm else release.of_vllm() or item.stack


def write_preflight(
    path: Path, spec_file: Path, *, target: str | None = None, catalog: Path | None = None
) -> ResolvedTarget:
    """Write the stand-alone check of one target; returns that target.

    Raises:
        UsageError: the spec has several targets and none is named, or the path is a folder, a device
            or somebody else's file.
    """
    job = open_job(spec_file, catalog=catalog)
    items = only_targets(job, target)
    if len(items) != 1:
        known = ", ".join(item.target.id for item in items)
        raise UsageError(
            f"the spec has {len(items)} targets; a pod is checked for one",
            hint=f"--target, one of: {known}",
        )
    if path.is_dir():
        raise UsageError("this is a folder", where=Where(str(path)), hint="name a file to write")
    if path.is_file() and not preflight.is_built(path):
        raise UsageError(
            "this file is there already, and no earlier preflight file",
            where=Where(str(path)),
            hint="name another file, or remove this one",
        )
    files.write_text(path, preflight.build(needs_of(job, items[0], bands=True)))
    return items[0]


def needs_of(job: Job, item: ResolvedTarget, *, bands: bool) -> dict[str, Any]:
    """What a target needs of a host, in the form of `runner/machine/judge.py`.

    Args:
        bands: with the driver rule's answers by driver version, for where the rule itself is not.
    """
    sku, stack = item.sku, item.stack
    world = item.target.ranks
    gpus = min(world, sku.max_gpus_per_node)
    shm = NCCL_SHM if gpus > 1 else 0
    needs: dict[str, Any] = {
        "schema_version": 1,
        "target": item.target.id,
        "sku": sku.id,
        "gpus": gpus,
        "compute_capability": sku.compute_capability,
        "memory_mib": sku.memory_mib,
        "memory_basis": sku.memory_basis,
        "sku_source": "; ".join(sku.source),
        "shm_bytes": shm,
    }
    if sku.node_label_confidence == "high":  # another name than a guessed one proves nothing
        needs["products"] = [sku.node_label, *sku.aliases]
    if stack.cuda:
        needs["cuda"] = stack.cuda
    if sku.brand:
        needs["brand"] = sku.brand
    if stack.require_cuda:
        needs["require_cuda"] = stack.require_cuda
        needs["require_cuda_source"] = "; ".join(stack.source)
    weights = _weights(job)
    if weights is not None and job.shape is not None:
        target = item.target
        rank = rank_weight_bytes(
            weights, job.shape.num_hidden_layers, target.tensor_parallel, target.pipeline_parallel
        )
        made = any((job.out / "checkpoints").glob("*/manifest.json"))
        copies = (0 if made else 1) + (1 if target.lane is LaneName.ENGINE else 0)
        here = ceil(weights.total * gpus / world)
        needs |= {
            "weights_mib": ceil(rank / MIB),
            "weights_bytes": here,
            # The pod's memory without a server beside it; docs/design.md, "Numbers that are estimates".
            "host_memory_bytes": ceil(1.2 * here) + shm + (8 + 4 * gpus) * GIB,
        }
        if not bands:  # a pod reads its artefacts from a claim and writes none
            needs["disk_bytes"] = {"workspace": copies * weights.total}
    if bands:
        needs["driver"] = _bands(_context(job.loaded.spec, job, item))
    return needs


def _weights(job: Job) -> WeightBytes | None:
    """None when the model is not on this machine, or its format is not one that we size."""
    if job.shape is None or job.local_model is None:
        return None
    try:
        recipe = job.weight_recipe
    except UsageError:
        return None
    return weight_bytes(
        job.shape, recipe, job.group_size, model_source.tensor_shapes(job.local_model) or None
    )


def _judge_target(job: Job, item: ResolvedTarget, machine: Mapping[str, Any]) -> list[Finding]:
    needs = needs_of(job, item, bands=False)
    rule = _driver_rule(_context(job.loaded.spec, job, item))
    found = _findings(judge.judge(machine, needs, require=evaluate, driver_rule=rule))
    if "weights_bytes" not in needs:
        found.append(
            Finding(
                "doctor-unknown-size", Severity.WARN, "machine.disks",
                f"the size of `{job.loaded.spec.model.source}` is not known here: disk, host memory and free "
                "GPU memory were not judged", "download the model first, or name its folder",
                judge.STATVFS_DOC, item.target.id,
            )
        )  # fmt: skip
    return found


def _without_spec(
    machine: Mapping[str, Any], stack: StackRelease | None, catalog: Catalog
) -> list[Finding]:
    """The machine alone; with a stack, its driver too, by the SKU that the GPU's name tells."""
    if stack is None:
        return _findings(judge.judge(machine, {}, require=evaluate))
    gpus = machine["gpus"] or []
    name = gpus[0]["name"] if gpus else None
    sku = name and (catalog.sku_by_product(name) or catalog.sku_by_product(name.replace(" ", "-")))
    if not sku:
        what = f"GPU `{name}` is not in the catalog" if name else "there is no GPU to tell the SKU"
        unknown = Finding(
            "doctor-unknown-sku", Severity.WARN, "machine.gpus",
            f"{what}: the driver was not judged for stack {stack.id}",
            "add the SKU to a --catalog overlay" if name else "run it on a host with the GPUs",
            judge.NVML_DOC,
        )  # fmt: skip
        return [unknown, *_findings(judge.judge(machine, {}, require=evaluate))]
    given = {"require_cuda": stack.require_cuda, "cuda": stack.cuda, "brand": sku.brand}
    needs = {key: value for key, value in given.items() if value}
    spec = DeploymentSpec.model_validate(
        {
            "schema_version": 1, "name": "machine", "model": {"source": name},
            "precision": {"weights": "bf16"}, "targets": [{"sku": sku.id, "stack": stack.id}],
        }
    )  # fmt: skip
    context = TargetContext(
        spec, 0, spec.targets[0], sku, stack, catalog.contract(stack.tensorrt_llm), None, catalog
    )
    found = _findings(
        judge.judge(machine, needs, require=evaluate, driver_rule=_driver_rule(context))
    )
    return [replace(f, target=None) for f in found]


def _context(spec: DeploymentSpec, job: Job, item: ResolvedTarget) -> TargetContext:
    return TargetContext(
        spec, item.index, item.target, item.sku, item.stack, item.contract, job.shape, job.catalog
    )


# ---- the one place that knows `checks.drivers`


def _driver_rule(context: TargetContext) -> Callable[[str], list[dict[str, Any]]]:
    """`checks.drivers` asked about a driver that was found, not one that the spec names."""

    def rule(driver: str) -> list[dict[str, Any]]:
        target = context.target.model_copy(update={"driver": driver})
        asked = replace(context, target=target)
        return [
            {**f.as_dict(), "code": f"doctor-{f.code}", "key": "machine.driver"}
            for one in drivers.RULES
            for f in one(asked)
        ]

    return rule


def _bands(context: TargetContext) -> list[dict[str, Any]]:
    """The rule's answers as data: it is asked at every driver where its answer may change."""
    rule = _driver_rule(context)
    stack = context.stack
    starts = {_OLDEST, *_BRANCHES, *filter(None, (stack.min_driver, stack.toolkit_driver))}
    bands: list[dict[str, Any]] = []
    for start in sorted(starts, key=lambda text: version_of(text) or ()):
        # A number that stands nowhere else in the text, just above the start of the band.
        probe = f"{start}.1" if start.count(".") == 1 else start
        mark = f"driver {probe}"
        answers = [
            {**item, "reason": item["reason"].replace(mark, "driver {driver}", 1)}
            for item in rule(probe)
        ]
        if not bands or bands[-1]["findings"] != answers:
            bands.append({"from": "0" if start == _OLDEST else start, "findings": answers})
    return bands


def _findings(items: Sequence[Mapping[str, Any]]) -> list[Finding]:
    return [
        Finding(
            item["code"], Severity(item["severity"]), item["key"], item["reason"], item["fix"],
            item["source"], item["target"],
        )
        for item in items
    ]  # fmt: skip


def _verdict(findings: Sequence[Finding]) -> str:
    return judge.verdict_of([f.as_dict() for f in findings])


def _requires_python() -> str | None:
    try:
        return str(metadata.metadata("engineroom")["Requires-Python"])
    except (metadata.PackageNotFoundError, KeyError):
        return None
