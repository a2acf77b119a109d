"""What an A/B plan is made of: commands as words, expectations, thresholds, and the files it uses.

Commands are of this package, of Helm, and of AIPerf; nothing here was run on TensorRT-LLM.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engineroom.catalog import Catalog
from engineroom.names import LaneName
from engineroom.pipeline.migrate_prompts import prompts_jsonl
from engineroom.pipeline.migrate_requests import NEW_MODEL, cumulative, echoes, model_path
from engineroom.runner import parity
from engineroom.spec import Target
from engineroom.types.migration import EngineFacts, OldModel, OldSetup

AIPERF = "ai-dynamo/aiperf docs/cli_options.md @ 023e12c4, docs/tutorials/template-endpoint.md @ 13992dbd"
PROMPT_FILE, PARITY_FILE = "prompts.jsonl", "parity.py"
OLD_PAYLOAD, NEW_PAYLOAD = "aiperf-old.json", "aiperf-new.json"
# Weights of a TensorRT-LLM engine by the spec's name; any other has no counterpart of the same numbers.
_ALGORITHMS = {
    "FP8": "fp8", "W4A16_AWQ": "w4a16_awq", "NVFP4": "nvfp4", "W8A8_SQ_PER_CHANNEL": "w8a8_sq",
}  # fmt: skip
_KV = {"FP8": "fp8", "INT8": "int8", "NVFP4": "nvfp4"}


@dataclass(frozen=True)
class AbPlan:
    """What the plan is made of.

    Attributes:
        front: old model that the comparison asks.
        same_weights, same_kv: whether both sides hold the numbers in one format; None: not known.
        commands: words of each command by its title; `$NAME` words are the reader's own.
        thresholds: (what is measured, how, what to expect); the limits are the reader's to fill in.
        cumulative: each event of the old stream has all of the text so far.
    """

    front: OldModel | None
    streams: bool
    same_weights: bool | None
    same_kv: bool | None
    release: str
    target: str
    commands: Mapping[str, tuple[str, ...]]
    thresholds: tuple[tuple[str, str, str], ...]
    cumulative: bool = False


def ab_data(setup: OldSetup, spec: Mapping[str, Any], catalog: Catalog) -> AbPlan:
    """The plan of an old setup and the migrated spec (plain data)."""
    target = (spec.get("targets") or [{}])[0]
    front = next(iter(setup.fronts), None)
    streams = bool((spec.get("serving") or {}).get("streaming", True))
    streams = streams and any(m.decoupled for m in setup.models)
    weights, kv = _formats(setup.engine or setup.checkpoint, spec)
    identity = _target_id(target)
    # As pipeline.deploy.release_name cuts it: Helm takes 53 characters.
    tail = f"-{LaneName.LLMAPI}-{target.get('sku', 'SKU')}"
    release = str(spec.get("name", "service"))[: 53 - len(tail)].rstrip("-") + tail
    return AbPlan(
        front, streams, weights, kv, release, identity,
        _commands(front, streams, release, identity, spec, setup),
        _thresholds(weights, kv), streams and cumulative(setup),
    )  # fmt: skip


def _target_id(target: Mapping[str, Any]) -> str:
    try:
        return Target.model_validate(dict(target)).id
    except ValueError:  # a target with a gap that the user has to fill
        return "TARGET"


def _formats(
    engine: EngineFacts | None, spec: Mapping[str, Any]
) -> tuple[bool | None, bool | None]:
    if engine is None:
        return None, None
    new = spec.get("precision") or {}
    sixteen = {"float16": "fp16", "bfloat16": "bf16"}.get(str(engine.dtype), str(engine.dtype))
    old = _ALGORITHMS.get(engine.quant_algo, engine.quant_algo) if engine.quant_algo else sixteen
    old_kv = _KV.get(engine.kv_cache_quant_algo, "?") if engine.kv_cache_quant_algo else "auto"
    new_kv = str(new.get("kv_cache", "auto"))
    return old == str(new.get("weights")), old_kv == ("auto" if new_kv == sixteen else new_kv)


def _commands(
    front: OldModel | None,
    streams: bool,
    release: str,
    target: str,
    spec: Mapping[str, Any],
    setup: OldSetup,
) -> dict[str, tuple[str, ...]]:
    file = ("-f", "engineroom.yaml")
    name = str(spec.get("name", "service"))
    values = f"engineroom-out/{name}/releases/{target}/values.yaml"
    found = {
        "check": ("engineroom", "check", *file),
        "plan": ("engineroom", "plan", *file),
        "quantize": ("engineroom", "quantize", *file),
        "build": ("engineroom", "build", *file),
        "deploy": ("engineroom", "deploy", *file, "--dry-run"),
        "install": ("helm", "upgrade", "--install", release, "$CHART", "--namespace", "$NAMESPACE",
                    "--values", values),
        "rollback": ("helm", "uninstall", release, "--namespace", "$NAMESPACE"),
    }  # fmt: skip
    if front is None:
        return found
    echo = ("--old-echo",) if echoes(setup) else ()
    found["ask"] = (
        "engineroom", "generate", "The import statement", "--url", "$NEW", "--model", NEW_MODEL,
        "--max-tokens", "16",
    )  # fmt: skip
    found["parity"] = (
        "python3", PARITY_FILE, "--prompts", PROMPT_FILE, "--old", "$OLD", "--old-model", front.name,
        *echo, "--new", "$NEW", "--new-model", NEW_MODEL, "--max-tokens", "64",
        "--report", "parity-report.json",
    )  # fmt: skip
    for side, model, url, payload in (
        ("old", front.name, "$OLD", OLD_PAYLOAD),
        ("new", NEW_MODEL, "$NEW", NEW_PAYLOAD),
    ):
        found[f"speed-{side}"] = (
            "aiperf", "profile", "--model", model, "--url", url,
            "--endpoint", f"{model_path(model)}/{'generate_stream' if streams else 'generate'}",
            "--endpoint-type", "template", "--extra-inputs", f"payload_template:./{payload}",
            "--extra-inputs", "response_field:text_output", *(("--streaming",) if streams else ()),
            "--tokenizer", "$TOKENIZER", "--random-seed", "1",
            "--synthetic-input-tokens-mean", "$INPUT_TOKENS", "--output-tokens-mean", "$OUTPUT_TOKENS",
            "--concurrency", "$CONCURRENCY", "--request-count", "$REQUESTS",
            "--output-artifact-dir", f"aiperf-{side}",
        )  # fmt: skip
    return found


def _thresholds(weights: bool | None, kv: bool | None) -> tuple[tuple[str, str, str], ...]:
    hint = "most;" if weights and kv else "the format changes;" if weights is not None else ""
    return (
        ("share of equal answers", PARITY_FILE, hint),
        ("quality of the answers that differ", "your own evaluation set", ""),
        ("time to first token, p95", "AIPerf, both sides, one load", ""),
        ("time between tokens, p95", "AIPerf", ""),
        ("tokens a second and GPU", "AIPerf, at the highest load that holds the two above", ""),
        ("errors, of all requests", "`nv_inference_request_failure` of both sides", ""),
        ("GPU memory left", "`nvidia-smi` under load", ""),
    )


def ab_files(setup: OldSetup, spec: Mapping[str, Any], catalog: Catalog) -> dict[str, str]:
    """Files that the plan uses, by name: prompts, the comparison, and AIPerf's payloads."""
    plan = ab_data(setup, spec, catalog)
    files = {
        PROMPT_FILE: prompts_jsonl(),
        PARITY_FILE: Path(parity.__file__).read_text(encoding="utf-8"),
    }
    if plan.front is not None:
        stream = {"stream": True} if plan.streams else {}
        streaming = {"streaming": True} if plan.streams else {}
        files[OLD_PAYLOAD] = _payload("text_input", "max_tokens", stream)
        files[NEW_PAYLOAD] = _payload("text_input", "sampling_param_max_tokens", streaming)
    return files


def _payload(prompt: str, limit: str, more: Mapping[str, Any]) -> str:
    """A payload of AIPerf's template endpoint; its variables are `text` and `max_tokens`."""
    fixed = "".join(f', "{name}": {json.dumps(value)}' for name, value in more.items())
    return f'{{"{prompt}": {{{{ text|tojson }}}}, "{limit}": {{{{ max_tokens|tojson }}}}{fixed}}}\n'
