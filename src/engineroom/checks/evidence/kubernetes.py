"""The rules about Kubernetes, Helm and hosts, one module a topic."""

from __future__ import annotations

from engineroom.checks.evidence import (
    helm_size,
    helm_text,
    kube_gpu,
    kube_multi_node,
    kube_names,
    kube_node,
    kube_probes,
    kube_secrets,
    kube_shm,
    kube_storage,
    kube_values,
    node_driver,
)

MODULES = (
    kube_values, kube_gpu, kube_node, kube_multi_node, kube_names, kube_probes, kube_secrets, kube_shm,
    kube_storage, helm_size, helm_text, node_driver,
)  # fmt: skip
RULES = tuple(rule for module in MODULES for rule in module.RULES)
