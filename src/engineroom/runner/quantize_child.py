"""Post-training quantization with ModelOpt, run as a child process.

Only this module and `trtllm_export` import modelopt. Request on stdin, JSON events on stdout; see
`engineroom.runner.process`. Writes `hf/` (unified Hugging Face checkpoint) and, where asked,
`trtllm/` (TensorRT-LLM checkpoint, TP 1) into the staged directory it is given.
"""

from __future__ import annotations

import copy
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engineroom.errors import EngineroomError, MissingError, UsageError
from engineroom.runner import texts, trtllm_export
from engineroom.runner.model_source import LICENCE_PATTERNS
from engineroom.runner.perplexity import evaluate

_OUT = sys.stdout
TOKENIZER_PATTERNS = (
    "tokenizer*", "special_tokens_map.json", "vocab*", "merges.txt", "*.model", "chat_template*",
    "added_tokens.json", "generation_config.json", "preprocessor_config.json",
)  # fmt: skip


def emit(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), file=_OUT, flush=True)


def main() -> int:
    # Libraries print to stdout; events keep it, everything else goes to the log.
    global _OUT
    _OUT = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = json.load(sys.stdin)
    try:
        emit("result", **quantize(request))
    except MissingError as error:
        emit("error", **{"class": "missing", "message": error.message, "hint": error.hint})
    except EngineroomError as error:
        emit("error", **{"class": "usage", "message": error.message, "hint": error.hint})
    return 0


def quantize(request: dict[str, Any]) -> dict[str, Any]:
    """Calibrate, export, evaluate; returns the facts for the manifest."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        import modelopt
        import torch
        import transformers
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingError(
            f"quantization needs `{error.name}`, which is not installed",
            hint="pip install 'engineroom[quantize]'",
        ) from None

    torch.manual_seed(request["seed"])
    source, out = Path(request["source"]), Path(request["out"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.float16 if request["weights"] == "fp16" else torch.bfloat16
    trust = bool(request["trust_remote_code"])
    emit("phase", name="load", total=0)
    try:
        what = request["tokenizer"]
        tokenizer = AutoTokenizer.from_pretrained(what, trust_remote_code=trust)
        what = str(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, trust_remote_code=trust)
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"transformers cannot load {what}: {first}",
            hint="check that the folder is complete and that its architecture is known to transformers",
        ) from None
    model = model.to(device).eval()
    facts: dict[str, Any] = {
        "tools": {
            "modelopt": modelopt.__version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": ".".join(map(str, sys.version_info[:3])),
        },
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "dtype": str(dtype).removeprefix("torch."),
    }
    calibration = evaluation = None
    if request["dataset"] is not None:
        documents, _ = texts.read_documents(request["dataset"], Path(request["spec_dir"]))
        calibration, evaluation, overlap = texts.split(
            documents, request["seed"], request["eval_documents"]
        )
        facts["evaluation_overlaps_calibration"] = overlap
    config = _quant_config(request)
    if config is not None and calibration is not None:
        facts |= _calibrate(model, tokenizer, config, calibration, request, device)
    _export(model, out, request, dtype)
    del model
    _finish_folder(out / "hf", source, Path(request["tokenizer"]), trust)
    if request["trtllm"]:
        _copy(source, out / "trtllm", LICENCE_PATTERNS)
    facts["licences"] = sorted(p.name for p in _matching(out / "hf", LICENCE_PATTERNS))
    if config is not None and evaluation is not None and request["evaluate"]:
        facts["perplexity"] = evaluate(source, out / "hf", tokenizer, evaluation, request, emit)
    return facts


def _quant_config(request: dict[str, Any]) -> dict[str, Any] | None:
    """ModelOpt's config: the weight recipe's units, then the KV cache's; None when neither is."""
    weights, kv = request["modelopt_config"], request["modelopt_kv_config"]
    if weights is None and kv is None:
        return None
    import modelopt.torch.quantization as mtq

    if weights is None:
        config: dict[str, Any] = {
            "quant_cfg": [{"quantizer_name": "*", "enable": False}],
            "algorithm": "max",
        }
    else:
        config = copy.deepcopy(getattr(mtq, weights))
    if kv is not None:
        config["quant_cfg"] = [
            *config["quant_cfg"],
            *copy.deepcopy(getattr(mtq, kv))["quant_cfg"],
        ]
    group = request["group_size"]
    for entry in config["quant_cfg"]:
        blocks = entry.get("cfg", {}).get("block_sizes") if entry.get("cfg") else None
        if group and blocks and -1 in blocks and blocks.get("type") == "static":
            blocks[-1] = group
    return config


