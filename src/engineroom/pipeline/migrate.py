"""`migrate`: an `inflight_batcher_llm` setup becomes a spec of the llmapi lane, and a report.

Nothing of the old setup is run: config.pbtxt, JSON and the build script are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engineroom.catalog import Catalog
from engineroom.catalog.migration import load_migration
from engineroom.catalog.triton_parameters import load_triton_parameters
from engineroom.errors import EngineroomError, FindingsError, UsageError, Where
from engineroom.lanes.llmapi.tensors import tensors
from engineroom.migration import report
from engineroom.migration.decisions import Draft
from engineroom.migration.draft import Wishes, draft_spec
from engineroom.migration.draft_model import FILL_IN
from engineroom.migration.fates import NewModel, Tables, TensorFate, settings
from engineroom.migration.setup import read_setup
from engineroom.migration.veil import Veil
from engineroom.names import LaneName, Support
from engineroom.pipeline.check import check
from engineroom.pipeline.init import DEFAULT_STACK, HUB_DATASET
from engineroom.pipeline.job import Job
from engineroom.pipeline.migrate_ab import ab_files, ab_plan
from engineroom.pipeline.migrate_clients import client_map
from engineroom.pipeline.migrate_fields import FieldLine, core_lines, front_lines
from engineroom.pipeline.migrate_files import find_path, folders, locate, read_files
from engineroom.pipeline.own_folder import may_write, replaced
from engineroom.pipeline.upgrade_parts import stack_of
from engineroom.planning.support_matrix import lane_support
from engineroom.runner import files
from engineroom.spec.load import load_spec, parse_spec
from engineroom.spec.serving import Features
from engineroom.types import StackRelease
from engineroom.types.migration import Migration, OldSetup, SettingReport

SPEC, REPORT_JSON, REPORT_MD = "engineroom.yaml", "report.json", "report.md"
CLIENTS, AB_PLAN = "clients.md", "ab-plan.md"
_STAND_IN = "unknown/unknown"
"""A hub id that stands for a model which is not on this machine, so that the rest is checked."""


def migrate(
    repo: Path,
    *,
    engine: Path | None = None,
    checkpoint: Path | None = None,
    build_script: Path | None = None,
    out: Path,
    stack: str | None = None,
    sku: str | None = None,
    name: str | None = None,
    model: str | None = None,
    catalog: Path | Catalog | None = None,
    force: bool = False,
) -> Migration:
    """Read an old setup and write `engineroom.yaml`, `report.json`, `report.md`, `clients.md`,
    `ab-plan.md` and the files of the plan into the folder `out`, all or none.

    Args:
        repo: model repository with one folder a model.
        engine: folder of the engine, or its config.json.
        checkpoint: folder of the TensorRT-LLM checkpoint; or a Hugging Face folder, which becomes
            model.source as `model` does.
        build_script: shell script; it is read, never run.
        out: new, empty, or as `migrate` wrote it before.
        force: replace what the user changed in `out`, and keep what is not of `migrate` there.
        catalog: a folder that overlays the shipped data, or a loaded catalog.
        stack: Triton release, or a TensorRT-LLM version.
        sku: GPU of the new service, if no file says it or it changes.

    Raises:
        UsageError: no such folder, not an inflight_batcher_llm setup, a file that its format does not
            allow, an unknown stack, SKU or name, or an `out` that is something else or was changed.
    """
    known = catalog if isinstance(catalog, Catalog) else Catalog(catalog)
    may_write(out, "migrate", force=force)
    release, written = _stack(known, stack)
    texts, model = read_files(repo, engine, checkpoint, build_script, model)
    setup, unread = read_setup(texts, load_migration(known))
    wishes = Wishes(
        model=model,
        sku=known.sku(sku, Where(key="--sku")) if sku else None,
        stack=written,
        release=release,
        name=name,
        dataset=HUB_DATASET,
        locate=lambda text: locate(text, folders(repo, build_script)),
        folder=lambda text: find_path(text, folders(repo, build_script)),
    )
    draft = draft_spec(setup, known, wishes)
    if known.known_stack(written) is None:
        draft.spec["targets"][0]["stack"] = {"trtllm": release.tensorrt_llm}
    draft.notes += [f"{problem}: the rest of the script may be read wrongly" for problem in unread]
    _name_is_good(draft, name)
    veil = Veil(setup)
    found = veil.settings(settings(draft, _tables(setup, known, release, draft)))
    draft.spec = veil.data(draft.spec)
    draft.missing = [veil.text(text) for text in draft.missing]
    spec_text = _spec_text(draft, repo)
    return _write(out, draft, found, spec_text, known, veil, force)


def _write(
    out: Path,
    draft: Draft,
    found: tuple[SettingReport, ...],
    spec_text: str,
    known: Catalog,
    veil: Veil,
    force: bool,
) -> Migration:
    """All files, staged beside `out` and renamed into place.

    Raises:
        UsageError: `out` is something else than a folder for this.
    """
    setup = draft.setup
    with replaced(out, "migrate", force=force) as folder:
        files.write_text(folder / SPEC, spec_text)
        findings = tuple(veil.data(dict(f)) for f in _check(folder / SPEC, draft, known))
        draft.missing, draft.notes = (
            [veil.text(t) for t in ts] for ts in (draft.missing, draft.notes)
        )
        told = (setup, found, draft.missing, draft.notes, findings)
        files.write_json(folder / REPORT_JSON, veil.known.tree(report.as_json(*told)))
        files.write_text(folder / REPORT_MD, veil.page(report.as_markdown(*told)))
        files.write_text(folder / CLIENTS, veil.page(client_map(setup, draft.spec, known)))
        files.write_text(folder / AB_PLAN, veil.page(ab_plan(setup, draft.spec, known)))
        more = ab_files(setup, draft.spec, known)
        for name, text in more.items():
            files.write_text(folder / name, veil.page(text))
    named = {"spec": SPEC, "report_json": REPORT_JSON, "report_md": REPORT_MD, "clients": CLIENTS,
             "ab_plan": AB_PLAN} | {name: name for name in more}  # fmt: skip
    return Migration(
        setup=setup,
        spec_text=spec_text,
        spec=draft.spec,
        settings=found,
        findings=findings,
        missing=tuple(draft.missing),
        notes=tuple(draft.notes),
        out=out,
        paths={key: out / name for key, name in named.items()},
    )


# ---- what the user and the machine say
def _stack(catalog: Catalog, stack: str | None) -> tuple[StackRelease, str]:
    """(the release, as the spec writes it): a Triton release, else a TensorRT-LLM version.

    Raises:
        UsageError: neither, or nobody knows that it has the llmapi lane.
    """
    name = stack or DEFAULT_STACK
    where = Where(key="--stack")
    release = stack_of(catalog, name, "--stack")
    if not release.tensorrt_llm:
        raise UsageError(
            f"`{name}` names a vLLM version, and the llmapi lane runs on TensorRT-LLM",
            where=where, hint=f"use a Triton release such as {DEFAULT_STACK}",
        )  # fmt: skip
    support, reason, source = lane_support(catalog, LaneName.LLMAPI, release.runtime_version)
    contract = catalog.lane_contract(LaneName.LLMAPI, release.runtime_version)
    if support is not Support.YES or contract is None:
        have = [v for v in catalog.contract_versions if _has_lane(catalog, v)]
        why = (
            f"no contract of TensorRT-LLM {release.runtime_version}" if contract is None else reason
        )
        raise UsageError(
            f"`{name}` cannot be the new side: {why}" + (f" ({source})" if contract else ""),
            where=where,
            hint=f"use a Triton release such as {DEFAULT_STACK}, or a TensorRT-LLM version: {', '.join(have)}",
        )
    return release, name if catalog.known_stack(name) is not None else release.id


def _has_lane(catalog: Catalog, version: str) -> bool:
    return lane_support(catalog, LaneName.LLMAPI, version)[0] is Support.YES


def _name_is_good(draft: Draft, name: str | None) -> None:
    """Raises UsageError for a --name that is no service name."""
    try:
        parse_spec(
            files.dump_yaml({**draft.spec, "targets": [{"sku": "l4", "stack": DEFAULT_STACK}]})
        )
    except UsageError as error:
        if name is not None and error.where is not None and error.where.key == "name":
            raise UsageError(error.message, where=Where(key="--name"), hint=error.hint) from None


# ---- the new side
def _tables(setup: OldSetup, catalog: Catalog, release: StackRelease, draft: Draft) -> Tables:
    contract = catalog.lane_contract(LaneName.LLMAPI, release.runtime_version)
    family: Mapping[str, Any] = (
        contract.family("llmapi") if contract is not None else {"inputs": (), "outputs": ()}
    )
    try:
        features = Features.model_validate(draft.serving.get("features", {}))
    except ValidationError:  # `check` says what is wrong with them
        features = Features()
    sides = {
        side: {t["name"]: (str(t["data_type"]), tuple(t["dims"])) for t in tensors(family, side, features)}
        for side in ("inputs", "outputs")
    }  # fmt: skip
    lines = {
        **_fates("engine", front_lines(setup, catalog)),
        **_fates("core", core_lines(setup, catalog)),
    }
    return Tables(
        fates=load_migration(catalog),
        parameters=load_triton_parameters(catalog),
        tensors=lines,
        new=NewModel(sides["inputs"], sides["outputs"]),
    )


def _fates(dialect: str, lines: Sequence[FieldLine]) -> dict[tuple[str, str, str], TensorFate]:
    return {
        (dialect, line.side.removesuffix("s"), line.old): TensorFate(
            line.fate, line.new, line.what, line.todo, line.source
        )
        for line in lines
    }


def _spec_text(draft: Draft, repo: Path) -> str:
    head = [
        f"# engineroom spec, made by `engineroom migrate` from {json.dumps(repo.as_posix(), ensure_ascii=False)}.",
        f"# Generation of the old setup: {' '.join(draft.setup.generation.split())}.",
        f"# {REPORT_MD} has every setting of the old files and what became of it.",
    ]
    head += [f"# TO FILL IN: {' '.join(text.split())}" for text in draft.missing]
    return "\n".join(head) + "\n" + files.dump_yaml(draft.spec)


def _check(spec_file: Path, draft: Draft, catalog: Catalog) -> tuple[Mapping[str, Any], ...]:
    """Findings of `check`; what keeps it from running goes to `draft.missing`.

    A model that is not on this machine is stood in for, so that everything else is checked.
    """
    if draft.target["sku"] == FILL_IN:
        return ()
    file = spec_file
    if any(text.startswith("model.source") for text in draft.missing):
        stood_in = {**draft.spec, "model": {**draft.spec["model"], "source": _STAND_IN}}
        file = spec_file.with_name(".check.yaml")
        files.write_text(file, files.dump_yaml(stood_in))
    try:
        job = Job(load_spec(file), catalog, spec_file.parent / ".none")
        findings = check(job, artefacts=False)
    except FindingsError as error:
        draft.missing.append(error.message)
        return ()
    except EngineroomError as error:
        where = error.where.key if error.where and error.where.key else "the spec"
        draft.missing.append(
            f"{where}: {error.message}" + (f" ({error.hint})" if error.hint else "")
        )
        return ()
    finally:
        if file != spec_file:
            file.unlink(missing_ok=True)
    return tuple({**f.as_dict(), "file": None, "line": None} for f in findings)
