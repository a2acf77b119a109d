"""The Helm chart, rendered by the real Helm SDK in the child process and checked offline.

Not tested here, because it takes a cluster: scheduling, the kubelet's probes, real rollouts.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from engineroom.errors import InternalError, UsageError
from tests.chart.common import (
    CHART,
    GOLDEN,
    KUBE_VERSIONS,
    SCENARIOS,
    Values,
    by_kind,
    call,
    changed,
    in_python,
    pod_of,
    scenario,
)

if importlib.util.find_spec("helm_python") is None:
    pytest.skip("needs engineroom[deploy]", allow_module_level=True)


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
        ({"model.lane": "other"}, "/model/lane"),
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
        ({"launch.processes": [["a"], ["b"]]}, ["launch.processes has 2", "launch.wrapper"]),
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
