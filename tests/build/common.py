"""A workspace with a finished checkpoint, and the double of `trtllm-build` that counts its starts."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engineroom.pipeline import Job, open_job
from tests.conftest import spec_data, write_spec
from tests.doubles import trtllm_build

LIMITS = {"max_batch_size": 8}
TARGETS: list[dict[str, Any]] = [
    {"sku": "l4", "lane": "llmapi", "stack": "26.07", "limits": LIMITS},
    {"sku": "h100-sxm", "lane": "engine", "stack": "26.07", "limits": LIMITS},
    {"sku": "l4", "lane": "vllm", "stack": "26.07", "limits": LIMITS},
]
LANES = ("llmapi", "engine", "vllm")
ENGINE = "engine-h100-sxm-tp1pp1-26-07"
LLMAPI = "llmapi-l4-tp1pp1-26-07"


def data(**changes: Any) -> dict[str, Any]:
    return spec_data(**{"targets": copy.deepcopy(TARGETS), **changes})


def changed(spec: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of a spec with one key set; `targets.*` names a key of every target."""
    result = copy.deepcopy(dict(spec))
    keys = path.split(".")
    places: list[Any] = [result]
    for key in keys[:-1]:
        found = []
        for place in places:
            inner = place if key == "*" else place.setdefault(key, {})
            found += inner if isinstance(inner, list) else [inner]
        places = found
    for place in places:
        place[keys[-1]] = value
    return result


class Workspace:
    """A folder with a spec, a checkpoint made by the fixture `quantized`, and the double on a PATH."""

    def __init__(self, folder: Path, made: Job, **double: Any) -> None:
        self.folder, self.out = folder, folder / "out"
        self.record = folder / "record"
        self.record.mkdir()
        # Bytes, not links: tests damage what is here.
        shutil.copytree(made.out / "checkpoints", self.out / "checkpoints")
        self.env = self.install(**double)
        self.write(data())

    def install(self, **double: Any) -> dict[str, str]:
        """The double, with these settings; returns the PATH that finds it."""
        return trtllm_build.install(self.folder / "bin", record=self.record, **double)

    def write(self, spec: dict[str, Any]) -> Path:
        return write_spec(self.folder, spec)

    def job(self, spec: dict[str, Any] | None = None) -> Job:
        path = self.write(spec) if spec is not None else self.folder / "engineroom.yaml"
        return open_job(path, out=self.out)

    @property
    def starts(self) -> int:
        """Times that the double was started."""
        return len(list(self.record.iterdir()))

    def argv(self, *more: str) -> tuple[str, ...]:
        spec = str(self.folder / "engineroom.yaml")
        return ("build", "-f", spec, "--out", str(self.out), "--format", "json", *more)


def rows(stdout: str) -> dict[str, dict[str, Any]]:
    """Artefacts of `build --format json` by target."""
    return {row["target"]: row for row in json.loads(stdout)["artefacts"]}
