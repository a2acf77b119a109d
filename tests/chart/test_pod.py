"""The rendered pod: probes, shutdown, security, scheduling, storage, names; and the child itself."""

from __future__ import annotations

import copy
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engineroom.errors import EngineroomError, InternalError, MissingError, UsageError
from engineroom.runner import kube_rules
from tests.chart.common import (
    CHART,
    SCENARIOS,
    by_kind,
    call,
    changed,
    pod_of,
    scenario,
)

if importlib.util.find_spec("helm_python") is None:
    pytest.skip("needs engineroom[deploy]", allow_module_level=True)


@pytest.mark.parametrize(
    ("budget", "failures"), [(600, 120), (601, 121), (604, 121), (605, 121), (5, 1), (7200, 1440)]
)
def test_startup_budget(budget: int, failures: int) -> None:
    objects = by_kind(call(changed({"startup.budgetSeconds": budget}), validate=False))
    probe = pod_of(objects)["containers"][0]["startupProbe"]
    assert probe == {
        "httpGet": {"path": "/v2/health/ready", "port": "http"},
        "periodSeconds": 5,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
    assert objects["Deployment"]["spec"]["progressDeadlineSeconds"] == budget + 300


@pytest.mark.parametrize(
    ("pre_stop", "exit_timeout", "grace"), [(15, 60, 105), (0, 1, 31), (20, 86400, 86450)]
)
def test_grace_period(pre_stop: int, exit_timeout: int, grace: int) -> None:
    drain = {"preStopSeconds": pre_stop, "exitTimeoutSeconds": exit_timeout}
    pod = pod_of(by_kind(call(changed({"drain": drain}))))
    assert pod["terminationGracePeriodSeconds"] == grace
    server = pod["containers"][0]
    assert server["lifecycle"] == {"preStop": {"exec": {"command": ["sleep", str(pre_stop)]}}}
    assert f"--exit-timeout-secs={exit_timeout}" in server["args"]


def test_large_numbers_stay_integers() -> None:
    """Helm's numbers are floats: printed bare, a million is 1e+06."""
    changes = {
        "startup.budgetSeconds": 86_400,
        "replicas": 3_000_000,
        "gpus": 2_000_000,
        "storage.accessMode": "ReadWriteMany",
        "tolerations": [
            {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3_000_000}
        ],
    }
    objects = by_kind(call(changed(changes)))
    assert objects["Deployment"]["spec"]["replicas"] == 3_000_000
    pod = pod_of(objects)
    assert pod["tolerations"][0]["tolerationSeconds"] == 3_000_000
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 2_000_000


def test_probes_of_a_running_server(llmapi: dict[str, Any]) -> None:
    server = pod_of(llmapi)["containers"][0]
    assert server["livenessProbe"] == {
        "httpGet": {"path": "/v2/health/live", "port": "http"},
        "periodSeconds": 10,
        "timeoutSeconds": 5,
        "failureThreshold": 6,
    }
    assert server["readinessProbe"] == {
        "httpGet": {"path": "/v2/health/ready", "port": "http"},
        "periodSeconds": 5,
        "timeoutSeconds": 5,
        "failureThreshold": 3,
    }


def test_one_replica_is_recreated(llmapi: dict[str, Any]) -> None:
    spec = llmapi["Deployment"]["spec"]
    assert spec["strategy"] == {"type": "Recreate"}
    assert spec["minReadySeconds"] == 10


def test_more_replicas_roll_without_surge() -> None:
    changes = {"replicas": 2, "storage.accessMode": "ReadWriteMany"}
    spec = by_kind(call(changed(changes)))["Deployment"]["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
    }


def test_server_container_with_ranks() -> None:
    """`mpirun` with a process a rank; each gets the drain's time, and the first one the ports."""
    server = pod_of(by_kind(call(scenario("engine"))))["containers"][0]
    args = server["args"]
    assert args[:5] == ["mpirun", "--bind-to", "none", "-n", "1"]
    first, second = args[5 : args.index(":")], args[args.index(":") + 1 :]
    assert first[0] == "tritonserver"
    assert "--http-port=8000" in first
    assert second[:3] == ["-n", "1", "tritonserver"]
    assert "--load-model=tensorrt_llm" in second
    assert first[-1] == second[-1] == "--exit-timeout-secs=120"
    # Open MPI waits before it passes SIGTERM on, and as long again before it kills.
    assert {"name": "OMPI_MCA_odls_base_sigkill_timeout", "value": "125"} in server["env"]
    pod = pod_of(by_kind(call(scenario("engine"))))
    assert pod["terminationGracePeriodSeconds"] == 20 + 125 + 125 + 30


def test_launch_environment() -> None:
    variable = {"name": "TRTLLM_ORCHESTRATOR", "value": "1"}
    server = pod_of(by_kind(call(changed({"launch.env": [variable]}))))["containers"][0]
    assert variable in server["env"]


def test_server_container(llmapi: dict[str, Any]) -> None:
    server = pod_of(llmapi)["containers"][0]
    assert server["args"] == [
        "tritonserver",
        "--model-repository=/repository",
        "--http-port=8000",
        "--grpc-port=8001",
        "--metrics-port=8002",
        "--exit-timeout-secs=60",
    ]
    assert {e["name"]: e["value"] for e in server["env"]} == {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HOME": "/scratch",
        "TMPDIR": "/scratch",
    }
    assert server["resources"] == {
        "requests": {"cpu": "6", "memory": "32Gi", "nvidia.com/gpu": 1},
        "limits": {"memory": "32Gi", "nvidia.com/gpu": 1},
    }
    mounts = {m["mountPath"]: m.get("readOnly", False) for m in server["volumeMounts"]}
    assert mounts == {
        "/repository": True,
        "/var/lib/engineroom": True,
        "/dev/shm": False,
        "/scratch": False,
    }
    volumes = {v["name"]: v for v in pod_of(llmapi)["volumes"]}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}


