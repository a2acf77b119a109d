"""Verdicts and figures on variants: what is wrong is said, and its sound neighbour is let through."""

from __future__ import annotations

from typing import Any

import pytest

from engineroom.names import Topic
from engineroom.reading.kube_names import rule_for, safe_name
from engineroom.reading.quantities import amount
from tests.lint_kube.common import answer, codes, verdict


def gpus(**counts: int) -> str:
    names = {name: name.replace("_", "-").replace("P", ".") for name in counts}
    lines = [f"    nvidia.com/{names[name]}: {count}" for name, count in counts.items()]
    return "resources:\n  limits:\n" + "\n".join(lines) + "\n"


def node(labels: dict[str, str], allocatable: dict[str, str] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"labels": {f"nvidia.com/{k}": v for k, v in labels.items()}}
    if allocatable is not None:
        found["allocatable"] = {f"nvidia.com/{k}": v for k, v in allocatable.items()}
    return found


SHARED = {"gpu.product": "NVIDIA-L4-SHARED", "gpu.replicas": "4", "gpu.memory": "23034"}
H100 = "NVIDIA-H100-80GB-HBM3"


@pytest.mark.parametrize(
    ("expected", "figures", "parts"),
    [
        # whole cards
        ("ok", {"gpu_resource": "nvidia.com/gpu", "node_selector_matches": True, "physical_gpus": 8},
         {"spec": {"tensor_parallel": 2}, "node": node({"gpu.product": H100, "gpu.count": "8", "gpu.replicas": "1"}, {"gpu": "8"}),
          "helm_values": gpus(gpu=2) + f"nodeSelector: {{nvidia.com/gpu.product: {H100}}}\n"}),
        ("error", {}, {"node": node({"gpu.product": H100}, {"gpu": "2"}), "helm_values": gpus(gpu=4)}),
        # MIG, strategy single: the slice is in the label, the resource keeps its name
        ("ok", {"gpu_resource": "nvidia.com/gpu", "gpu_memory_mib": 40448, "node_selector_matches": True},
         {"node": node({"mig.strategy": "single", "gpu.product": H100 + "-MIG-3g.40gb", "gpu.memory": "40448"}, {"gpu": "16"}),
          "helm_values": gpus(gpu=1) + f"nodeSelector: {{nvidia.com/gpu.product: {H100}-MIG-3g.40gb}}\n",
          "memory": {"engine_bytes": 16 << 30}}),
        ("error", {}, {"spec": {"tensor_parallel": 2}, "helm_values": gpus(gpu=2),
                       "node": node({"mig.strategy": "single", "gpu.product": H100 + "-MIG-3g.40gb"}, {"gpu": "16"})}),
        ("error", {"gpu_resource": "nvidia.com/gpu"},
         {"node": node({"mig.strategy": "single", "gpu.product": H100 + "-MIG-3g.40gb"}), "helm_values": gpus(mig_3gP40gb=1)}),
        # MIG, strategy mixed: whole cards keep their name, slices have their own
        ("ok", {"gpu_resource": "nvidia.com/gpu", "gpu_memory_mib": 81559},
         {"node": node({"mig.strategy": "mixed", "gpu.product": H100, "gpu.memory": "81559"}, {"gpu": "4", "mig-1g.10gb": "7"}),
          "helm_values": gpus(gpu=1), "memory": {"engine_bytes": 40 << 30}}),
        ("error", {"gpu_memory_mib": 9728},
         {"node": node({"mig.strategy": "mixed", "gpu.memory": "81559", "mig-1g.10gb.memory": "9728"}, {"mig-1g.10gb": "7"}),
          "helm_values": gpus(mig_1gP10gb=1), "memory": {"engine_bytes": 16 << 30}}),
        # time slicing and MPS
        ("error", {"physical_gpus": 1}, {"spec": {"tensor_parallel": 4}, "node": node(SHARED, {"gpu": "4"}), "helm_values": gpus(gpu=4)}),
        ("warn", {"physical_gpus": 2}, {"spec": {"tensor_parallel": 2}, "node": node(SHARED, {"gpu": "8"}), "helm_values": gpus(gpu=2)}),
        ("ok", {"physical_gpus": 1, "gpu_memory_mib": 23034},
         {"node": node(SHARED, {"gpu": "4"}), "helm_values": gpus(gpu=1), "memory": {"engine_bytes": 4 << 30}}),
        ("error", {"gpu_memory_mib": 23034 // 4},
         {"node": node({**SHARED, "gpu.sharing-strategy": "mps"}, {"gpu": "4"}), "helm_values": gpus(gpu=1),
          "memory": {"engine_bytes": 8 << 30}}),
        # affinity counts like a selector
        ("error", {"node_selector_matches": False},
         {"node": node({"gpu.memory": "40960"}),
          "helm_values": "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: ["
          "{matchExpressions: [{key: nvidia.com/gpu.memory, operator: Gt, values: ['79000']}]}]}}}\n"}),
    ],
)  # fmt: skip
def test_gpu_sharing(expected: str, figures: dict[str, Any], parts: dict[str, Any]) -> None:
    findings, got = answer(Topic.GPU_SHARING, **parts)
    assert verdict(findings) == expected, findings
    assert {name: got.get(name) for name in figures} == figures


@pytest.mark.parametrize(
    ("expected", "pods", "gpus_each", "spec", "pod"),
    [
        ("ok", 2, 8, (16, 1), (2, 8)),
        ("ok", 4, 4, (4, 4), (4, 4)),
        ("ok", 1, 4, (4, 1), (1, 4)),
        ("error", 2, 8, (8, 2), (1, 8)),
        ("error", 2, 8, (16, 1), (1, 16)),
        ("warn", 1, 8, (8, 1), (2, 8)),
        ("ok", 2, 6, (4, 3), None),
        ("ok", 3, 3, (3, 3), None),
    ],
)
def test_groups(
    expected: str, pods: int, gpus_each: int, spec: tuple[int, int], pod: tuple[int, int] | None
) -> None:
    parts: dict[str, Any] = {
        "spec": {"tensor_parallel": spec[0], "pipeline_parallel": spec[1]},
        "node": {"gpu_count": 8},
    }
    if pod is not None:
        parts["pod"] = {"lws_size_pods": pod[0], "gpu_count": pod[1]}
    findings, got = answer(Topic.MULTI_NODE, **parts)
    assert verdict(findings) == expected
    assert (got["lws_size_pods"], got["gpus_per_pod"]) == (pods, gpus_each)
    assert got["world_size"] == spec[0] * spec[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("env: [{name: HF_TOKEN, value: hf_EXAMPLEEXAMPLEEXAMPLE}]", True),
        ("env: {HUGGING_FACE_HUB_TOKEN: hf_EXAMPLEEXAMPLEEXAMPLE}", True),
        ("args: [--token, hf_EXAMPLEEXAMPLEEXAMPLE]", True),
        ("podAnnotations: {note: nvapi-EXAMPLEEXAMPLEEXAMPLE}", True),
        ("hfToken: not-a-known-prefix", True),
        ("env: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}]", False),
        ("env: [{name: HF_TOKEN, value: ''}]", False),
        ("env: [{name: HF_TOKEN, value: $(FROM_ELSEWHERE)}]", False),
        ("env: [{name: HF_TOKEN_PATH, value: /run/secrets/hf}]", False),
        ("env: [{name: MAX_TOKENS, value: '2048'}, {name: TOKENIZERS_PARALLELISM, value: 'false'}]", False),
        ("hfTokenSecret: {name: hf, key: HF_TOKEN}\nexistingSecret: hf\ntokenSecretName: hf", False),
        ("imagePullSecrets: [{name: ngc-secret}]\neosToken: '</s>'", False),
    ],
)  # fmt: skip
def test_secrets(text: str, expected: bool) -> None:
    findings, got = answer(Topic.K8S_SECRETS, helm_values=text + "\n")
    assert got["secret_in_plain_text"] is expected
    assert verdict(findings) == ("error" if expected else "ok")
    told = " ".join(f"{f.key} {f.reason} {f.fix}" for f in findings)
    assert "EXAMPLE" not in told
    assert "not-a-known-prefix" not in told


