"""Artefacts in an OCI registry, through `oras` (https://oras.land).

Credentials are those of Docker's configuration (`docker login`; DOCKER_CONFIG names another folder), read
by the library; none is taken from an option or a reference, and none is printed. Source of the protocol:
opencontainers/distribution-spec spec.md (push, pull, referrers and the tag that stands in for them).
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engineroom.errors import (
    EngineroomError,
    ExternalToolError,
    UsageError,
    Where,
    artefact_error,
    missing_extra,
)
from engineroom.runner import files, oci, oci_read

_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
# Host, name and tag as distribution-spec has them (spec.md, "Pulling manifests").
_REFERENCE = re.compile(
    rf"oci://(?P<host>[A-Za-z0-9.-]+(?::\d{{1,5}})?)/(?P<name>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_LOOPBACK = re.compile(r"(localhost|127(\.\d{1,3}){3})(:\d+)?")
CHUNKED = 32 << 20
"""Bytes from which a blob is sent in pieces: the library holds a whole one in memory otherwise."""
_TIMEOUT = 15
_PAUSES = (1.0, 4.0)
"""Seconds before another try when a connection is lost."""


@dataclass(frozen=True)
class Target:
    """A repository of a registry, with a tag or a digest."""

    host: str
    name: str
    tag: str | None
    digest: str | None

    def __str__(self) -> str:
        return f"oci://{self.host}/{self.name}"

    def url(self, path: str) -> str:
        # Docker's rule: only a registry of this machine is spoken to without TLS.
        scheme = "http" if _LOOPBACK.fullmatch(self.host) else "https"
        return f"{scheme}://{self.host}/v2/{self.name}/{path}"


def target(text: str) -> Target:
    """A reference: ``oci://HOST[:PORT]/NAME[:TAG][@DIGEST]``.

    Raises:
        UsageError: something else, such as one with a password in it.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise UsageError(
            "not a reference to a repository of a registry",
            hint="write oci://HOST/NAME[:TAG][@sha256:…]; credentials come from `docker login`",
        )
    return Target(match["host"], match["name"], match["tag"], match["digest"])


class _Client:
    """What this module needs of `oras.provider.Registry`."""

    def __init__(self, where: Target) -> None:
        if importlib.util.find_spec("oras") is None:
            raise missing_extra("registry", "oras")
        from oras.container import Container
        from oras.logger import logger
        from oras.provider import Registry

        # The library tries everything again through five growing pauses, two minutes in all, also what
        # no try can change, such as a refused login. Only a lost connection is worth another one.
        plain = getattr(Registry.do_request, "__wrapped__", Registry.do_request)

        class Patient(Registry):  # type: ignore[misc]
            def do_request(self, *args: Any, **more: Any) -> Any:
                for pause in _PAUSES:
                    try:
                        return plain(self, *args, **more)
                    except OSError:  # what requests raises for a connection
                        time.sleep(pause)
                return plain(self, *args, **more)

        logger.quiet = True
        self.where = where
        self.container = Container(f"{where.host}/{where.name}")
        self.registry = Patient(hostname=where.host, insecure=bool(_LOOPBACK.fullmatch(where.host)))
        folder = os.environ.get("DOCKER_CONFIG")
        configs = [str(Path(folder) / "config.json")] if folder else []
        try:
            self.registry.session.get(where.url("").split("/v2/")[0] + "/v2/", timeout=_TIMEOUT)
            self.registry.auth.load_configs(self.container, configs=configs)
        except Exception as error:
            raise _refused(where, error) from None

    def request(self, method: str, path: str, **more: Any) -> Any:
        try:
            return self.registry.do_request(self.where.url(path), method, **more)
        except Exception as error:
            raise _refused(self.where, error) from None

    def send(self, file: Path, blob: oci.Descriptor) -> None:
        try:
            answer = self.registry.upload_blob(
                str(file), self.container, blob.as_dict(), do_chunked=blob.size > CHUNKED
            )
        except Exception as error:
            raise _refused(self.where, error) from None
        _assert_good(self.where, answer, f"blob {blob.digest[:19]}")

    def fetch(self, blob: oci.Descriptor, file: Path) -> None:
        try:
            self.registry.download_blob(self.container, blob.digest, str(file))
        except Exception as error:
            raise _refused(self.where, error) from None


def push(root: Path, where: Target, made: Sequence[tuple[str, str]]) -> None:
    """Send artefacts of a layout folder with what refers to them.

    Args:
        made: (digest, reference in the layout) of their manifests. A single one gets the target's tag,
            several get their own references as tags.

    Raises:
        MissingError: `oras` is not installed. ExternalToolError: the registry refused.
    """
    if where.digest is not None or (where.tag is not None and len(made) > 1):
        raise UsageError(
            "several artefacts under one tag" if where.tag else "a digest is nothing to push to",
            where=Where(str(where)), hint="leave the tag out: each gets its own reference",
        )  # fmt: skip
    client = _Client(where)
    with oci_read.opened(root) as layout:
        rows = {row.digest: row for row in oci_read.manifests(layout)}
        attached = [
            (row, value)
            for row in rows.values()
            if (value := json.loads(oci_read.read_blob(layout, row))).get("subject")
        ]
        for digest, ref in made:
            _push_manifest(client, root, rows[digest], where.tag or ref)
            for row, value in attached:
                if value["subject"]["digest"] == digest:
                    answer = _push_manifest(client, root, row, row.digest)
                    if "OCI-Subject" not in answer.headers:
                        _refer(client, digest, row)


