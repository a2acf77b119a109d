"""Disaggregated serving is recognised and not judged: engineroom has no rules for it yet."""

from __future__ import annotations

from collections.abc import Iterator

from engineroom.checks.codes import declare
from engineroom.checks.evidence import triton_repository as repo
from engineroom.checks.evidence.context import Answer, Context, about
from engineroom.names import Severity, Topic

NOT_IMPLEMENTED = declare(
    "disaggregated-not-implemented", Topic.DISAGGREGATED, Severity.ERROR,
    says="context and generation run on the same servers",
    why="for disaggregated serving nothing is checked here: neither the transport nor the two layouts",
    source="NVIDIA/TensorRT-LLM docs/source/features/disagg-serving.md; triton-inference-server/tensorrtllm_backend "
    "all_models/disaggregated_serving/README.md @ v0.16.0",
)  # fmt: skip

_YAML_KEYS = (
    "cache_transceiver_config", "context_servers", "generation_servers", "disagg_cluster",
    "disaggregated_params", "kv_connector_config",
)  # fmt: skip
_PARAMETERS = ("context_model_name", "generation_model_name")
_ENVIRONMENT = (
    "TRTLLM_USE_MPI_KVCACHE", "TRTLLM_USE_UCX_KVCACHE", "TRTLLM_USE_NIXL_KVCACHE",
    "TRTLLM_DISAGG_", "TRTLLM_USE_DISAGG",
)  # fmt: skip


def _found(c: Context) -> Iterator[tuple[str, str]]:
    """(key, what was seen)."""
    for model in repo.models(c):
        if model.role == repo.DISAGGREGATED:
            yield model.key("name"), f"the model {model.name}"
        for key in model.config.parameters:
            if key in _PARAMETERS or key.startswith("disaggregated_"):
                yield model.parameter_key(key), f"the parameter {key[:60]}"
    for folder in c.evidence.model_repository or ():
        if folder.startswith("disaggregated_serving"):
            yield "model_repository", f"the model folder {folder[:60]}"
    for key in c.evidence.model_yaml or {}:
        if key in _YAML_KEYS and (c.evidence.model_yaml or {})[key] is not None:
            yield f"model_yaml.{key}", f"the setting {key}"
    for name in c.evidence.env or {}:
        if name.startswith(_ENVIRONMENT):
            yield f"env.{name[:60]}", f"the variable {name[:60]}"
    argv = (c.evidence.launch.argv if c.evidence.launch else None) or ()
    if any(w.startswith("disaggregated") for w in argv) and any(
        w.rsplit("/", 1)[-1] == "trtllm-serve" for w in argv
    ):
        yield "launch.argv", "the command trtllm-serve disaggregated"


@about(Topic.DISAGGREGATED)
def recognised(c: Context) -> Iterator[Answer]:
    for key, seen in list(_found(c))[:20]:
        yield NOT_IMPLEMENTED.found(
            c, key, f"{seen} belongs to disaggregated serving, which is not implemented here: nothing was checked",
            "serve context and generation together, or check this part by other means",
        )  # fmt: skip


RULES = (recognised,)