@pytest.mark.parametrize(
    ("text", "size", "expected"),
    [
        ("shm: {medium: Memory, sizeLimit: 2Gi}", 2 << 30, "ok"),
        ("shm: {medium: Memory, sizeLimit: 32Gi}\nresources: {limits: {memory: 16Gi}}", 16 << 30, "error"),
        ("shm: {medium: Memory}\nresources: {limits: {memory: 16Gi}}", 16 << 30, "warn"),
        ("shm: {medium: Memory, sizeLimit: 64Mi}", 64 << 20, "error"),
        ("shm: {sizeLimit: 2Gi}", 2 << 30, "warn"),
        ("replicaCount: 1", 64 << 20, "error"),
    ],
)  # fmt: skip
def test_shared_memory_of_two_ranks(text: str, size: int, expected: str) -> None:
    findings, got = answer(Topic.K8S_SHM, helm_values=text + "\n", spec={"tensor_parallel": 2})
    assert got["shm_bytes"] == size
    assert verdict(findings) == expected


@pytest.mark.parametrize(
    ("model", "size", "expected"),
    [
        ("vllmConfig: {tensorParallelSize: 2}", 20 << 30, "ok"),
        ("vllmConfig: {tensorParallelSize: 2}, shmSize: 4Gi", 4 << 30, "ok"),
        ("vllmConfig: {extraArgs: [--tensor-parallel-size=2]}", 64 << 20, "error"),
        ("requestGPU: 2", 64 << 20, "error"),
        ("requestGPU: 1", 64 << 20, "ok"),
        ("requestGPU: 1, shmSize: 4Gi", 64 << 20, "error"),
        ("requestGPU: 2, extraVolumes: [{name: s, emptyDir: {medium: Memory, sizeLimit: 8Gi}}], "
         "extraVolumeMounts: [{name: s, mountPath: /dev/shm}]", 8 << 30, "ok"),
    ],
)  # fmt: skip
def test_vllm_stack_mounts_shared_memory_only_with_its_own_key(
    model: str, size: int, expected: str
) -> None:
    text = "servingEngineSpec: {modelSpec: [{name: m, " + model + "}]}\n"
    findings, got = answer(Topic.K8S_SHM, chart="vllm-stack", helm_values=text)
    assert got["shm_bytes"] == size
    assert verdict(findings) == expected


