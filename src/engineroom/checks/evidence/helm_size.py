"""Size limits: ConfigMap and Secret, Helm's loader, and the record of a release.

The limit of a ConfigMap counts its values (decoded, for a Secret). The release record is one Secret:
the chart's files (base64 in JSON) and the manifests, gzipped, in base64. Sizes of files are known here,
their content is not, so the record is an estimate with two bounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from engineroom.checks.codes import declare
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic
from engineroom.reading import helmignore
from engineroom.reading.globs import files_match
from engineroom.types import Figure

OBJECT_LIMIT = 1 << 20
FILE_LIMIT = 5 << 20
_LIMIT_SOURCE = (
    "kubernetes/kubernetes pkg/apis/core/types.go (MaxSecretSize) and validation.go (ValidateConfigMap); "
    "helm/helm issues #1413 and #9788"
)
OBJECT = declare(
    "configmap-over-limit", Topic.HELM_SIZE, Severity.ERROR,
    says="a ConfigMap or Secret holds at most 1048576 bytes",
    why="lint and template pass; the API server refuses the object",
    source=_LIMIT_SOURCE,
)  # fmt: skip
FILE = declare(
    "chart-file-over-limit", Topic.HELM_SIZE, Severity.ERROR,
    says="Helm loads no chart file of more than 5242880 bytes",
    why="the chart does not load at all",
    source="helm/helm pkg/chart/loader/archive/archive.go (MaxDecompressedFileSize) @ e9b85e4",
)  # fmt: skip
RECORD = declare(
    "release-record-over-limit", Topic.HELM_SIZE, Severity.ERROR,
    says="a release record (gzip, then base64) is one Secret of at most 1048576 bytes",
    why="every chart file is in it, used or not; install fails after the objects were rendered",
    source="helm/helm pkg/storage/driver/util.go (encodeRelease) @ e9b85e4; helm/helm issue #9788",
)  # fmt: skip
IGNORED = declare(
    "chart-file-ignored", Topic.HELM_SIZE, Severity.ERROR,
    says="a file that a template reads is not in .helmignore",
    why=".Files.Get of a file that was not loaded answers an empty text, without an error",
    source="helm/helm pkg/engine/files.go and pkg/chart/v2/loader/directory.go @ e9b85e4",
)  # fmt: skip
BAD_IGNORE = declare(
    "helmignore-refused", Topic.HELM_SIZE, Severity.ERROR,
    says=".helmignore has patterns that Helm accepts",
    why="the chart does not load",
    source="helm/helm pkg/ignore/rules.go @ e9b85e4",
)  # fmt: skip

# Bytes of the record per byte of a file, measured with gzip at level 9: as a chart file (base64 inside
# JSON) and as text of a manifest. JSON 0.33 and 0.22, prose 0.77 and 0.54; packed data keeps its size,
# times the 4/3 of base64. (least, usual, most)
_AS_FILE, _AS_TEXT, _PACKED_DATA = (0.25, 0.4, 0.8), (0.15, 0.3, 0.55), (1.34, 1.34, 1.36)
_PACKED = (
    ".gz", ".tgz", ".zip", ".xz", ".zst", ".bz2", ".bin", ".safetensors", ".engine", ".plan", ".pt",
    ".pth", ".gguf", ".onnx", ".png", ".jpg", ".model", ".tar.gz", ".npz",
    ".7z", ".br", ".gif", ".jpeg", ".lz4", ".mp4", ".parquet", ".webm", ".webp", ".whl", ".xlsx",
)  # fmt: skip
_GET = re.compile(r"\.Files\.(?:Get|GetBytes|Lines)\s*\(?\s*[\"`]([^\"`]{1,500})[\"`]")
_GLOB = re.compile(r"\.Files\.Glob\s*\(?\s*[\"`]([^\"`]{1,500})[\"`]")
_DIGESTS = re.compile(r"\b(sha\d+sum|sha1sum|adler32sum|len|empty|not|eq|hasKey)\b")
_NAMED_KIND = re.compile(r"^kind:\s*\"?([A-Za-z]+)", re.MULTILINE)


@dataclass(frozen=True)
class _Chart:
    """Loaded files by path, the ignored ones, and what each document of the template reads."""

    sizes: dict[str, int]
    ignored: tuple[str, ...]
    documents: tuple[tuple[str, tuple[str, ...]], ...]


def _chart(c: Context) -> _Chart:
    rules = helmignore.parse(c.evidence.helmignore or "")
    sizes, ignored = {}, []
    for entry in (c.evidence.chart_files or ())[:20_000]:
        path = entry.path.removeprefix("./")
        if rules.refused is None and rules.ignores(path):
            ignored.append(path)
        elif entry.size_bytes is not None:
            sizes[path] = entry.size_bytes
    documents = []
    text = c.evidence.helm_template.text if c.evidence.helm_template else ""
    for document in re.split(r"^---", text, flags=re.MULTILINE):
        kind = _NAMED_KIND.search(document)
        documents.append((kind[1] if kind else "", _reads(document, [*sizes, *ignored])))
    return _Chart(sizes, tuple(ignored), tuple(documents))


def _reads(document: str, paths: list[str]) -> tuple[str, ...]:
    """Files whose content the document holds. `.Files` has no templates, values or subcharts."""
    found: dict[str, None] = {}
    for body in _actions(document):
        if ".Files" not in body or _DIGESTS.search(body):
            continue
        for name in _GET.findall(body):
            found[name] = None
        for pattern in _GLOB.findall(body):
            found.update(dict.fromkeys(p for p in paths if files_match(pattern, p)))
    return tuple(found)


def _actions(document: str) -> Iterator[str]:
    """What stands between `{{` and `}}`."""
    at = 0
    while (start := document.find("{{", at)) >= 0 and (end := document.find("}}", start)) >= 0:
        yield document[start + 2 : min(end, start + 2_000)]
        at = end + 2


@about(Topic.HELM_SIZE)
def object_size(c: Context) -> Iterator[Answer]:
    chart = _chart(c)
    for kind, paths in chart.documents:
        if kind not in ("", "ConfigMap", "Secret"):
            continue
        known = [p for p in paths if p in chart.sizes]
        total = sum(chart.sizes[p] for p in known)
        if total <= OBJECT_LIMIT:
            continue
        culprit = max(known, key=lambda p: chart.sizes[p])
        yield Figure("limit_bytes", OBJECT_LIMIT)
        yield Figure("culprit", culprit)
        several = f" ({len(known)} files together {total})" if len(known) > 1 else ""
        loaded = chart.sizes[culprit] <= FILE_LIMIT
        yield OBJECT.found(
            c, "helm_template.text",
            f"{culprit} has {chart.sizes[culprit]} bytes{several}, and a {kind or 'ConfigMap or Secret'} holds "
            f"at most {OBJECT_LIMIT}; the release record is a Secret with the same limit"
            + ("" if loaded else f", and recent Helm loads no file above {FILE_LIMIT} bytes"),
            "put it on a volume or into the image (init container), and keep only small files in the "
            "ConfigMap",
        )  # fmt: skip


@about(Topic.HELM_SIZE)
def file_size(c: Context) -> Iterator[Answer]:
    chart = _chart(c)
    used = {path for _, paths in chart.documents for path in paths}
    for path, size in chart.sizes.items():
        if size <= FILE_LIMIT or path in used:
            continue
        yield Figure("limit_bytes", FILE_LIMIT)
        yield Figure("culprit", path)
        yield FILE.found(
            c, "chart_files", f"{path} has {size} bytes, and Helm loads no chart file above {FILE_LIMIT}; "
            f"older Helm fails at the release record, a Secret of at most {OBJECT_LIMIT} bytes",
            f"move it out of the chart, or name it in .helmignore ({path})",
        )  # fmt: skip


@about(Topic.HELM_SIZE)
def record_size(c: Context) -> Iterator[Answer]:
    """All loaded files count; those in a manifest count twice."""
    chart = _chart(c)
    used = [p for _, paths in chart.documents for p in paths if p in chart.sizes]
    if any(chart.sizes[p] > FILE_LIMIT for p in chart.sizes) or _any_over(chart):
        return
    bounds = [0.0, 0.0, 0.0]
    counted = [(p, size, _AS_FILE) for p, size in chart.sizes.items()]
    counted += [(p, chart.sizes[p], _AS_TEXT) for p in used]
    for path, size, shares in counted:
        packed = path.lower().endswith(_PACKED)
        for at, share in enumerate(_PACKED_DATA if packed else shares):
            bounds[at] += size * share
    least, usual, most = bounds
    if most <= OBJECT_LIMIT:
        return
    culprit = max(chart.sizes, key=lambda p: chart.sizes[p])
    yield Figure("limit_bytes", OBJECT_LIMIT)
    yield Figure("culprit", culprit)
    yield RECORD.found(
        c, "chart_files",
        f"the chart's files have {sum(chart.sizes.values())} bytes, {culprit} alone {chart.sizes[culprit]}; "
        f"zipped and in base64 the release record would have about {int(least)} to {int(most)} bytes "
        f"(their content is not known here), and its Secret holds {OBJECT_LIMIT}",
        f"name {culprit} in .helmignore or move it out of the chart: unused files are stored with every "
        "release",
        severity=Severity.ERROR if least > OBJECT_LIMIT
        else Severity.WARN if usual > OBJECT_LIMIT
        else Severity.INFO,
    )  # fmt: skip


def _any_over(chart: _Chart) -> bool:
    return any(
        sum(chart.sizes.get(p, 0) for p in paths) > OBJECT_LIMIT
        for kind, paths in chart.documents
        if kind in ("", "ConfigMap", "Secret")
    )


@about(Topic.HELM_SIZE)
def ignored_file(c: Context) -> Iterator[Answer]:
    chart = _chart(c)
    for _, paths in chart.documents:
        for path in paths:
            if path in chart.ignored:
                yield Figure("culprit", path)
                yield IGNORED.found(
                    c, "helmignore", f"the template reads {path}, and .helmignore leaves it out: .Files answers "
                    "an empty text",
                    f"take {path} out of .helmignore, or do not read it in the template",
                )  # fmt: skip


@about(Topic.HELM_SIZE)
def ignore_rules(c: Context) -> Iterator[Answer]:
    refused = helmignore.parse(c.evidence.helmignore or "").refused
    if refused is not None:
        line, reason = refused
        yield BAD_IGNORE.found(
            c, "helmignore", f"line {line}: {reason}, and Helm does not load the chart",
            "write the pattern without it: a folder is ignored with all that is in it", line=line,
        )  # fmt: skip


RULES = (object_size, file_size, record_size, ignored_file, ignore_rules)
