"""The Helm chart, rendered by the real Helm SDK in the child process and checked offline.

Not tested here, because it takes a cluster: scheduling, the kubelet's probes, real rollouts.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from engineroom.errors import EngineroomError, InternalError, MissingError, UsageError
from engineroom.runner import helm_child
from engineroom.runner.process import run_module

if importlib.util.find_spec("helm_python") is None:
    pytest.skip("needs engineroom[deploy]", allow_module_level=True)

CHART = Path(__file__).parents[2] / "helm/engineroom"
GOLDEN = Path(__file__).parent / "golden"
SCENARIOS = sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").iterdir())
KUBE_VERSIONS = ["1.29.0", "1.31.0", "1.35.0", "1.37.0"]
Values = dict[str, Any]
Result = dict[str, Any]


def scenario(name: str) -> Values:
    text = (CHART / f"ci/{name}-values.yaml").read_text(encoding="utf-8")
    values: Values = yaml.safe_load(text)
    return values


def changed(changes: Values, base: str = "llmapi") -> Values:
    """A scenario with some dotted keys set."""
    values = scenario(base)
    for key, value in changes.items():
        *parents, last = key.split(".")
        place = values
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return values


def call(
    values: Values,
    *,
    name: str = "demo",
    namespace: str = "llm",
    chart: Path = CHART,
    kube_versions: list[str] | None = None,
    validate: bool = True,
    log: Path | None = None,
    env: dict[str, str] | None = None,
) -> Result:
    request = {
        "chart": str(chart),
        "values": values,
        "name": name,
        "namespace": namespace,
        "kube_versions": KUBE_VERSIONS if kube_versions is None else kube_versions,
        "validate": validate,
    }
    return run_module("engineroom.runner.helm_child", request, log=log, env=env)


def by_kind(result: Result) -> dict[str, Any]:
    return {body["kind"]: body for body in yaml.safe_load_all(result["manifests"])}


def pod_of(objects: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = objects["Deployment"]["spec"]["template"]["spec"]
    return pod


def in_python(code: str, *argv: str, text: str = "") -> str:
    """Run Helm SDK code outside this process: its Go runtime stays out of pytest."""
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], input=text, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture(scope="module")
def llmapi() -> dict[str, Any]:
    return by_kind(call(scenario("llmapi")))


@pytest.fixture
def chart_copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CHART, tmp_path / "engineroom"))


# Scenarios


def test_scenarios_are_found() -> None:
    assert SCENARIOS == ["engine", "existing-claim", "llmapi"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_renders_and_validates(name: str) -> None:
    result = call(scenario(name))
    kinds = [item["kind"] for item in result["objects"]]
    expected = ["ConfigMap", "Deployment", "PersistentVolumeClaim", "Service"]
    if name == "existing-claim":
        expected.remove("PersistentVolumeClaim")
    assert kinds == expected
    assert result["kube_versions_validated"] == KUBE_VERSIONS
    assert result["kube_versions_unknown"] == []
    found = [
        {"kind": body["kind"], "name": body["metadata"]["name"]}
        for body in yaml.safe_load_all(result["manifests"])
    ]
    assert found == result["objects"]


def test_golden_manifests() -> None:
    """Regenerate with ENGINEROOM_UPDATE_GOLDEN=1, then read the diff."""
    golden = GOLDEN / "llmapi.yaml"
    manifests = call(scenario("llmapi"))["manifests"].encode()
    if os.environ.get("ENGINEROOM_UPDATE_GOLDEN") == "1":
        golden.write_bytes(manifests)
    assert manifests == golden.read_bytes()


def test_same_values_same_bytes() -> None:
    values = scenario("engine")
    backwards = dict(reversed(values.items()))
    assert list(backwards) != list(values)
    first, second = call(values), call(backwards)
    assert first["manifests"] == second["manifests"]
    assert first["notes"] == second["notes"]
    assert "\r" not in first["manifests"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_notes(name: str) -> None:
    notes = call(scenario(name), validate=False)["notes"]
    budget = {"engine": 2101}.get(name, 900)
    assert f"--timeout {budget}s" in notes
    assert ("delete pvc" in notes) == (name != "existing-claim")
    front = "ensemble" if name == "engine" else "tensorrt_llm"
    assert f"/v2/models/{front}/generate_stream" in notes


# Schema


def test_schema_is_loaded_also_from_a_package(tmp_path: Path) -> None:
    """A schema named in .helmignore would be dropped without a word."""
    code = (
        "import sys, helm_python as h\n"
        "archive = h.package(sys.argv[1], destination=sys.argv[2])\n"
        "for place in (sys.argv[1], archive):\n"
        "    print(h.Chart.load(place).schema['additionalProperties'])\n"
    )
    assert in_python(code, str(CHART), str(tmp_path)).split() == ["False", "False"]


def test_chart_without_schema_is_refused(chart_copy: Path) -> None:
    (chart_copy / ".helmignore").write_text("values.schema.json\n")
    with pytest.raises(InternalError, match=r"no values\.schema\.json"):
        call(scenario("llmapi"), chart=chart_copy)


def test_values_and_schema_have_the_same_keys() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    defaults = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

    def compare(values: Values, part: dict[str, Any], where: str) -> None:
        assert part["additionalProperties"] is False, where
        assert set(values) == set(part["properties"]) - {"global"} == set(part["required"]), where
        for key, value in values.items():
            if isinstance(value, dict) and key != "nodeSelector":
                compare(value, part["properties"][key], f"{where}.{key}")

    compare(defaults, schema, "")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"replica": 2}, "'replica'"),
        ({"image.tag": "x"}, "'tag'"),
        ({"model.lanes": "engine"}, "'lanes'"),
        ({"storage.claim": "x"}, "'claim'"),
        ({"service.port": 1}, "'port'"),
        ({"tolerations": [{"keys": "x"}]}, "'keys'"),
        ({"repository.files": [{"key": "a", "path": "b", "content": "", "mode": 1}]}, "'mode'"),
        ({"repository.files": [{"key": "a", "path": "../b", "content": ""}]}, "/files/0/path"),
        ({"repository.files": [{"key": "a", "path": "/b", "content": ""}]}, "/files/0/path"),
        ({"model.lane": "vllm"}, "/model/lane"),
        ({"replicas": "2"}, "/replicas"),
        ({"replicas": 0}, "/replicas"),
        ({"shmSize": "2G"}, "/shmSize"),
        ({"resources.cpu": 6}, "/resources/cpu"),
        ({"nodeSelector": {"a": True}}, "/nodeSelector/a"),
        ({"storage.accessMode": "RWO"}, "/storage/accessMode"),
        ({"image": None}, "'image'"),
    ],
    ids=str,
)
def test_schema_refuses(changes: Values, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        call(changed(changes))
    assert words in caught.value.message
    assert "\n" not in caught.value.message


# Rules of templates/validate.yaml

_FILE = {"key": "f", "path": "m/config.pbtxt", "content": "x"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image.reference": ""}, ["image.reference"]),
        ({"gpus": 0}, ["gpus", "at least 1"]),
        ({"repository.files": []}, ["repository.files is empty"]),
        ({"repository.files": [_FILE, {**_FILE, "path": "n"}]}, ["key f is there twice"]),
        (
            {"repository.files": [_FILE, {**_FILE, "key": "g"}]},
            ["path m/config.pbtxt is there twice"],
        ),
        (
            {"replicas": 2},
            ["storage.accessMode", "ReadWriteOnce", "storage.accessMode: ReadWriteMany"],
        ),
        (
            {"replicas": 2, "storage.accessMode": "ReadWriteOncePod"},
            ["storage.accessMode is ReadWriteOncePod", "replicas is 2"],
        ),
        (
            {"storage.accessMode": "ReadOnlyMany", "artifacts.readOnly": False},
            ["artifacts.readOnly: true"],
        ),
        ({"artifacts.mountPath": "/dev"}, ["artifacts.mountPath", "/dev/shm"]),
        ({"artifacts.mountPath": "/repository/x"}, ["artifacts.mountPath"]),
        ({"shmSize": "32Gi"}, ["shmSize", "resources.memory"]),
        ({"shmSize": "1Ti"}, ["shmSize", "resources.memory"]),
        ({"shmSize": "32768Mi"}, ["shmSize", "resources.memory"]),
        ({"service.grpcPort": 8000}, ["service.grpcPort"]),
        ({"model.frontModel": "ensemble"}, ["model.frontModel", "model.lane: engine"]),
    ],
    ids=str,
)
def test_rule_names_the_key_and_what_it_needs(changes: Values, words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        call(changed(changes))
    assert "validate.yaml" in caught.value.message
    for word in words:
        assert word in caught.value.message
    assert "\n" not in caught.value.message


def test_values_beside_the_rules_pass() -> None:
    """The near side of the limits above."""
    call(changed({"shmSize": "31Gi", "artifacts.mountPath": "/repository-of-weights"}))
    call(changed({"storage.accessMode": "ReadOnlyMany", "replicas": 2}))


def test_repository_size_limit_counts_bytes() -> None:
    def sized(text: str) -> Values:
        files = [{"key": f"f{i}", "path": f"m/{i}", "content": text} for i in range(2)]
        return changed({"repository.files": files})

    fits = by_kind(call(sized("\u00e4" * 250_000)))
    assert sum(len(text.encode()) for text in fits["ConfigMap"]["data"].values()) == 1_000_000
    with pytest.raises(
        UsageError, match=r"repository\.files has 1000004 bytes.*artifacts\.mountPath"
    ):
        call(sized("\u00e4" * 250_001))


# The repository in the ConfigMap

_EVERY_CHARACTER = "".join(
    chr(i) for i in [*range(0xD800), *range(0xE000, 0x10000), 0x1F600, 0x1FFFE, 0x10FFFF]
)
HOSTILE = {
    "templates": '{{ .Values.gpus }} {{- fail "no" -}} {{/* c */}} ${HOME} $(X) %s <no value> <a>&amp;',
    "quotes": "\"double\" 'single' `back` \\ \\n \\u0041 \"\"\" '''",
    "yaml": "---\n- a: &x [1, {b: c}]\n...\n# c\n!!int 3\n*x: |\n",
    "spaces": "   leading\ntrailing   \n\t tab\t\n   \n\n\n",
    "breaks": "a\r\nb\rc\x85d\u2028e\u2029f\x0bg\x0ch",
    "no newline": "end",
    "empty": "",
    "only newlines": "\n\n",
    "number": "0123",
    "boolean": "yes",
    "unicode": "\ufeffGr\u00fc\u00dfe \u4f60\u597d \U0001f682\u200d \u0000\x7f\x9f\ufffe\uffff",
    "every character": _EVERY_CHARACTER,
}


def test_hostile_text_survives_byte_for_byte() -> None:
    files = [
        {"key": f"f{i:03}", "path": f"m/{name}.txt", "content": text}
        for i, (name, text) in enumerate(HOSTILE.items())
    ]
    manifests = call(changed({"repository.files": files}))["manifests"]
    config_map = next(d for d in manifests.split("---\n# Source: ") if "kind: ConfigMap" in d)
    config_map = "# " + config_map
    # Two readers: PyYAML, and the Go one that Kubernetes uses.
    code = "import sys, json, helm_python as h; print(json.dumps(h.values_from_yaml(sys.stdin.read())))"
    for body in (yaml.safe_load(config_map), json.loads(in_python(code, text=config_map))):
        for file, (name, text) in zip(files, HOSTILE.items(), strict=True):
            assert body["data"][file["key"]].encode() == text.encode(), name
    mounted = pod_of(by_kind({"manifests": manifests}))["volumes"][0]["configMap"]["items"]
    assert mounted == [{"key": f["key"], "path": f"repository/{f['path']}"} for f in files]


def test_hostile_names_survive() -> None:
    text = 'a: "b" {{ x }} #\n\x85<no value>'
    objects = by_kind(
        call(changed({"model.name": text, "model.target": text, "model.digest": text}))
    )
    assert objects["Deployment"]["metadata"]["annotations"] == {
        "engineroom/model": text,
        "engineroom/target": text,
    }
    annotations = objects["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["engineroom/repository-digest"] == text


def test_init_container_assembles_a_plain_tree(llmapi: dict[str, Any], tmp_path: Path) -> None:
    """Its own argv, on the links that the kubelet makes, gives the repository and nothing else."""
    pod = pod_of(llmapi)
    source, target = tmp_path / "repository-source", tmp_path / "repository"
    stamped = source / "..2026_01_01"
    target.mkdir()
    expected = {}
    for item in pod["volumes"][0]["configMap"]["items"]:
        file = stamped / item["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(llmapi["ConfigMap"]["data"][item["key"]])
        expected[item["path"].removeprefix("repository/")] = file.read_text()
    (source / "..data").symlink_to(stamped.name)
    (source / "repository").symlink_to("..data/repository")
    init = pod["initContainers"][0]
    argv = [f"{tmp_path}{part}" if part.startswith("/") else part for part in init["command"]]
    subprocess.run(argv, check=True)
    files = [path for path in target.rglob("*") if not path.is_dir()]
    assert not any(path.is_symlink() for path in target.rglob("*"))
    assert {path.relative_to(target).as_posix(): path.read_text() for path in files} == expected
    assert "args" not in init
    assert init["command"][0] == "cp"


def test_another_repository_rolls_the_pods() -> None:
    def annotations(changes: Values) -> dict[str, str]:
        template = by_kind(call(changed(changes), validate=False))["Deployment"]["spec"]["template"]
        found: dict[str, str] = template["metadata"]["annotations"]
        return found

    before = annotations({})
    assert before["engineroom/repository-digest"] == "sha256:0f4b2a7d"
    assert annotations({"model.digest": "sha256:other"}) != before
    edited = scenario("llmapi")["repository"]["files"]
    edited[0]["content"] += "#"
    assert annotations({"repository.files": edited}) != before
    assert annotations({"service.type": "NodePort"}) == before


# The Deployment


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
    assert f"--exit-timeout-secs={exit_timeout}" in server["command"]


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


def test_server_container(llmapi: dict[str, Any]) -> None:
    server = pod_of(llmapi)["containers"][0]
    assert server["command"] == [
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
    assert list(helm_child.problems(list(objects.values()), values)) == []
    break_it(objects)
    assert any(words in text for text in helm_child.problems(list(objects.values()), values))


def test_quantities() -> None:
    assert helm_child.quantity("2Gi") == 2 * 1024**3
    assert helm_child.quantity("2G") == 2 * 1000**3
    assert helm_child.quantity("500m") * 2 == helm_child.quantity(1)
    assert helm_child.quantity("1.5Ki") == 1536
    for wrong in ("2Gib", "Gi", "2i", "-1", "2ki"):
        with pytest.raises(InternalError):
            helm_child.quantity(wrong)
