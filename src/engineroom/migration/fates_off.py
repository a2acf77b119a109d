"""What softens a fate: a feature that was off is not missed, and a call may have filled a placeholder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engineroom.migration.decisions import Draft
from engineroom.types.migration import BuildCall, OldModel

_WORDS = ("false", "0", "0.0", "none", "null", "disable", "disabled", "off", "[]", "{}")
_NEUTRAL = {"gpu_weights_percent": 1.0, "num_nodes": 1.0, "cp_size": 1.0}
"""Settings whose neutral value is another one; 0 is none of theirs.

Source: triton-inference-server/tensorrtllm_backend docs/model_config.md @ v0.19.0; a context-parallel
size is a number of ranks.
"""


def is_off(key: str, value: Any, kind: str) -> bool:
    """Whether the value means that the feature was not used.

    Args:
        key: of the leaf.
        value: as filled.
        kind: ``parameter``, ``field``, ``key`` (of an engine), ``option`` or ``variable``: an option without
            a value and a message without fields are switches that are on.
    """
    name = key.partition("#")[0].rpartition(".")[2].lstrip("-")
    text = str(value).strip().lower()
    if name in _NEUTRAL:
        try:
            return float(text) == _NEUTRAL[name]
        except ValueError:
            return False
    if kind == "key":
        return value is None or text == "" or text in _WORDS or value in ([], {})
    if kind in ("field", "option"):
        return text in ("false", "0", "0.0", "none", "disable")
    return kind == "parameter" and text in _WORDS


_LOOKAHEAD = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")


def unused_tensor(name: str, model: OldModel, draft: Draft) -> str | None:
    """Why an input was of no use in the old service; None where it may have been."""
    if name.lower() not in _LOOKAHEAD or model.kind not in ("engine", "bls", "ensemble"):
        return None
    setup = draft.setup
    build: Any = setup.engine.data.get("build_config") if setup.engine else None
    stated = build.get("speculative_decoding_mode") if isinstance(build, dict) else None
    modes = [stated, setup.parameter("decoding_mode", "engine")]
    modes += [
        f.value for c in setup.calls for f in c.flags if f.name == "--speculative_decoding_mode"
    ]
    unknown = any("$" in str(m) for m in modes)
    if unknown or any(m == 8 or "lookahead" in str(m).lower() for m in modes):
        return None
    if setup.engine is None and not any(c.tool == "trtllm-build" for c in setup.calls):
        return None
    return "the old engine was not built for lookahead decoding, so nothing came of it"


def unknown_fill(calls: Sequence[BuildCall]) -> str:
    """A call of fill_template.py whose config.pbtxt only running the script would tell, in words."""
    for call in calls:
        if call.tool != "fill_template.py":
            continue
        words = [v for f in call.flags for v in f.values]
        paths = [w for w in words if w.endswith(".pbtxt")]
        folder = paths[0].replace("\\", "/").rpartition("/")[0].rpartition("/")[2] if paths else "$"
        if "$" in folder or "`" in folder:
            return (
                f"unless the fill_template.py call of line {call.line} did it, whose folder only running the script "
                "would tell"
            )
    return ""
