"""Which of the two 16-bit types the old service had."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from engineroom.catalog.load import in_range
from engineroom.errors import UsageError
from engineroom.migration.decisions import Draft
from engineroom.spec.load import read_text
from engineroom.types.migration import BuildCall, EngineFacts

_NAMES = {"float16": "fp16", "half": "fp16", "fp16": "fp16", "bfloat16": "bf16", "bf16": "bf16"}


def sixteen_bits(draft: Draft, facts: Sequence[EngineFacts], call: BuildCall | None) -> str:
    """fp16 or bf16: by the engine, the option, the default of the release, the model's own config.json.

    Without --dtype the converters took float16 in 0.15.0.dev2024102200 and the model's own type in
    0.17.0.dev2024121700; 0.16 is not known. The value `auto` is the model's own type.
    """
    flag = call.flag("--dtype") if call else None
    stated = next((e.dtype for e in facts if e.dtype), None)
    if stated is None and flag is not None and not flag.unresolved:
        stated = flag.value
    if stated in _NAMES:
        return _NAMES[stated]
    if facts and stated is not None:
        return "bf16"  # float32 and the like
    own, source = _own_dtype(str(draft.spec["model"]["source"])), draft.spec["model"]["source"]
    last, first = draft.setup.last, draft.setup.first
    if flag is None and call is not None:
        if last is not None and in_range(last, "<0.16.dev0"):
            draft.notes.append(
                "precision.weights: without --dtype the converters of releases up to 0.15 took float16, so fp16 stands "
                "for 16-bit weights" + (f"; the model's own config.json says {own}" if own else "")
            )
            return "fp16"
        if not (first is not None and in_range(first, ">=0.17.dev0")):
            draft.notes.append(
                "precision.weights: the script gives no --dtype. Up to 0.15 that was float16, from 0.17 on the model's "
                f"own type; no file says which release it was, so {_NAMES.get(own or '', 'bf16')} "
                f"({'of the model itself' if own else 'the usual type'}) stands for 16-bit weights: see that it is right"
            )
    elif own is None and (stated is not None or (flag is not None and flag.unresolved)):
        draft.notes.append(
            f"precision.weights: --dtype {flag.value if flag else stated} means what the config.json of `{source}` "
            "says, which is not on this machine; bf16 stands for 16-bit weights: see that it is right"
            if stated == "auto" else
            f"precision.weights: --dtype `{flag.value if flag else stated}` is not known; bf16 stands for 16-bit weights"
        )  # fmt: skip
    return _NAMES.get(own or "", "bf16")


def _own_dtype(source: str) -> str | None:
    """`dtype` of a local Hugging Face folder; None when the folder or the value is not there."""
    file = Path(source) / "config.json"
    try:
        data = json.loads(read_text(file, "config.json")) if file.is_file() else None
    except (UsageError, OSError, ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    text = data.get("text_config")
    for place in (data, text if isinstance(text, dict) else {}):
        found = place.get("dtype") or place.get("torch_dtype")
        if isinstance(found, str):
            return found
    return None
