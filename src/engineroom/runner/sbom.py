"""What went into an artefact, as a CycloneDX 1.5 document.

CycloneDX because it has a component type for models (`machine-learning-model`) and takes SHA-256, which
manifests hold; SPDX 2.3 asks for a SHA-1 of each file. Source of the fields: CycloneDX/specification,
schema/bom-1.5.schema.json; package-url/purl-spec (types `pypi`, `huggingface`).

The document is a function of the manifests alone: the same artefact gives the same bytes. What a manifest
does not say is left out, never guessed.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

FORMAT, SPEC_VERSION = "CycloneDX", "1.5"
# Names of the tools in a checkpoint's manifest, and of their packages on PyPI.
_PACKAGES = {"modelopt": "nvidia-modelopt", "torch": "torch", "transformers": "transformers"}
_MAX_LICENCE = 200_000
_HUB = re.compile(r"[\w.-]+/[\w.-]+")

Component = dict[str, Any]


def document(
    content: Mapping[str, Any],
    checkpoint: Mapping[str, Any] | None,
    licences: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The SBOM of one artefact.

    Args:
        content: its manifest.
        checkpoint: the manifest of the checkpoint that it was made from; None when it is not here.
        licences: texts of the model's licence files by name.
    """
    root = _root(content)
    parts = [
        *_models(content, checkpoint, licences or {}),
        *_tools(content, checkpoint),
        *_runtime(content),
        *_data(checkpoint),
        *_files(content),
    ]
    components = list({part["bom-ref"]: part for part in parts}.values())
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"engineroom:{content.get('seal')}")
    return {
        "bomFormat": FORMAT,
        "specVersion": SPEC_VERSION,
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            **({"timestamp": content["created"]} if content.get("created") else {}),
            "tools": {
                "components": [
                    {
                        "type": "application",
                        "name": "engineroom",
                        **_version(content.get("engineroom_version")),
                    }
                ]
            },
            "component": root,
        },
        "components": components,
        "dependencies": [
            {"ref": root["bom-ref"], "dependsOn": [part["bom-ref"] for part in components]},
            *({"ref": part["bom-ref"]} for part in components),
        ],
    }


def _version(value: Any) -> dict[str, str]:
    return {} if value is None else {"version": str(value)}


