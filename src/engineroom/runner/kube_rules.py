"""Rules on rendered Kubernetes objects that a schema cannot say: selectors, volumes, sizes, times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from engineroom.errors import InternalError

Object = dict[str, Any]
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_CONFIG_MAP_LIMIT = 1 << 20
_EXIT_TIMEOUT_DEFAULT = 30
_SUFFIXES: dict[str, Decimal] = {"": Decimal(1), "m": Decimal("0.001")}
_SUFFIXES |= {unit: Decimal(1000) ** n for n, unit in enumerate("kMGTPE", start=1)}
_SUFFIXES |= {unit + "i": Decimal(1024) ** n for n, unit in enumerate("KMGTPE", start=1)}


def problems(objects: Sequence[Object], values: Mapping[str, Any]) -> Iterator[str]:
    """What no schema sees: references, names and sums that must agree."""
    seen: set[tuple[str, str]] = set()
    pods = [(body, body["spec"]["template"]) for body in objects if body["kind"] == "Deployment"]
    for body in objects:
        kind, name = str(body["kind"]), str(body["metadata"].get("name", ""))
        where = f"{kind}/{name}"
        if (kind, name) in seen:
            yield f"{where}: rendered twice"
        seen.add((kind, name))
        if not LABEL.fullmatch(name) or len(name) > 63:
            yield f"{where}: the name is no DNS label of at most 63 characters"
        if kind == "Service":
            yield from _service_problems(where, body["spec"], [template for _, template in pods])
        elif kind == "ConfigMap":
            size = sum(len(f"{k}{v}".encode()) for k, v in (body.get("data") or {}).items())
            if size >= _CONFIG_MAP_LIMIT:
                yield f"{where}: {size} bytes of data, and {_CONFIG_MAP_LIMIT} is the limit"
    existing = (values.get("storage") or {}).get("existingClaim")
    for body, template in pods:
        where = f"Deployment/{body['metadata']['name']}"
        if not _selects(body["spec"]["selector"]["matchLabels"], template):
            yield f"{where}: the selector does not match the labels of its pods"
        for problem in _pod_problems(template["spec"], objects, existing):
            yield f"{where}: {problem}"


def _selects(selector: Mapping[str, str], template: Mapping[str, Any]) -> bool:
    return bool(selector) and selector.items() <= template["metadata"].get("labels", {}).items()


def _service_problems(
    where: str, spec: Mapping[str, Any], templates: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    chosen = [t for t in templates if _selects(spec.get("selector") or {}, t)]
    if not chosen:
        yield f"{where}: the selector matches no pod of this release"
        return
    if where.split("/")[1][:1].isdigit():
        yield f"{where}: a Service's name must begin with a letter"
    named = {p["name"] for t in chosen for c in t["spec"]["containers"] for p in c.get("ports", [])}
    for port in spec["ports"]:
        if isinstance(port["targetPort"], str) and port["targetPort"] not in named:
            yield f"{where}: no container has a port called {port['targetPort']}"


def _pod_problems(
    pod: Mapping[str, Any], objects: Sequence[Object], existing_claim: str | None
) -> Iterator[str]:
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    yield from _volume_problems(volumes, objects, existing_claim)
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        who = f"container {container['name']}"
        mounts = [mount["name"] for mount in container.get("volumeMounts", [])]
        yield from (f"{who}: there is no volume {name}" for name in mounts if name not in volumes)
        yield from (f"{who}: {text}" for text in _resource_problems(container, mounts, volumes))
        ports = {port["name"] for port in container.get("ports", [])}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            port = container.get(probe, {}).get("httpGet", {}).get("port")
            if isinstance(port, str) and port not in ports:
                yield f"{who}: {probe} asks a port called {port}, which it does not have"
        needed = _stop_seconds(container)
        grace = pod.get("terminationGracePeriodSeconds", 30)
        if needed is not None and grace <= needed:
            yield f"{who}: {needed} s to stop, and the grace period is {grace} s"


def _volume_problems(
    volumes: Mapping[str, Mapping[str, Any]], objects: Sequence[Object], existing_claim: str | None
) -> Iterator[str]:
    def names(kind: str) -> dict[str, Object]:
        return {o["metadata"]["name"]: o for o in objects if o["kind"] == kind}

    for name, volume in volumes.items():
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        if (
            claim is not None
            and claim != existing_claim
            and claim not in names("PersistentVolumeClaim")
        ):
            yield f"volume {name}: there is no claim {claim}"
        source = volume.get("configMap")
        if source is None:
            continue
        found = names("ConfigMap").get(source["name"])
        if found is None:
            yield f"volume {name}: there is no ConfigMap {source['name']}"
            continue
        items = [item["key"] for item in source.get("items", [])]
        if set(items) != set(found["data"]):
            yield f"volume {name}: its items are not the keys of ConfigMap {source['name']}"


def _resource_problems(
    container: Mapping[str, Any],
    mounts: Sequence[str],
    volumes: Mapping[str, Mapping[str, Any]],
) -> Iterator[str]:
    resources = container.get("resources", {})
    asked, limit = resources.get("requests", {}), resources.get("limits", {})
    for key in sorted({*asked, *limit}):
        if key.startswith("nvidia.com/") and asked.get(key) != limit.get(key):
            yield f"{key} requested is {asked.get(key)}, its limit {limit.get(key)}"
    in_memory = [
        volumes[name]["emptyDir"]
        for name in mounts
        if volumes.get(name, {}).get("emptyDir", {}).get("medium") == "Memory"
    ]
    if any("sizeLimit" not in volume for volume in in_memory):
        yield "a memory volume has no sizeLimit"
    total = sum((quantity(v["sizeLimit"]) for v in in_memory if "sizeLimit" in v), Decimal(0))
    if "memory" in limit and total > quantity(limit["memory"]):
        yield f"memory volumes of {total} bytes, and a memory limit of {limit['memory']}"


def _stop_seconds(container: Mapping[str, Any]) -> int | None:
    """preStop plus Triton's exit timeout; None when the container does not run Triton."""
    argv = [str(part) for part in (*container.get("command", []), *container.get("args", []))]
    if not argv or argv[0].rsplit("/", 1)[-1] != "tritonserver":
        return None
    flag = "--exit-timeout-secs="
    timeouts = [part.removeprefix(flag) for part in argv if part.startswith(flag)]
    hook = container.get("lifecycle", {}).get("preStop", {})
    sleep = hook.get("sleep", {}).get("seconds", 0)
    command = hook.get("exec", {}).get("command", [])
    if len(command) == 2 and command[0].rsplit("/", 1)[-1] == "sleep":
        sleep = command[1]
    return int(sleep) + int(timeouts[-1] if timeouts else _EXIT_TIMEOUT_DEFAULT)


def quantity(text: str | int) -> Decimal:
    """A Kubernetes quantity as a number.

    Raises:
        InternalError: not a quantity.
    """
    match = re.fullmatch(r"([0-9]+(?:[.][0-9]+)?)([mkKMGTPE]?i?)", str(text))
    if match is None or match[2] not in _SUFFIXES:
        raise InternalError(f"`{text}` is not a Kubernetes quantity")
    return Decimal(match[1]) * _SUFFIXES[match[2]]