@pytest.mark.parametrize("name", SCENARIOS)
def test_pod_is_locked_down(name: str) -> None:
    pod = pod_of(by_kind(call(scenario(name), validate=False)))
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "fsGroup": 1000,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for container in (*pod["initContainers"], *pod["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }


def test_sigterm_reaches_a_loading_server(llmapi: dict[str, Any]) -> None:
    """Triton ignores it as PID 1 until the models are loaded; so it must not be PID 1."""
    assert pod_of(llmapi)["shareProcessNamespace"] is True


def test_scheduling_and_pull_secret() -> None:
    pod = pod_of(by_kind(call(scenario("engine"))))
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]
    assert pod["imagePullSecrets"] == [{"name": "ngc"}]


# Storage and Service


def test_claim(llmapi: dict[str, Any]) -> None:
    claim = llmapi["PersistentVolumeClaim"]
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "100Gi"}},
    }
    volumes = {v["name"]: v for v in pod_of(llmapi)["volumes"]}
    assert volumes["artifacts"] == {
        "name": "artifacts",
        "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]},
    }


def test_existing_claim_is_used_and_none_made() -> None:
    objects = by_kind(call(scenario("existing-claim")))
    assert "PersistentVolumeClaim" not in objects
    volumes = {v["name"]: v for v in pod_of(objects)["volumes"]}
    assert volumes["artifacts"]["persistentVolumeClaim"] == {"claimName": "shared-models"}


def test_artifacts_can_be_writable() -> None:
    server = pod_of(by_kind(call(changed({"artifacts.readOnly": False}))))["containers"][0]
    mounts = {m["name"]: m["readOnly"] for m in server["volumeMounts"] if "readOnly" in m}
    assert mounts == {"repository": True, "artifacts": False}


def test_metrics_stay_inside_the_cluster(llmapi: dict[str, Any]) -> None:
    def ports(objects: dict[str, Any]) -> dict[str, int]:
        return {port["name"]: port["port"] for port in objects["Service"]["spec"]["ports"]}

    assert ports(llmapi) == {"http": 8000, "grpc": 8001, "metrics": 8002}
    assert ports(by_kind(call(scenario("existing-claim")))) == {"http": 80, "grpc": 8001}


# Names and labels


