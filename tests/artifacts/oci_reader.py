"""A reader of OCI image layouts and a checker of CycloneDX documents, written from the specifications.

It shares nothing with engineroom, so that both can be wrong only in different ways. Rules:
opencontainers/image-spec @ 13cff549 image-layout.md, image-index.md, manifest.md, descriptor.md,
annotations.md; CycloneDX/specification schema/bom-1.5.schema.json.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from pathlib import Path
from typing import Any

_MEDIA_TYPE = re.compile(r"[A-Za-z0-9][\w!#$&^.+-]{0,126}/[A-Za-z0-9][\w!#$&^.+-]{0,126}")
_REF = re.compile(
    r"[A-Za-z0-9]+((-|[._:@+]|--)[A-Za-z0-9]+)*(/[A-Za-z0-9]+((-|[._:@+]|--)[A-Za-z0-9]+)*)*"
)


def read_descriptor(root: Path, value: dict[str, Any]) -> bytes:
    """A blob; mediaType, digest and size are REQUIRED and must be true of it."""
    assert _MEDIA_TYPE.fullmatch(value["mediaType"])
    algorithm, _, encoded = value["digest"].partition(":")
    assert algorithm == "sha256"
    assert re.fullmatch("[0-9a-f]{64}", encoded)
    data = (root / "blobs" / algorithm / encoded).read_bytes()
    assert len(data) == value["size"]
    assert hashlib.sha256(data).hexdigest() == encoded
    for key, text in value.get("annotations", {}).items():
        assert isinstance(key, str)
        assert isinstance(text, str)
    return data


def read_layout(root: Path) -> list[dict[str, Any]]:
    """Artefacts: `digest`, `ref`, `manifest`, `config` (bytes), `files` (bytes by name), `attached`."""
    assert json.loads((root / "oci-layout").read_text())["imageLayoutVersion"] == "1.0.0"
    index = json.loads((root / "index.json").read_text())
    assert index["schemaVersion"] == 2
    assert index.get("mediaType", "application/vnd.oci.image.index.v1+json").endswith(
        "index.v1+json"
    )
    for blob in (root / "blobs/sha256").iterdir():  # every name is true, referenced or not
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    found, attached = [], []
    for row in index["manifests"]:
        manifest = json.loads(read_descriptor(root, row))
        assert manifest["schemaVersion"] == 2
        assert (
            manifest["mediaType"]
            == "application/vnd.oci.image.manifest.v1+json"
            == row["mediaType"]
        )
        config = read_descriptor(root, manifest["config"])
        if manifest["config"]["mediaType"] == "application/vnd.oci.empty.v1+json":
            assert config == b"{}"
            assert _MEDIA_TYPE.fullmatch(manifest["artifactType"])  # MUST be set then
        if "artifactType" in row:
            assert row["artifactType"] == manifest["artifactType"]
        assert manifest["layers"], "SHOULD have at least one entry"
        layers = [read_descriptor(root, layer) for layer in manifest["layers"]]
        if "subject" in manifest:
            read_descriptor(root, manifest["subject"])
            attached.append((manifest, layers))
            continue
        ref = row["annotations"]["org.opencontainers.image.ref.name"]
        assert _REF.fullmatch(ref), ref
        files: dict[str, bytes] = {}
        for layer, data in zip(manifest["layers"], layers, strict=True):
            assert layer["mediaType"] == "application/vnd.oci.image.layer.v1.tar"
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
                for member in tar:
                    assert member.isreg()
                    assert member.name not in files, "MUST NOT include duplicate entries"
                    assert (member.mtime, member.uid, member.gid, member.mode) == (0, 0, 0, 0o644)
                    files[member.name] = tar.extractfile(member).read()  # type: ignore[union-attr]
        found.append(
            {"digest": row["digest"], "ref": ref, "manifest": manifest, "config": config,
             "files": files, "attached": []}
        )  # fmt: skip
    refs = [item["ref"] for item in found]
    assert len(refs) == len(set(refs))
    for manifest, layers in attached:
        subject = next(i for i in found if i["digest"] == manifest["subject"]["digest"])
        subject["attached"].append((manifest["artifactType"], layers[0]))
    return found


_TYPES = {
    "application", "framework", "library", "container", "platform", "operating-system", "device",
    "device-driver", "firmware", "file", "machine-learning-model", "data",
}  # fmt: skip
_COMPONENT = {
    "type", "mime-type", "bom-ref", "supplier", "author", "publisher", "group", "name", "version",
    "description", "scope", "hashes", "licenses", "copyright", "cpe", "purl", "swid", "modified",
    "pedigree", "externalReferences", "components", "evidence", "releaseNotes", "modelCard", "data",
    "properties", "signature",
}  # fmt: skip


def check_cyclonedx(document: dict[str, Any]) -> None:
    """REQUIRED fields, closed objects and references of CycloneDX 1.5, as far as we use it."""
    assert document["bomFormat"] == "CycloneDX"
    assert document["specVersion"] == "1.5"
    assert document["version"] >= 1
    assert re.fullmatch(
        "urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        document["serialNumber"],
    )
    assert set(document) <= {
        "bomFormat", "specVersion", "version", "serialNumber", "metadata", "components", "dependencies",
    }  # fmt: skip
    assert set(document["metadata"]) <= {"timestamp", "tools", "component"}
    root = document["metadata"]["component"]
    refs = [root["bom-ref"]]
    for part in (root, *document["components"], *document["metadata"]["tools"]["components"]):
        assert part["type"] in _TYPES
        assert part["name"]
        assert set(part) <= _COMPONENT
        assert ("data" in part) == (part["type"] == "data")
        for item in part.get("hashes", ()):
            assert item["alg"] == "SHA-256"
            assert re.fullmatch("[0-9a-f]{64}", item["content"])
        for item in part.get("licenses", ()):
            assert set(item) == {"license"}
            assert ("id" in item["license"]) != ("name" in item["license"])
        for item in part.get("properties", ()):
            assert isinstance(item["name"], str)
            assert isinstance(item["value"], str)
    refs += [part["bom-ref"] for part in document["components"]]
    assert len(refs) == len(set(refs)), "every bom-ref MUST be unique"
    for row in document["dependencies"]:
        assert {row["ref"], *row.get("dependsOn", ())} <= set(refs)