@pytest.mark.parametrize(
    ("text", "kind", "replicas", "expected"),
    [
        ("replicaCount: 1\npvc: {accessModes: [ReadWriteOnce]}", "Deployment", 1, "ok"),
        ("replicaCount: 2\npvc: {accessModes: [ReadWriteOnce]}", "StatefulSet", 2, "ok"),
        ("replicaCount: 2\npvc: {accessModes: [ReadOnlyMany]}", "Deployment", 2, "ok"),
        ("replicaCount: 2\npvc: {accessModes: [ReadWriteOnce, ReadWriteMany]}", "Deployment", 2, "ok"),
        ("replicaCount: 2\npvc: {accessModes: [ReadWriteOncePod]}", "Deployment", 2, "error"),
        ("replicaCount: 2\npvc: {accessModes: [ReadWriteOnce]}\nnodeSelector: {kubernetes.io/hostname: a}", "Deployment", 2, "ok"),
        ("replicaCount: 1\nautoscaling: {enabled: true, maxReplicas: 3}\npvc: {accessModes: [ReadWriteOnce]}", "Deployment", 3, "error"),
        ("replicaCount: 1\nautoscaling: {enabled: false, maxReplicas: 3}\npvc: {accessModes: [ReadWriteOnce]}", "Deployment", 1, "ok"),
        ("strategy: {type: RollingUpdate}\npvc: {accessModes: [ReadWriteOnce]}", "Deployment", 1, "warn"),
        ("strategy: {type: RollingUpdate}\npvc: {accessModes: [ReadWriteOncePod]}", "Deployment", 1, "error"),
        ("strategy: {type: Recreate}\npvc: {accessModes: [ReadWriteOnce]}", "Deployment", 1, "ok"),
        ("strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}\npvc: {accessModes: [ReadWriteOnce]}", "Deployment", 1, "ok"),
        ("strategy: {rollingUpdate: {maxSurge: 0%, maxUnavailable: 1}}\npvc: {accessModes: [ReadWriteOnce]}", "Deployment", 1, "ok"),
    ],
)  # fmt: skip
def test_storage(text: str, kind: str, replicas: int, expected: str) -> None:
    findings, got = answer(Topic.K8S_STORAGE, helm_values=text + "\n", workload_kind=kind)
    assert got["max_replicas"] == replicas
    assert verdict(findings) == expected