@pytest.mark.parametrize(
    ("release", "override", "name"),
    [
        ("demo", "", "demo-engineroom"),
        ("demo", "chat", "demo-chat"),
        ("my-engineroom", "", "my-engineroom"),
        ("null", "n", "null"),
        ("r" * 53, "", "r" * 53 + "-engineroo"),
        ("r" * 53, "a-" * 5 + "a", "r" * 53 + "-a-a-a-a-a"),
        ("r" * 53, "a" * 8 + "-b", "r" * 53 + "-" + "a" * 8),
    ],
)
def test_names(release: str, override: str, name: str) -> None:
    result = call(changed({"nameOverride": override}), name=release)
    objects = by_kind(result)
    assert objects["Deployment"]["metadata"]["name"] == name
    assert objects["Service"]["metadata"]["name"] == name
    assert all(len(item["name"]) <= 63 for item in result["objects"])
    assert objects["ConfigMap"]["metadata"]["name"].endswith("-repository")
    assert objects["PersistentVolumeClaim"]["metadata"]["name"].endswith("-artifacts")
    assert all(body["metadata"]["namespace"] == "llm" for body in objects.values())


@pytest.mark.parametrize(
    ("release", "namespace", "words"),
    [
        ("9lives", "llm", "begin with a letter"),
        ("a.b", "llm", "choose another release name"),
        ("Demo", "llm", "invalid release name"),
        ("r" * 54, "llm", "invalid release name"),
        ("demo", "Llm", "cannot be a namespace"),
    ],
)
def test_names_that_kubernetes_refuses(release: str, namespace: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        call(scenario("llmapi"), name=release, namespace=namespace)


def test_labels(llmapi: dict[str, Any]) -> None:
    for body in llmapi.values():
        labels = body["metadata"]["labels"]
        assert set(labels) == {
            "app.kubernetes.io/name",
            "app.kubernetes.io/instance",
            "app.kubernetes.io/version",
            "app.kubernetes.io/component",
            "app.kubernetes.io/managed-by",
            "engineroom/lane",
            "engineroom/sku",
        }
        assert labels["engineroom/lane"] == "llmapi"
        assert labels["engineroom/sku"] == "l4"


def test_selector_does_not_depend_on_values() -> None:
    """It is immutable: a value in it would make `helm upgrade` fail."""
    selectors = []
    for name in SCENARIOS:
        objects = by_kind(call(scenario(name), validate=False))
        selectors += [objects["Deployment"]["spec"]["selector"]["matchLabels"]]
        selectors += [objects["Service"]["spec"]["selector"]]
    assert all(selector == selectors[0] for selector in selectors)
    assert selectors[0]["app.kubernetes.io/instance"] == "demo"


# The child


def test_child_says_which_kube_versions_it_checked() -> None:
    values = scenario("llmapi")
    result = call(values, kube_versions=["1.30.4", "1.99.0"])
    assert result["kube_versions_validated"] == ["1.30.4"]
    assert result["kube_versions_unknown"] == ["1.99.0"]
    assert call(values, validate=False)["kube_versions_validated"] == []
    for versions in (["1.99.0"], []):
        with pytest.raises(UsageError, match="no schema to check"):
            call(values, kube_versions=versions)
    with pytest.raises(UsageError, match="not a Kubernetes version"):
        call(values, kube_versions=["latest"])


def test_child_prints_events_only() -> None:
    request = {
        "chart": str(CHART), "values": {}, "name": "demo", "namespace": "llm",
        "kube_versions": [], "validate": False,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "engineroom.runner.helm_child"],
        input=json.dumps(request), capture_output=True, text=True, check=True,
    )  # fmt: skip
    [event] = [json.loads(line) for line in done.stdout.splitlines()]
    assert (event["event"], event["class"]) == ("error", "usage")
    assert "image.reference is empty" in event["message"]


