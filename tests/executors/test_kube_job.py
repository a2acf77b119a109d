"""The Job's manifest: strict validation, node affinity over label sets of many SKUs, and the pod's script."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engineroom.errors import UsageError
from engineroom.runner import manifest
from engineroom.runner.executors import kube_job, pod_build
from engineroom.types import GpuSku
from tests.doubles import trtllm_build
from tests.executors.common import IMAGE, step, workspace

KEY = "fedcba9876543210" * 4
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")


def request(catalog, sku="h100-sxm", ranks=1, **changes: Any) -> kube_job.JobRequest:
    facts: dict[str, Any] = {
        "name": "engineroom-build-fedcba9876543210",
        "step": step(ranks),
        "sku": catalog.sku(sku),
        "claim": "models",
        "publish": f"artifacts/tiny/engine/1.2.1/{sku}/1x1/{KEY[:16]}",
        "manifest": {"schema_version": 1, "kind": "engine", "key": KEY},
        "target": f"engine-{sku}-tp1pp1-26-07",
    }
    return kube_job.JobRequest(**{**facts, **changes})


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    return job["spec"]["template"]["spec"]


# ---- the manifest


@pytest.mark.parametrize("version", ["1.29", "1.31", "1.37"])
def test_validates_strictly(catalog, version):
    utils = pytest.importorskip("kubernetes_validate").utils
    for changes in (
        {},
        {"ranks": 4, "sku": "b200-sxm", "timeout": 3600.5, "namespace": "llm", "sub_path": "a/b"},
        {"user": 0, "pull_secret": "ngc", "probe": {"path": "p", "text": "t"}, "files": {"f": "x"}},
        {"step": step(gpus=0, host_memory_bytes=None)},
    ):
        utils.validate(kube_job.job(request(catalog, **changes)), version, strict=True)
    broken = kube_job.job(request(catalog))
    broken["spec"]["backofLimit"] = 1
    with pytest.raises(utils.ValidationError):
        utils.validate(broken, version, strict=True)


def test_what_the_pod_gets(catalog):
    job = kube_job.job(request(catalog, ranks=4, timeout=3600.5, pull_secret="ngc", sub_path="ws"))
    spec, pod = job["spec"], pod_of(job)
    (container,) = pod["containers"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"]) == (2, 3601)
    assert [(r["action"], set(r) - {"action"}) for r in spec["podFailurePolicy"]["rules"]] == [
        ("Count", {"onPodConditions"}),
        ("FailJob", {"onExitCodes"}),
    ]
    assert pod["restartPolicy"] == "Never"
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["fsGroup"] == 1000
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["image"] == IMAGE
    assert "command" not in container
    assert container["resources"] == {
        "requests": {"cpu": "4", "memory": f"{24 * 1024}Mi"},
        "limits": {"nvidia.com/gpu": 4},
    }
    assert container["volumeMounts"][0] == {
        "name": "workspace", "mountPath": "/var/lib/engineroom", "subPath": "ws",
    }  # fmt: skip
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "models"}
    assert pod["imagePullSecrets"] == [{"name": "ngc"}]


def test_labels_are_labels_and_no_secret_is_in_it(catalog, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecret")
    target = "engine-h100-sxm-tp1pp1-26-07-" + "profile-" * 9 + "!"
    job = kube_job.job(request(catalog, target=target))
    for labels in (job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]):
        assert all(LABEL_VALUE.fullmatch(v) and len(v) <= 63 for v in labels.values())
        assert labels["engineroom/key"] == KEY[:16]
        assert labels["engineroom/sku"] == "h100-sxm"
        assert target.startswith(labels["engineroom/target"])
    assert job["metadata"]["annotations"]["engineroom/target"] == target
    assert job["metadata"]["annotations"]["engineroom/key"] == KEY
    names = {e["name"] for e in pod_of(job)["containers"][0]["env"]}
    assert names == {"HOME", "TMPDIR", "USER", "HF_HUB_OFFLINE"}
    assert "hf_secret" not in json.dumps(job)


@pytest.mark.parametrize(
    "changes", [{"name": "Upper"}, {"name": "x" * 64}, {"claim": "a_b"}, {"step": step(image=None)}]
)
def test_names_that_kubernetes_does_not_take(catalog, changes):
    with pytest.raises(UsageError):
        kube_job.job(request(catalog, **changes))


def test_dollars_are_not_expanded(catalog):
    argv = ("trtllm-build", "--output_dir", "engine", "--x", "$(HOME) $$(A) $")
    made = request(catalog, step=step(argv=argv))
    args = pod_of(kube_job.job(made))["containers"][0]["args"]
    expanded = [expand(word, {"HOME": "/scratch", "A": "b"}) for word in args]
    assert tuple(expanded) == kube_job.pod_argv(made)


def expand(text: str, env: dict[str, str]) -> str:
    """Kubernetes' expansion of `$(NAME)` (third_party/forked/golang/expansion): `$$` is a `$`."""
    found = re.compile(r"\$(\$|\(([^)]*)\))")
    return found.sub(lambda m: "$" if m[1] == "$" else env.get(m[2], m[0]), text)