def _get(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _properties(facts: Mapping[str, Any]) -> list[dict[str, str]]:
    return [
        {"name": f"engineroom:{name}", "value": str(value)}
        for name, value in facts.items()
        if value is not None
    ]


def _root(content: Mapping[str, Any]) -> Component:
    """The artefact itself."""
    kind = str(content.get("kind"))
    made = content if kind == "checkpoint" else content.get("checkpoint")
    facts = {
        "kind": kind,
        "key": content.get("key"),
        "digest": content.get("digest"),
        "target": content.get("target"),
        "lane": content.get("lane"),
        "profile": content.get("profile"),
        "sku": _get(content, "sku", "id"),
        "compute_capability": _get(content, "sku", "compute_capability"),
        "tensor_parallel": content.get("tensor_parallel"),
        "pipeline_parallel": content.get("pipeline_parallel"),
        "weights": _get(made, "weights", "format"),
        "kv_cache": _get(made, "kv_cache", "format"),
        "catalog_digest": content.get("catalog_digest"),
    }
    model = kind not in ("repository", "helm-release")
    return {
        "type": "machine-learning-model" if model else "application",
        "bom-ref": f"artefact:{content.get('digest')}",
        "name": str(content.get("target") or kind),
        **_version(content.get("key") and str(content["key"])[:16]),
        "properties": _properties(facts),
    }


def _models(
    content: Mapping[str, Any], checkpoint: Mapping[str, Any] | None, licences: Mapping[str, str]
) -> Iterator[Component]:
    """The source model with its licences, and what travels along (draft models, adapters)."""
    model = _get(checkpoint, "model")
    if isinstance(model, Mapping):
        names = [str(name) for name in model.get("licences") or ()]
        texts = [
            {
                "license": {
                    "name": name,
                    **({"text": {"contentType": "text/plain", "content": licences[name]}} if name in licences else {}),
                }
            }
            for name in names
        ]  # fmt: skip
        yield {
            **_named_model(str(model.get("source")), model.get("revision"), "source model"),
            **({"licenses": texts} if texts else {}),
            "properties": _properties({"source_digest": model.get("source_digest")}),
        }
    if content.get("kind") != "checkpoint" and _get(content, "checkpoint", "digest"):
        yield {
            "type": "machine-learning-model",
            "bom-ref": f"checkpoint:{content['checkpoint']['digest']}",
            "name": "checkpoint",
            "properties": _properties(
                {
                    "digest": content["checkpoint"]["digest"],
                    "manifest": None if checkpoint else "not in this workspace",
                }
            ),
        }
    for row in content.get("attachments") or ():
        if isinstance(row, Mapping):
            yield {
                **_named_model(str(row.get("source") or row.get("name")), row.get("revision"), str(row.get("kind"))),
                "properties": _properties({"name": row.get("name"), "digest": row.get("digest")}),
            }  # fmt: skip


def _named_model(source: str, revision: Any, role: str) -> Component:
    """A model by hub id with its purl, or by the last part of a path: a path is nobody's business."""
    hub = bool(_HUB.fullmatch(source))
    name = source if hub else (source.rstrip("/").rpartition("/")[2] or source)
    found: Component = {
        "type": "machine-learning-model",
        "bom-ref": f"model:{role}:{name}",
        "name": name,
        "description": role,
        **_version(revision),
    }
    if hub and revision is not None:
        found["purl"] = f"pkg:huggingface/{quote(source)}@{quote(str(revision).lower())}"
    return found


def _tools(content: Mapping[str, Any], checkpoint: Mapping[str, Any] | None) -> Iterator[Component]:
    """Packages that made the checkpoint."""
    made = content if content.get("kind") == "checkpoint" else checkpoint
    for tool, package in _PACKAGES.items():
        version = _get(made, "tools", tool)
        if version is not None:
            yield _pypi(package, str(version), "library")


def _pypi(package: str, version: str, kind: str) -> Component:
    # A local part (+cpu) is of a build that PyPI does not have.
    purl = f"pkg:pypi/{package}@{quote(version)}" if "+" not in version else None
    return {
        "type": kind,
        "bom-ref": f"pypi:{package}",
        "name": package,
        "version": version,
        **({"purl": purl} if purl else {}),
    }


def _runtime(content: Mapping[str, Any]) -> Iterator[Component]:
    """The runtime that the artefact is for, TensorRT, and the base image."""
    stack = content.get("stack")
    if not isinstance(stack, Mapping):
        return
    if stack.get("runtime_version"):
        name = str(stack.get("runtime") or "runtime")
        yield {
            "type": "framework",
            "bom-ref": f"runtime:{name}",
            "name": name,
            "version": str(stack["runtime_version"]),
            "description": "the runtime that it was made for",
        }
    if stack.get("tensorrt"):
        yield {
            "type": "framework",
            "bom-ref": "runtime:TensorRT",
            "name": "TensorRT",
            "version": str(stack["tensorrt"]),
        }
    image = content.get("image") or stack.get("image")
    if isinstance(image, str):
        yield _image(image, content.get("image_digest"))


def _image(reference: str, known: Any) -> Component:
    name, _, digest = reference.partition("@")
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:  # a port, or no tag
        repository, tag = name, ""
    digest = digest or (known if isinstance(known, str) else "")
    found: Component = {
        "type": "container",
        "bom-ref": f"image:{reference}",
        "name": repository,
        "description": "base image",
        **_version(tag or digest or None),
    }
    if re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        found["hashes"] = [{"alg": "SHA-256", "content": digest.partition(":")[2]}]
    return found


def _data(checkpoint: Mapping[str, Any] | None) -> Iterator[Component]:
    calibration = _get(checkpoint, "calibration")
    if isinstance(calibration, Mapping) and calibration.get("dataset"):
        name = str(calibration["dataset"]).rstrip("/").rpartition("/")[2]
        facts = {k: calibration.get(k) for k in ("dataset_digest", "samples", "seq_len")}
        yield {
            "type": "data",
            "bom-ref": f"calibration:{name}",
            "name": name,
            "description": "calibration text",
            "data": [{"type": "dataset", "name": name}],
            "properties": _properties(facts),
        }


def _files(content: Mapping[str, Any]) -> Iterator[Component]:
    for name, digest in sorted((content.get("files") or {}).items()):
        yield {
            "type": "file",
            "bom-ref": f"file:{name}",
            "name": name,
            "hashes": [{"alg": "SHA-256", "content": str(digest)}],
        }


def licence_texts(folder: Path, names: object) -> dict[str, str]:
    """Texts of licence files in a model's folder, by name; absent and long ones are left out."""
    found = {}
    for name in names if isinstance(names, list) else ():
        path = folder / str(name)
        plain = "/" not in str(name) and path.is_file() and not path.is_symlink()
        if plain and path.stat().st_size <= _MAX_LICENCE:
            found[str(name)] = path.read_text(encoding="utf-8", errors="replace")
    return found
