"""`ab-plan.md`: old and new side by side, how they are compared, and the way back.

`migrate` writes `ab_plan` as ab-plan.md and the files of `ab_files` beside it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from engineroom.catalog import Catalog
from engineroom.pipeline.migrate_ab_data import (
    AIPERF,
    NEW_PAYLOAD,
    OLD_PAYLOAD,
    PROMPT_FILE,
    AbPlan,
    ab_data,
    ab_files,
)
from engineroom.pipeline.migrate_prompts import PROMPTS
from engineroom.pipeline.migrate_requests import NEW_MODEL, echoes
from engineroom.types.migration import OldSetup

__all__ = ["ab_files", "ab_plan"]
_VARIABLE = re.compile(r"\$[A-Z_]+")


def ab_plan(setup: OldSetup, spec: Mapping[str, Any], catalog: Catalog) -> str:
    """`ab-plan.md`."""
    plan = ab_data(setup, spec, catalog)
    parts = [_title(setup, spec, plan), _side_by_side(plan)]
    if plan.front is None:
        parts.append(
            "## Parity, speed, traffic\n\nThe old setup has no model that takes text, so there is no request "
            "that both sides understand. Compare through the service that calls the old models."
        )
    else:
        parts += [_parity(setup, plan), _speed(plan), _traffic(setup, plan)]
    parts += [_accept(plan), _rollback(setup, plan)]
    return "\n\n".join(parts) + "\n"


def _block(*commands: tuple[str, ...]) -> str:
    return "```sh\n" + "\n".join(_shell(words) for words in commands) + "\n```"


def _shell(words: tuple[str, ...]) -> str:
    """One command; `$NAME` stays a variable, everything else is quoted where it must be."""
    out = [f'"{w}"' if _VARIABLE.fullmatch(w) else shlex.quote(w) for w in words]
    lines, line = [], ""
    for at, word in enumerate(out):
        # An option stays on one line with its value.
        value = out[at + 1] if at + 1 < len(out) and not out[at + 1].startswith("-") else ""
        if line and word.startswith("-") and len(line) + len(word) + len(value) > 88:
            lines.append(line + " \\")
            line = " "
        line += f" {word}" if line else word
    return "\n".join([*lines, line])


def _title(setup: OldSetup, spec: Mapping[str, Any], plan: AbPlan) -> str:
    front = f"`{plan.front.name}`" if plan.front else "no model that takes text"
    return (
        "# A/B plan\n\n"
        f"Old: {front}, TensorRT-LLM {setup.version or setup.generation}. "
        f"New: `{NEW_MODEL}` of `{spec.get('name', 'the spec')}`, target `{plan.target}`.\n\n"
        "Words in capitals after a `$` are yours: `OLD` and `NEW` (http://HOST:8000 of each side), "
        "`NAMESPACE`, `CHART` (the folder `helm/engineroom`), `TOKENIZER` (folder or hub id), and the load: "
        "`INPUT_TOKENS`, `OUTPUT_TOKENS`, `CONCURRENCY`, `REQUESTS`."
    )


def _side_by_side(plan: AbPlan) -> str:
    c = plan.commands
    return (
        "## 1. Side by side\n\n"
        "Leave the old side as it is. Make the new one beside it, on GPUs of its own: two engines on one GPU "
        "take memory from each other and measure nothing.\n\n"
        f"{_block(c['check'], c['plan'], c['quantize'], c['build'], c['deploy'])}\n\n"
        "`deploy` only writes values and manifests; `helm` installs them, as a release of its own name:\n\n"
        f"{_block(c['install'])}\n\n"
        "On one host without Kubernetes, start the new server on other ports (`--http-port=9000 "
        "--grpc-port=9001 --metrics-port=9002`) with the command of the repository's `launch.json`, which "
        "`engineroom render` writes."
        + (f"\n\nA first question:\n\n{_block(c['ask'])}" if "ask" in c else "")
    )


def _parity(setup: OldSetup, plan: AbPlan) -> str:
    if plan.same_weights is None:
        format_note = (
            "The old precision is not known (no engine or checkpoint config was given), so nothing can be said "
            "about which differences to expect."
        )
    elif plan.same_weights and plan.same_kv:
        format_note = (
            "Weights and KV cache have the same format on both sides. Kernels and calibration differ, so single "
            "answers may still part where two tokens are nearly equally likely, and then go on differently: "
            "expect most answers equal, not all."
        )
    else:
        what = " and ".join(
            name
            for name, same in (("weights", plan.same_weights), ("KV cache", plan.same_kv))
            if not same
        )
        format_note = (
            f"The format of the {what} changes, so answers are expected to differ. Equal answers are a bonus; "
            "judge the ones that differ by your own evaluation set."
        )
    echo = (
        "\n\nOld answers begin with the prompt (`exclude_input_in_output` is not true there); `--old-echo` takes "
        "it off before comparing."
        if echoes(setup)
        else ""
    )
    return (
        f"## 2. Parity\n\n{len(PROMPTS)} prompts (`{PROMPT_FILE}`), greedy: neither `top_k`, `top_p` nor a "
        "temperature is sent. Neither side's text models answer with token ids, so the texts are compared; "
        'the same tokens give the same text. Add prompts of your own traffic, one `{"text": …}` a line.\n\n'
        f"{_block(plan.commands['parity'])}\n\n"
        f"{format_note}{echo}\n\n"
        "Differences that are none of the numbers' fault, and are listed in clients.md: special tokens, end "
        "ids, stop words, blanks at the beginning (`--strip`)."
    )


def _speed(plan: AbPlan) -> str:
    streams = (
        "first token and time between tokens come from the stream"
        if plan.streams
        else ("without streams only whole answers are timed")
    )
    cumulative = (
        " The old stream repeats the text so far in each event (`accumulate_tokens`): AIPerf would count those "
        "tokens again and again, so set it to false on the side that is measured."
        if plan.cumulative
        else ""
    )
    return (
        "## 3. Speed\n\n"
        "One load for both sides, one side at a time, warm (run each twice, keep the second). Take input and "
        f"output lengths and concurrency from your traffic; {streams}.{cumulative}\n\n"
        f"{_block(plan.commands['speed-old'], plan.commands['speed-new'])}\n\n"
        f"`{OLD_PAYLOAD}` and `{NEW_PAYLOAD}` are the request bodies. Answers end early where the model ends "
        "them: compare token throughput, not request times alone. "
        f"(AIPerf's options: {AIPERF}; not run here.)"
    )


def _traffic(setup: OldSetup, plan: AbPlan) -> str:
    front = plan.front.name if plan.front else ""
    return (
        "## 4. Traffic\n\n"
        f"The two sides do not take the same request: other path (`/v2/models/{front}/…` and "
        f"`/v2/models/{NEW_MODEL}/…`) and other field names (clients.md). A proxy that sends a share of requests, "
        "or a copy of each (Envoy's and NGINX's mirroring), to the new side as they are gets errors, or "
        "answers of the default length, because Triton ignores unknown fields. So:\n\n"
        "* **Shadow** first: where the request is made (the client, or the gateway that makes Triton requests), "
        "send the translated request to the new side too, without waiting for it, and compare offline. Leave "
        "out requests with side effects and those that sample.\n"
        "* **Split** then: choose the side by a hash of the user or session, never by request, so that one "
        "conversation stays on one side. Begin at 1 %, then 5, 25, 50, 100, a day or a full traffic cycle each.\n"
        "* Write the side into the request id and into your logs.\n\n"
        "Watch on both metrics ports (8002): `nv_inference_request_success`, `nv_inference_request_failure`, "
        "`nv_inference_queue_duration_us`; the new side has more (docs/serving-metrics.md)."
    )


def _accept(plan: AbPlan) -> str:
    rows = [f"| {what} | {how} | {hint} FILL IN | FILL IN |" for what, how, hint in plan.thresholds]
    return (
        "## 5. Accept or go back\n\nWrite the limits down before the first comparison. A step up needs all of "
        "them; one that is missed twice in a row means going back.\n\n"
        "| what | how | at least or at most | measured |\n| --- | --- | --- | --- |\n"
        + "\n".join(rows)
    )


def _rollback(setup: OldSetup, plan: AbPlan) -> str:
    return (
        "## 6. Rollback\n\n"
        "1. Set the split to 0 %: clients send old requests to the old side again. Nothing else is needed at "
        "first, so practise this before the first percent.\n"
        "2. Let running streams of the new side end (the chart drains), then remove it:\n\n"
        f"{_block(plan.commands['rollback'])}\n\n"
        "3. Keep until the new side has carried everything for as long as you keep any release: the old "
        "repository, its engine files, the checkpoint they were built from, the build script and the "
        "container image. An engine runs only on the TensorRT-LLM version and GPU that built it, and images "
        "with `trtllm-build` end with the 1.2 line (Triton 26.07 has 1.2.1), so an engine that is deleted may "
        "not be built again."
    )
