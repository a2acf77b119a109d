"""`matrix capture` and `matrix verify`: contracts from the real thing, and how ours differ."""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engineroom.catalog import Catalog
from engineroom.catalog.contract_diff import Difference, differences
from engineroom.catalog.contract_schema import first_problem
from engineroom.catalog.files import read_json
from engineroom.errors import CatalogError, UsageError, Where
from engineroom.runner import files
from engineroom.runner.contract_live import capture_installed
from engineroom.runner.contract_source import capture_source
from engineroom.spec.yaml_lines import dotted

FOLDER = "deploy/contracts/trtllm"


@dataclass(frozen=True)
class Captured:
    """A contract that was written."""

    path: Path
    contract: dict[str, Any]

    @property
    def unknown(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self.contract["capture"]["unknown"]
        return found

    def as_dict(self) -> dict[str, Any]:
        api, build = self.contract["llm_api"], self.contract["trtllm_build"]
        return {
            "schema_version": 1,
            "path": self.path.as_posix(),
            "version": self.contract["version"],
            "commit": self.contract["git"]["commit"],
            "method": self.contract["capture"]["method"],
            "llm_arguments": len(api["fields"]),
            "nested_types": len(api["nested"]),
            "build_flags": len(build["flags"] or ()),
            "engine_lane": build["command_exists"],
            "unknown": self.unknown,
        }


@dataclass(frozen=True)
class Verification:
    """How a captured contract differs from the catalog's."""

    captured: Path
    version: str
    against: str
    rows: tuple[Difference, ...]
    unknown: tuple[dict[str, str], ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "schema_version": 1,
            "captured": self.captured.as_posix(),
            "version": self.version,
            "against": self.against,
            "counts": dict(Counter(row.kind for row in self.rows)),
            "differences": [row.as_dict() for row in self.rows],
            "unknown": list(self.unknown),
        }


def capture(
    *,
    source: Path | None,
    out: Path,
    version: str | None = None,
    commit: str | None = None,
    python: str | None = None,
    all_models: Path | None = None,
    force: bool = False,
) -> Captured:
    """Write the contract of a source tree, or of an installed TensorRT-LLM, into an overlay.

    Args:
        source: a source tree; None introspects `python` (by default the one that runs us).
        out: the overlay; the file is `<out>/deploy/contracts/trtllm/<version>.json`.
        force: replace a file that is there.

    Raises:
        UsageError: bad arguments, a tree that is none, or a file that is there already.
        MissingError, ExternalToolError: see `capture_installed`.
    """
    if commit is not None and not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise UsageError(
            f"`{commit[:60]}` is no commit",
            where=Where(key="--commit"),
            hint="give all 40 hexadecimal digits, in lower case",
        )
    if source is not None and python is not None:
        raise UsageError(
            "--python introspects an installation, --from-source parses files",
            where=Where(key="--python"),
            hint="drop one of them",
        )
    if source is None and commit is not None:
        raise UsageError(
            "an installed package has no commit",
            where=Where(key="--commit"),
            hint="drop --commit, or give --from-source DIR",
        )
    if source is not None:
        contract = capture_source(source, version, commit, all_models)
    else:
        contract = capture_installed(python or sys.executable, version, all_models)
    path = out / FOLDER / f"{contract['version']}.json"
    problem = first_problem(contract, contract["version"])
    if problem is not None:  # a tree that is not what upstream's are
        raise UsageError(
            f"what was read gives no contract: {dotted(problem[0])}: {problem[1]}",
            where=Where(source.as_posix() if source else "tensorrt_llm"),
            hint="look at that part of the source; nothing was written",
        )
    if path.exists() and not force:
        raise UsageError(
            "this contract is there already",
            where=Where(path.as_posix()),
            hint="add --force to replace it, or choose another --out",
        )
    files.write_json(path, contract)
    return Captured(path, contract)


def verify(
    captured: Path, *, against: str | None = None, catalog: Path | None = None
) -> Verification:
    """Compare a captured contract with the catalog's of the same version, or of `against`.

    Args:
        captured: the JSON file, or an overlay that holds one contract.

    Raises:
        UsageError: no such file, no contract in it, or the catalog has no contract to compare with.
    """
    path = _file(captured)
    contract = _read(path)
    version = str(contract["version"])
    loaded = Catalog(catalog)
    number = against or version
    shipped = loaded.contract(number)
    if shipped is None:
        raise UsageError(
            f"the catalog has no contract of TensorRT-LLM {number}",
            where=Where(path.as_posix()),
            hint=f"compare with another: --against {'|'.join(loaded.contract_versions)}",
        )
    rows = differences(shipped.data, contract)
    unknown = (contract.get("capture") or {}).get("unknown") or []
    return Verification(path, version, number, tuple(rows), tuple(unknown))


def _file(path: Path) -> Path:
    if path.is_file():
        return path
    found = sorted((path / FOLDER).glob("*.json")) if path.is_dir() else []
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"the overlay holds {len(found)} contracts",
            where=Where(path.as_posix()),
            hint=f"name one, e.g. {found[0].as_posix()}",
        )
    raise UsageError(
        "no captured contract here",
        where=Where(path.as_posix()),
        hint="name the JSON file that `engineroom matrix capture` wrote, or its --out folder",
    )


def _read(path: Path) -> dict[str, Any]:
    hint = "name a file that `engineroom matrix capture` wrote"
    try:
        data, _ = read_json(path)
    except CatalogError as error:
        raise UsageError(f"not a contract: {error.message}", where=error.where, hint=hint) from None
    version = data.get("version") if isinstance(data, dict) else None
    problem = first_problem(data, str(version))
    if problem is not None:
        where = Where(path.as_posix(), key=dotted(problem[0]) or None)
        raise UsageError(f"not a contract: {problem[1]}", where=where, hint=hint)
    found: dict[str, Any] = data
    return found
