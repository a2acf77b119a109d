"""`calibration` of the new spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engineroom.catalog import Catalog
from engineroom.migration.decisions import Draft, number
from engineroom.migration.draft_model import Chain
from engineroom.types.migration import Fate


def calibration(
    draft: Draft, calls: Chain, catalog: Catalog, locate: Callable[[str], str | None], default: str
) -> None:
    """`calibration`, when weights or KV cache need it.

    Args:
        locate: absolute path of a file of the old script, or None.
        default: dataset that is used where the old one cannot be.
    """
    call, precision_ = calls.convert, draft.spec["precision"]
    leaves = {
        name: draft.flags(call, flag)
        for name, flag in (
            ("dataset", "--calib_dataset"), ("samples", "--calib_size"),
            ("seq_len", "--calib_max_seq_length"), ("seed", "--seed"),
        )
    }  # fmt: skip
    if precision_["weights"] in ("bf16", "fp16") and precision_["kv_cache"] == "auto":
        every = [leaf for rows in leaves.values() for leaf in rows]
        draft.decide(
            every, Fate.REDEFAULTED, None, None, "nothing is quantized, so nothing is calibrated"
        )
        return
    recipe = catalog.weight_recipes[precision_["weights"]]
    made: dict[str, Any] = {
        "dataset": default,
        "samples": recipe.recommended_samples or 512,
        "seq_len": 512,
    }
    for leaf in leaves["dataset"]:
        path = locate(str(leaf.value))
        made["dataset"] = path or default
        draft.decide(
            [leaf], Fate.MOVED if path else Fate.REDEFAULTED, "calibration.dataset", made["dataset"],
            "text that the quantizer sees" if path else
            "hub datasets are read by their `text` column, and whether this one has it was not looked up; general text "
            "is used", "" if path else "name a JSONL file with prompts of your own, which is better than either",
        )  # fmt: skip
    for name, low in (("samples", 1), ("seq_len", 8), ("seed", 0)):
        size = next((n for x in leaves[name] if (n := number(str(x.value))) is not None), None)
        if size is not None and size >= low:
            made[name] = size
            draft.carry(
                leaves[name], f"calibration.{name}", size, "as the old quantizer was given it"
            )
    draft.spec["calibration"] = made