@pytest.mark.parametrize(
    ("seconds", "text", "killed", "threshold", "expected"),
    [
        (605, "startupProbe: {initialDelaySeconds: 15, failureThreshold: 60}", None, 60, "ok"),
        (606, "startupProbe: {initialDelaySeconds: 15, failureThreshold: 60}", 605, 61, "error"),
        (21, "startupProbe: {periodSeconds: 0, failureThreshold: 0}", 20, 4, "error"),
        (39, "livenessProbe: {initialDelaySeconds: 10, periodSeconds: 2, failureThreshold: 15}", 38, 16, "error"),
        (38, "livenessProbe: {initialDelaySeconds: 10, periodSeconds: 2, failureThreshold: 15}", None, 15, "ok"),
        (9999, "readinessProbe: {periodSeconds: 5}", None, None, "ok"),
    ],
)  # fmt: skip
def test_probes(
    seconds: int, text: str, killed: int | None, threshold: int | None, expected: str
) -> None:
    findings, got = answer(Topic.K8S_PROBES, helm_values=text + "\n", load_seconds=seconds)
    assert verdict(findings) == expected
    assert got.get("killed_at_seconds") == killed
    assert got.get("min_failure_threshold") == threshold


@pytest.mark.parametrize(
    ("expected", "parts"),
    [
        ("ok", {"node": {"driver_version": "570.26"}, "stack": {"cuda_version": "12.8"}}),
        ("ok", {"node": {"driver_version": "525.60.13"}, "stack": {"cuda_version": "12.8"}}),
        ("error", {"node": {"driver_version": "525.60.11"}, "stack": {"cuda_version": "12.8"}}),
        ("ok", {"node": {"driver_version": "510.85.02"},
                "stack": {"cuda_version": "12.2", "toolkit_driver_version": "535.86", "forward_compat_available": True}}),
        ("warn", {"node": {"labels": {"nvidia.com/cuda.driver.major": "510", "nvidia.com/cuda.driver.minor": "85",
                                      "nvidia.com/cuda.driver.rev": "02", "nvidia.com/gpu.product": "NVIDIA-L4"}},
                  "stack": {"cuda_version": "12.2"}}),
        ("ok", {"node": {"labels": {"nvidia.com/cuda.runtime-version.major": "12", "nvidia.com/cuda.runtime-version.minor": "8"}},
                "env": {"NVIDIA_REQUIRE_CUDA": "cuda>=12.8"}}),
        ("error", {"node": {"driver_version": "535.104.05", "cuda_version": "12.2"},
                   "env": {"NVIDIA_REQUIRE_CUDA": "cuda>=12.8 brand=tesla,driver>=470,driver<471"}}),
        ("error", {"node": {"cuda_version": "12.9"}, "env": {"NVIDIA_REQUIRE_CUDA": "cuda>=12.10", "NVIDIA_DISABLE_REQUIRES": "1"}}),
        ("warn", {"node": {"cuda_version": "12.9"}, "env": {"NVIDIA_REQUIRE_CUDA": "cuda>=12.10", "NVIDIA_DISABLE_REQUIRE": "1"}}),
        ("error", {"node": {"cuda_version": "12.4"}, "env": {"CUDA_VERSION": "12.6.3"}}),
        ("ok", {"node": {"cuda_version": "12.4"}, "env": {"CUDA_VERSION": "12.6.3", "NVIDIA_REQUIRE_CUDA": "cuda>=9.0"}}),
    ],
)  # fmt: skip
def test_drivers(expected: str, parts: dict[str, Any]) -> None:
    findings, _ = answer(Topic.VERSIONS, **parts)
    assert verdict(findings) == expected, findings