@pytest.mark.parametrize("module", ["helm_python", "kubernetes_validate"])
def test_missing_extra(module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text(f"raise ModuleNotFoundError(name={module!r})\n")
    with pytest.raises(MissingError) as caught:
        call(scenario("llmapi"), env={"PYTHONPATH": str(tmp_path)})
    assert caught.value.hint == "pip install 'engineroom[deploy]'"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("minReadySeconds: 10", "minReadySecond: 10", "Kubernetes 1.29.0"),
        ("periodSeconds: 10", "periodSeconds: ten", "livenessProbe"),
        ("kind: Deployment", "kind: Deploymint", "Couldn't find schema"),
        ('"engineroom.podLabels"', '"engineroom.podLabel"', 'no template "engineroom.podLabel"'),
        (
            "- name: scratch\n          emptyDir: {}",
            "- name: other\n          emptyDir: {}",
            "no volume",
        ),
    ],
)
def test_a_broken_chart_is_our_fault(old: str, new: str, words: str, chart_copy: Path) -> None:
    file = chart_copy / "templates/deployment.yaml"
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(EngineroomError) as caught:
        call(scenario("llmapi"), chart=chart_copy)
    assert type(caught.value) is InternalError
    assert words in caught.value.message


def test_templates_evaluate_no_text_and_ask_no_cluster() -> None:
    for path in (CHART / "templates").iterdir():
        text = path.read_text(encoding="utf-8")
        for word in (" tpl ", "lookup ", ".Capabilities", "randAlpha", "now |"):
            assert word not in text, path.name


Break = Callable[[dict[str, Any]], None]


def _server(objects: dict[str, Any]) -> dict[str, Any]:
    server: dict[str, Any] = pod_of(objects)["containers"][0]
    return server


def _grow(objects: dict[str, Any]) -> None:
    objects["ConfigMap"]["data"]["f000"] = "x" * (1 << 20)


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (
            lambda o: o["Deployment"]["spec"]["selector"]["matchLabels"].update(a="b"),
            "labels of its pods",
        ),
        (lambda o: o["Service"]["spec"]["selector"].update(a="b"), "matches no pod"),
        (lambda o: o["Service"]["spec"].update(selector={}), "matches no pod"),
        (lambda o: o["Service"]["spec"]["ports"][0].update(targetPort="web"), "port called web"),
        (lambda o: _server(o)["volumeMounts"][0].update(name="none"), "no volume none"),
        (lambda o: pod_of(o)["volumes"][0]["configMap"].update(name="none"), "no ConfigMap none"),
        (lambda o: pod_of(o)["volumes"][0]["configMap"]["items"].pop(), "items are not the keys"),
        (lambda o: o.pop("PersistentVolumeClaim"), "there is no claim"),
        (
            lambda o: _server(o)["resources"]["requests"].update({"nvidia.com/gpu": 2}),
            "requested is 2",
        ),
        (lambda o: _server(o)["resources"]["limits"].pop("nvidia.com/gpu"), "its limit None"),
        (lambda o: pod_of(o).update(terminationGracePeriodSeconds=75), "75 s to stop"),
        (lambda o: pod_of(o).pop("terminationGracePeriodSeconds"), "grace period is 30 s"),
        (lambda o: _server(o)["resources"]["limits"].update(memory="2047Mi"), "memory limit"),
        (lambda o: pod_of(o)["volumes"][3]["emptyDir"].pop("sizeLimit"), "no sizeLimit"),
        (lambda o: _server(o)["livenessProbe"]["httpGet"].update(port="web"), "port called web"),
        (lambda o: o["ConfigMap"]["metadata"].update(name="a" * 64), "DNS label"),
        (lambda o: o["Service"]["metadata"].update(name="1a"), "begin with a letter"),
        (_grow, "bytes of data"),
    ],
)
def test_checks_of_our_own_can_fail(break_it: Break, words: str, llmapi: dict[str, Any]) -> None:
    objects = copy.deepcopy(llmapi)
    values = scenario("llmapi")
    assert list(kube_rules.problems(list(objects.values()), values)) == []
    break_it(objects)
    assert any(words in text for text in kube_rules.problems(list(objects.values()), values))


def test_quantities() -> None:
    assert kube_rules.quantity("2Gi") == 2 * 1024**3
    assert kube_rules.quantity("2G") == 2 * 1000**3
    assert kube_rules.quantity("500m") * 2 == kube_rules.quantity(1)
    assert kube_rules.quantity("1.5Ki") == 1536
    for wrong in ("2Gib", "Gi", "2i", "-1", "2ki"):
        with pytest.raises(InternalError):
            kube_rules.quantity(wrong)