def _batch_size(request: dict[str, Any], config: Any, device: str) -> int:
    """The largest power of two up to 64 whose activations take 60 % of the free memory.

    A sequence costs its logits in float32 twice, and about 40 hidden states in 16 bit a layer pass;
    batch size alone is worth 1.7x to 4.7x of calibration time on an H200.
    """
    if request["batch_size"] != "auto":
        return int(request["batch_size"])
    if device == "cpu":
        return 4
    import torch

    free, _ = torch.cuda.mem_get_info()
    per_sequence = request["seq_len"] * (config.vocab_size * 8 + config.hidden_size * 80)
    return 1 << max(0, min(6, int(math.log2(max(1, int(free * 0.6) // per_sequence)))))


def _calibrate(
    model: Any,
    tokenizer: Any,
    config: dict[str, Any],
    documents: list[str],
    request: dict[str, Any],
    device: str,
) -> dict[str, Any]:
    import modelopt.torch.quantization as mtq
    import torch

    seq_len, wanted = request["seq_len"], request["samples"]
    stream: list[int] = []
    for document in documents:
        if len(stream) >= seq_len * wanted:
            break
        stream += tokenizer(document, add_special_tokens=True)["input_ids"]
    used = min(wanted, len(stream) // seq_len)
    if used == 0:
        raise UsageError(
            f"the calibration text has {len(stream)} tokens, less than one sequence of {seq_len}",
            hint="lower calibration.seq_len, or give more text",
        )
    ids = torch.tensor(stream[: used * seq_len]).view(used, seq_len)
    batch = _batch_size(request, model.config, device)
    pieces = [ids[i : i + batch] for i in range(0, used, batch)]
    passes = 0

    def forward(inner: Any) -> None:
        nonlocal passes
        passes += 1
        for i, piece in enumerate(pieces):
            inner(piece.to(device))
            emit("progress", phase="calibrate", done=i + 1, total=len(pieces), number=passes)

    started = time.monotonic()
    emit("phase", name="calibrate", total=len(pieces))
    with torch.no_grad():
        mtq.quantize(model, config, forward)
    return {
        "calibration_used": {
            "sequences": used,
            "tokens": used * seq_len,
            "batch_size": batch,
            "passes": passes,
            "seconds": round(time.monotonic() - started, 1),
        }
    }


def _export(model: Any, out: Path, request: dict[str, Any], dtype: Any) -> None:
    emit("phase", name="export", total=0)
    if request["trtllm"]:
        # Before the unified export, which packs the weights in place.
        config = json.loads((Path(request["source"]) / "config.json").read_text(encoding="utf-8"))
        trtllm_export.export(model, out / "trtllm", dtype, merge_config(config, {}))
    if _quant_config(request) is None:
        model.save_pretrained(out / "hf")
    else:
        from modelopt.torch.export import export_hf_checkpoint

        export_hf_checkpoint(model, export_dir=out / "hf")


def _matching(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    for pattern in patterns:
        yield from (path for path in sorted(folder.glob(pattern)) if path.is_file())


def _copy(source: Path, target: Path, patterns: tuple[str, ...]) -> None:
    for path in _matching(source, patterns):
        shutil.copy2(path, target / path.name)


def _finish_folder(hf: Path, source: Path, tokenizer: Path, trust: bool) -> None:
    """Licences and tokenizer as they came; config.json with the source's own keys."""
    _copy(source, hf, LICENCE_PATTERNS)
    _copy(tokenizer, hf, TOKENIZER_PATTERNS)
    if (source / "generation_config.json").is_file():
        shutil.copy2(source / "generation_config.json", hf / "generation_config.json")
    if trust:
        _copy(source, hf, ("*.py",))
    exported = json.loads((hf / "config.json").read_text(encoding="utf-8"))
    original = json.loads((source / "config.json").read_text(encoding="utf-8"))
    merged = merge_config(original, exported)
    text = json.dumps(merged, indent=2, ensure_ascii=False) + "\n"
    (hf / "config.json").write_text(text, encoding="utf-8")


def merge_config(original: dict[str, Any], exported: dict[str, Any]) -> dict[str, Any]:
    """The source's config.json plus `quantization_config`, readable by transformers 4 and 5.

    Export through transformers 5 moves `rope_theta` and `rope_scaling` into `rope_parameters`, which
    transformers 4.57 (the pin of TensorRT-LLM 1.2.1) does not read: it would fall back to a default
    theta and answer with wrong text. Both spellings are written.
    """
    merged = {
        k: v for k, v in original.items() if k not in ("quantization_config", "_name_or_path")
    }
    rope = merged.get("rope_parameters")
    if isinstance(rope, dict):
        if "rope_theta" in rope:
            merged.setdefault("rope_theta", rope["rope_theta"])
        if rope.get("rope_type", "default") != "default":
            scaling = {k: v for k, v in rope.items() if k != "rope_theta"}
            merged.setdefault("rope_scaling", scaling)
    dtype = exported.get("dtype") or exported.get("torch_dtype")
    if dtype:
        merged["dtype"] = merged["torch_dtype"] = dtype
    if "quantization_config" in exported:
        merged["quantization_config"] = exported["quantization_config"]
    return merged


if __name__ == "__main__":
    sys.exit(main())