def _push_manifest(client: _Client, root: Path, row: oci.Descriptor, reference: str) -> Any:
    blobs = root / "blobs/sha256"
    raw = (blobs / row.hex).read_bytes()
    value = json.loads(raw)
    for item in (value["config"], *value["layers"]):
        blob = oci.descriptor(item, str(root))
        client.send(blobs / blob.hex, blob)
    answer = client.request(
        "PUT", f"manifests/{reference}", data=raw, headers={"Content-Type": oci.MANIFEST}
    )
    _assert_good(client.where, answer, f"manifest {reference}")
    return answer


def _refer(client: _Client, digest: str, row: oci.Descriptor) -> None:
    """A registry without the referrers API: the index under the tag that stands in for it."""
    tag = digest.replace(":", "-")
    answer = client.request("GET", f"manifests/{tag}", headers={"Accept": oci.INDEX})
    rows = []
    if answer.status_code == 200:
        found = oci_read.as_object(answer.content, str(client.where), f"the tag {tag}")
        rows = oci_read.descriptors(found, "manifests", str(client.where))
    rows = [item for item in rows if item.digest != row.digest] + [row]
    raw = oci.json_bytes(oci.index_of(rows))
    answer = client.request(
        "PUT", f"manifests/{tag}", data=raw, headers={"Content-Type": oci.INDEX}
    )
    _assert_good(client.where, answer, f"tag {tag}")


def pull(where: Target, root: Path) -> None:
    """Fetch an artefact and its SBOM into a layout folder. Blobs are verified by who reads it.

    Raises:
        MissingError: `oras` is not installed. ExternalToolError: the registry refused.
        UsageError: a manifest that is not of its digest.
    """
    client = _Client(where)
    blobs = root / "blobs/sha256"
    blobs.mkdir(parents=True)
    made = _pull_manifest(client, blobs, where.digest or where.tag or "latest", where.digest)
    rows = [made]
    for item in _referrers(client, made.digest):
        rows.append(_pull_manifest(client, blobs, item.digest, item.digest))
    files.write_json(root / "oci-layout", {"imageLayoutVersion": "1.0.0"})
    files.write_json(root / "index.json", oci.index_of(rows))


def _pull_manifest(
    client: _Client, blobs: Path, reference: str, digest: str | None
) -> oci.Descriptor:
    answer = client.request("GET", f"manifests/{reference}", headers={"Accept": oci.MANIFEST})
    _assert_good(client.where, answer, f"manifest {reference}")
    raw = bytes(answer.content)
    value = oci_read.as_object(raw, str(client.where), f"manifest {reference}")
    kind = value.get("artifactType")
    row = oci.described(
        raw, oci.MANIFEST, artifact_type=kind if isinstance(kind, str) else None,
        annotations={} if value.get("subject") else {oci.REF_NAME: oci.ref_name(reference)},
    )  # fmt: skip
    if digest is not None and row.digest != digest:
        raise artefact_error(str(client.where), f"the registry sent {row.digest} for {digest}")
    (blobs / row.hex).write_bytes(raw)
    layers = value.get("layers")
    for item in (value.get("config"), *(layers if isinstance(layers, list) else ())):
        blob = oci.descriptor(item, str(client.where))
        if not (blobs / blob.hex).exists():
            client.fetch(blob, blobs / blob.hex)
    return row


def _referrers(client: _Client, digest: str) -> list[oci.Descriptor]:
    """SBOMs of a manifest: by the API, else by the tag that stands in for it."""
    for path in (f"referrers/{digest}", f"manifests/{digest.replace(':', '-')}"):
        answer = client.request("GET", path, headers={"Accept": oci.INDEX})
        if answer.status_code != 200:
            continue
        value = oci_read.as_object(answer.content, str(client.where), "the list of referrers")
        rows = oci_read.descriptors(value, "manifests", str(client.where))
        return [row for row in rows if row.artifact_type == oci.SBOM]
    return []


def _assert_good(where: Target, answer: Any, what: str) -> None:
    if answer.status_code not in (200, 201, 202):
        raise ExternalToolError(
            f"the registry answered {answer.status_code} for {what}", where=Where(str(where)),
            hint="check the name and the rights of `docker login`",
        )  # fmt: skip


def _refused(where: Target, error: Exception) -> EngineroomError:
    lines = str(error).splitlines() or [""]
    return ExternalToolError(
        f"the registry: {type(error).__name__}: {lines[0][:300]}", where=Where(str(where)),
        hint="check the name, the network and `docker login`",
    )  # fmt: skip