# ---- node affinity


def admits(terms: list[dict[str, Any]], labels: dict[str, str]) -> bool:
    """The scheduler's rule: terms are alternatives, expressions of a term all hold
    (kubernetes.io, "Assigning Pods to Nodes"); NotIn holds without the label."""
    return any(all(holds(e, labels) for e in term["matchExpressions"]) for term in terms)


def holds(expression: dict[str, Any], labels: dict[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values", [])
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[expression["operator"]]


SKUS = (
    "t4", "a10", "a30", "a100-pcie-80gb", "a100-sxm-40gb", "a100-sxm-80gb", "l4", "l40s", "h100-pcie",
    "h100-sxm", "h200-sxm", "b200-sxm", "gh200-96gb", "h20", "rtx-pro-6000-blackwell-server",
)  # fmt: skip
N = "nvidia.com/"


def whole(sku: GpuSku, **more: str) -> dict[str, str]:
    """What GPU feature discovery writes for whole, unshared GPUs (internal/lm, @ 1b826acc)."""
    return {
        N + "gpu.product": sku.node_label, N + "gpu.count": "8", N + "gpu.replicas": "1",
        N + "gpu.memory": str(sku.memory_mib), N + "gpu.sharing-strategy": "none",
        N + "mig.capable": str(sku.mig_supported).lower(), "kubernetes.io/os": "linux", **more,
    }  # fmt: skip


def admitted(sku: GpuSku) -> dict[str, dict[str, str]]:
    old = whole(sku)
    del old[N + "gpu.sharing-strategy"]
    off = {
        N + "mig.strategy": "mixed",
        N + "mig.config": "all-disabled",
        N + "mig.config.state": "success",
    }
    return {
        "whole": whole(sku),
        "strategy single, no MIG": whole(sku, **{N + "mig.strategy": "single"}),
        "strategy mixed, MIG off": whole(sku, **off),
        "old feature discovery": old,
    }


def refused(sku: GpuSku) -> dict[str, dict[str, str]]:
    product = sku.node_label
    mixed = {N + "mig.strategy": "mixed", N + "mig-1g.10gb.count": "7"}
    return {
        "MIG single": whole(sku, **{
            N + "gpu.product": f"{product}-MIG-1g.10gb", N + "mig.strategy": "single",
        }),
        "MIG single, invalid": whole(sku, **{
            N + "gpu.product": f"{product}-MIG-INVALID", N + "gpu.replicas": "0",
            N + "gpu.count": "0", N + "mig.strategy": "single",
        }),
        "MIG single, shared": whole(sku, **{
            N + "gpu.product": f"{product}-MIG-1g.10gb-SHARED", N + "gpu.replicas": "2",
            N + "gpu.sharing-strategy": "time-slicing", N + "mig.strategy": "single",
        }),
        "MIG mixed": whole(sku, **mixed),
        "MIG mixed, being changed": whole(sku, **mixed, **{
            N + "mig.config": "all-disabled", N + "mig.config.state": "pending",
        }),
        "MIG mixed, on all": whole(sku, **mixed, **{N + "gpu.replicas": "0"}),
        "MIG on, strategy none": whole(sku, **{N + "gpu.replicas": "0"}),
        "time-sliced": whole(sku, **{
            N + "gpu.product": f"{product}-SHARED", N + "gpu.replicas": "4",
            N + "gpu.sharing-strategy": "time-slicing",
        }),
        "MPS": whole(sku, **{
            N + "gpu.product": f"{product}-SHARED", N + "gpu.replicas": "10",
            N + "gpu.sharing-strategy": "mps",
        }),
        "time-sliced under another name": whole(sku, **{
            N + "gpu.replicas": "4", N + "gpu.sharing-strategy": "time-slicing",
        }),
        "no GPU": {"kubernetes.io/os": "linux"},
        "not labelled by feature discovery": {N + "gpu.present": "true"},
    }  # fmt: skip


@pytest.mark.parametrize("name", SKUS)
def test_affinity_admits_exactly_the_skus_whole_nodes(catalog, name):
    sku = catalog.sku(name)
    affinity = pod_of(kube_job.job(request(catalog, sku=name)))["affinity"]["nodeAffinity"]
    terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    for other in catalog.skus.values():
        for what, labels in admitted(other).items():
            assert admits(terms, labels) is (other.id == name), (other.id, what)
        for what, labels in refused(other).items():
            assert not admits(terms, labels), (other.id, what)
    assert set(affinity) == {"requiredDuringSchedulingIgnoredDuringExecution"}
    for alias in sku.aliases:
        labels = whole(sku, **{N + "gpu.product": alias.replace(" ", "-")})
        assert admits(terms, labels)
        assert not admits(terms, {**labels, N + "gpu.product": alias.replace(" ", "-") + "-SHARED"})


def test_products_name_one_sku_each(catalog):
    owners: dict[str, str] = {}
    for sku in catalog.skus.values():
        names = kube_job.products(sku)
        assert names[0] == sku.node_label
        for product in names:
            assert LABEL_VALUE.fullmatch(product)
            assert len(product) <= 63
            assert owners.setdefault(product, sku.id) == sku.id
            found = catalog.sku_by_product(product)
            assert found is not None
            assert found.id == sku.id


# ---- the pod's script, run as the container runs it


class Pod:
    def __init__(self, folder: Path, catalog: Any, **double: Any) -> None:
        self.folder, self.catalog = workspace(folder / "claim"), catalog
        self.starts = folder / "starts"
        self.starts.mkdir()
        self.env = trtllm_build.install(folder / "bin", record=self.starts, **double)

    def request(self, **changes: Any) -> kube_job.JobRequest:
        return request(self.catalog, **{"mount": str(self.folder), **changes})

    def start(self, **changes: Any) -> subprocess.Popen[str]:
        _, *words = kube_job.pod_argv(self.request(**changes))
        # -S: no site packages, so that nothing of engineroom can be imported.
        return subprocess.Popen(
            [sys.executable, "-I", "-S", *words], env={**os.environ, **self.env},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, **changes: Any) -> tuple[int, str]:
        process = self.start(**changes)
        text, _ = process.communicate(timeout=30)
        return process.returncode, text

    @property
    def final(self) -> Path:
        return self.folder / self.request().publish

    def left(self) -> list[str]:
        return sorted(p.name for p in self.final.parent.iterdir())


def test_the_pod_publishes_an_artefact_that_engineroom_accepts(tmp_path, catalog):
    pod = Pod(tmp_path, catalog)
    code, text = pod.run(files={"llm_args.yaml": "a: 1\n"})
    assert code == 0, text
    content = manifest.load(pod.final, "engine")
    assert content["key"] == KEY
    assert set(content["files"]) == {"config.json", "rank0.engine", "llm_args.yaml"}
    assert pod.left() == [f".{pod.final.name}.lock", pod.final.name]
    # Again: verified, not built.
    assert pod.run()[1] == f"engineroom: already built and verified: {pod.request().publish}\n"
    assert len(list(pod.starts.iterdir())) == 1
    # Damaged: built anew.
    (pod.final / "rank0.engine").write_bytes(b"x")
    assert not pod_build.complete(pod.final, KEY)
    assert pod.run()[0] == 0
    assert len(list(pod.starts.iterdir())) == 2
    manifest.load(pod.final, "engine")


@pytest.mark.parametrize(
    ("double", "changes", "code", "words"),
    [
        ({"mode": "fail"}, {}, 9, "CUDA error"),
        ({"mode": "crash"}, {}, 139, ""),
        ({"mode": "incomplete"}, {}, 98, "left no rank0.engine"),
        ({}, {"step": step(argv=("no-such-tool",), output_flag=None)}, 127, "cannot be started"),
        ({}, {"probe": {"path": "probe", "text": "x"}}, 97, "is not the workspace"),
        ({"mode": "limited"}, {}, 1, "File too large"),
    ],
)
def test_a_pod_that_fails_publishes_nothing(tmp_path, catalog, double, changes, code, words):
    pod = Pod(tmp_path, catalog, **double)
    found, text = pod.run(**changes)
    assert (found, words in text) == (code, True), text
    assert not pod.final.exists()
    if code != pod_build.WRONG_CLAIM:
        assert pod.left() == [f".{pod.final.name}.lock"]


def test_two_pods_build_once(tmp_path, catalog):
    pod = Pod(tmp_path, catalog, seconds=0.6)
    texts = [process.communicate(timeout=30)[0] for process in [pod.start(), pod.start()]]
    assert len(list(pod.starts.iterdir())) == 1
    assert sum("another pod builds the same" in text for text in texts) == 1
    manifest.load(pod.final, "engine")


@pytest.mark.parametrize("number", [9, 15])
def test_a_pod_that_is_taken_away(tmp_path, catalog, number):
    pod = Pod(tmp_path, catalog, seconds=1.5)
    process = pod.start()
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("[11/30/2026-00:00:00] [TRT-LLM] [I] Serializing"):
            break
    if number == 9:  # the kubelet kills the whole container
        os.killpg(int(next(pod.starts.iterdir()).stem.rsplit("-", 1)[1]), 9)
    process.send_signal(number)
    process.communicate(timeout=10)
    assert process.returncode == (-9 if number == 9 else 143)
    assert not pod.final.exists()
    again = Pod.__new__(Pod)
    again.__dict__.update(pod.__dict__)
    again.env = trtllm_build.install(tmp_path / "bin", record=pod.starts)
    assert again.run()[0] == 0
    assert again.left() == [f".{pod.final.name}.lock", pod.final.name]
    manifest.load(pod.final, "engine")


def test_the_script_is_for_the_stock_container():
    """No import of ours, none of a package, and no more than one of the container's oldest Python."""
    source = Path(pod_build.__file__).read_text(encoding="utf-8")
    imported = set(re.findall(r"^(?:from|import) ([a-z_]+)", source, re.MULTILINE))
    assert imported <= set(sys.stdlib_module_names)
    ast.parse(source, feature_version=(3, 10))