@pytest.mark.parametrize(
    ("expected", "ids", "kinds", "version"),
    [
        ("error", ["7b-chat"], ["Service"], "1.35"),
        ("ok", ["7b-chat"], ["Service"], "v1.36.0-gke.1"),
        ("ok", ["qwen2.5"], ["Deployment"], None),
        ("error", ["qwen2.5"], ["Service"], "1.37"),
        ("error", ["qwen2.5"], ["Deployment", "container"], None),
        ("ok", ["Qwen2.5"], ["label"], None),
        ("ok", ["a" * 63], ["Service"], None),
        ("error", ["a" * 64], ["Service"], None),
        ("error", ["a" * 53], ["StatefulSet"], None),
        ("ok", ["Org/Model"], ["annotation"], None),
    ],
)
def test_names(expected: str, ids: list[str], kinds: list[str], version: str | None) -> None:
    findings, _ = answer(
        Topic.K8S_NAMES, model_ids=ids, k8s_objects=kinds, kubernetes_version=version
    )
    assert verdict(findings) == expected


def test_safe_names_are_accepted_everywhere_and_never_meet() -> None:
    ids = [
        "Org/Model.A",
        "org/model-a",
        "org-model-a",
        "org_model_a",
        "7b",
        "-",
        "é" * 300,
        "x" * 64,
        "x" * 65,
    ]
    names = [safe_name(item) for item in ids]
    assert len(set(names)) == len(ids)
    for kind in ("Service", "Deployment", "container", "label", "ConfigMap"):
        rule = rule_for(kind)
        assert rule is not None
        assert all(rule.accepts(name) for name in names)
    assert safe_name("llama-3") == "llama-3"
    assert len(safe_name("x" * 65, 52)) <= 52
    _, figures = answer(Topic.K8S_NAMES, model_ids=ids[:2], k8s_objects=["Service"])
    assert figures["distinct_names"] == 2


@pytest.mark.parametrize(
    ("text", "number"),
    [("64Mi", 64 << 20), ("1.5Gi", 3 << 29), ("2G", 2 * 10**9), ("1e3", 1000), ("500m", 1), (8.0, 8), ("8", 8),
     ("4GB", None), ("", None), ("-", None), ("1e999", None), (True, None), (None, None), ("0x10", None)],
)  # fmt: skip
def test_quantities(text: Any, number: int | None) -> None:
    assert amount(text) == number


def test_a_digest_of_a_file_is_not_its_content() -> None:
    big = [{"path": "files/a.json", "size_bytes": 2_000_000}]
    template = {
        "path": "templates/d.yaml",
        "text": 'x: {{ .Files.Get "files/a.json" | sha256sum }}\n',
    }
    findings, _ = answer(Topic.HELM_SIZE, chart_files=big, helm_template=template)
    assert codes(findings) == set()


def test_two_files_of_one_configmap_count_together_and_of_two_do_not() -> None:
    files = [{"path": f"files/{n}.json", "size_bytes": 600_000} for n in "ab"]
    one = 'kind: ConfigMap\ndata:\n{{ (.Files.Glob "files/*.json").AsConfig | indent 2 }}\n'
    two = "\n---\n".join(
        f'kind: ConfigMap\ndata:\n  x: {{{{ .Files.Get "files/{n}.json" }}}}' for n in "ab"
    )
    parts = {"chart_files": files}
    joined, figures = answer(
        Topic.HELM_SIZE, **parts, helm_template={"path": "t.yaml", "text": one}
    )
    assert codes(joined) == {"configmap-over-limit"}
    assert figures == {"limit_bytes": 1048576, "culprit": "files/a.json"}
    apart, _ = answer(Topic.HELM_SIZE, **parts, helm_template={"path": "t.yaml", "text": two})
    assert codes(apart) == set()
