"""`clients.md`: what clients of the old setup have to change, for exactly the fields it declares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engineroom.catalog import Catalog
from engineroom.pipeline.migrate_fields import FieldLine, core_lines, front_lines
from engineroom.pipeline.migrate_requests import (
    NEW_MODEL,
    Exchange,
    cumulative,
    curl,
    echoes,
    exchanges,
    flag,
    tritonclient,
)
from engineroom.types.migration import Fate, OldSetup


@dataclass(frozen=True)
class ClientMap:
    """Everything `clients.md` says, as data.

    Attributes:
        core: lines of the engine's own model, which clients with token ids call.
    """

    fields: tuple[FieldLine, ...]
    core: tuple[FieldLine, ...]
    exchanges: tuple[Exchange, ...]
    differences: tuple[str, ...]


def client_data(setup: OldSetup, spec: Mapping[str, Any], catalog: Catalog) -> ClientMap:
    """The map of an old setup.

    Args:
        spec: the migrated spec as plain data.
    """
    lines = front_lines(setup, catalog)
    return ClientMap(
        tuple(lines),
        tuple(core_lines(setup, catalog)),
        tuple(exchanges(setup, spec, lines)),
        tuple(differences(setup, spec)),
    )


def differences(setup: OldSetup, spec: Mapping[str, Any]) -> list[str]:
    """How answers differ, beside the names of tensors. A sentence each, with its source."""
    serving = spec.get("serving") or {}
    found = [
        f"**The name {NEW_MODEL}.** In the old repository a model of that name takes token ids; in the new "
        "one it takes text. A client that still sends `input_ids` is answered with an error. (config.pbtxt "
        "of both sides)",
        "**No batch dimension.** gRPC and `/infer` tensors lose their first dimension: `[1, 1]` becomes "
        "`[1]`. JSON bodies of `/generate` are written alike on both sides. One prompt a request; several "
        "rows become several requests. (model_repo_templates/llmapi/tensorrt_llm/config.pbtxt.j2)",
        "**Unknown fields.** Triton ignores an input that no model declares: an old name in a new request "
        "is no error, it has no effect. `engineroom lint` finds such names in JSON bodies and in scripts with "
        "curl calls. (docs/serving.md, docs/lint.md)",
    ]
    streams = any(m.decoupled for m in setup.models)
    if streams and serving.get("streaming", True):
        found += _stream_differences(setup)
    elif streams:
        found.append(
            "**No streams.** The old side streams, the new spec has `serving.streaming: false`: set it to "
            "true for clients that send `stream`."
        )
    if echoes(setup):
        found.append(
            "**Echo.** Whole answers of the old side begin with the prompt, because "
            "`exclude_input_in_output` is not `true` there; those of the new side never do. Clients that "
            "cut the prompt off must stop, or send `sampling_param_exclude_input_from_output: false`. "
            "(tensorrtllm_backend docs/model_config.md @ v0.19.0)"
        )
    if not flag(setup.parameter("add_special_tokens", "preprocessing"), True):
        found.append(
            "**Special tokens of the prompt.** The old side adds none (`add_special_tokens` false), the "
            "new side adds the tokenizer's own, and never a second BOS. For a tokenizer that has a BOS the "
            "tokens differ; send `messages`, or compare with the parity prompts first. (docs/serving.md)"
        )
    if not flag(setup.parameter("skip_special_tokens", "postprocessing"), True):
        found.append(
            "**Special tokens of the answer.** The old side leaves them in the text "
            "(`skip_special_tokens` false), the new side takes them out. "
            "(model_repo_templates/llmapi/tensorrt_llm/1/model.py)"
        )
    found += [
        "**End of an answer.** Without `end_id` the old preprocessing ends on the tokenizer's EOS token "
        "alone; the new side on every id of generation_config.json (`serving.stop_ids` says otherwise). "
        "A model with several, such as Llama 3, may stop earlier. (tensorrtllm_backend "
        "preprocessing/1/model.py @ v0.16.0)",
        "**Stop words** are found in the text and neither they nor what follows is sent; the old side "
        "compared token ids, so a word spelled by other tokens was not seen, and left the word in the "
        "answer. (docs/serving.md)",
        "**Sampling.** Both sides are greedy when none of `temperature`, `top_k` and `top_p` is sent. Sampled "
        "tokens differ between the two even with one seed, because the generators differ.",
        '**Errors.** A wrong request is HTTP 400 with `{"error": …}` on both sides (measured on Triton 2.51; the '
        "old models' errors carry no code, so everything that goes wrong in them is 400). The new text is one "
        "line that names the field, the old BLS model's a Python traceback; a full queue is 503 on the new "
        "side. Once a stream has begun, an error is an event with `error`. A number out of range that the old "
        "side passed to the engine may be refused now. (tensorrt_llm_bls/1/model.py @ v0.16.0; "
        "triton-inference-server/server src/http_server.cc, HttpCodeFromError @ e1db8a60; docs/serving.md)",
    ]
    return found


def _stream_differences(setup: OldSetup) -> Iterable[str]:
    fronts = {m.kind for m in setup.fronts}
    if "bls" in fronts and cumulative(setup):
        yield (
            "**Streams are deltas now.** `accumulate_tokens` is true on the old side: each response has all "
            "of the text so far. The new side sends what is new; add up the pieces, or send "
            "`stream_cumulative: true`. (tensorrt_llm_bls/1/lib/decode.py @ v0.16.0)"
        )
    else:
        yield (
            "**Streams are deltas on both sides.** The old side makes the text of each response from its "
            "own tokens alone, so spaces at their borders can be missing and characters of several bytes "
            "broken; the pieces of the new side, put together, are exactly the whole answer. "
            "(postprocessing/1/model.py @ v0.16.0; docs/serving.md)"
        )
    yield (
        "**Cancelling.** Leaving the stream is enough, also where an ensemble's client had to send `stop` "
        "to the engine model. `stop: true` with the same request id still works. (docs/serving.md)"
    )


# ---- text
def client_map(setup: OldSetup, spec: Mapping[str, Any], catalog: Catalog) -> str:
    """`clients.md`.

    Args:
        spec: the migrated spec as plain data.
    """
    data = client_data(setup, spec, catalog)
    fronts = ", ".join(f"`{m.name}`" for m in setup.fronts) or "none"
    parts = [
        "# Clients: before and after",
        f"Old models that take text: {fronts}. New model: `{NEW_MODEL}`.\n"
        "Ports, protocols and the server stay as they are: Triton, HTTP 8000, gRPC 8001.",
        "## Inputs",
        _table([line for line in data.fields if line.side == "inputs"]),
        "## Outputs",
        _table([line for line in data.fields if line.side == "outputs"]),
        "## Answers",
        "\n".join(f"* {text}" for text in data.differences),
        "## Requests",
        *(_exchange(item) for item in data.exchanges),
    ]
    if not data.exchanges:
        parts.append("The old setup has no model that takes text, so there is no request to show.")
    core = setup.engine_model
    if core is not None and data.core:
        parts += [
            f"## Clients that call `{core.name}` with token ids",
            "Only they need this table: the fronts above hide it.",
            _table(data.core),
        ]
    return "\n\n".join(parts) + "\n"


def _table(lines: Sequence[FieldLine]) -> str:
    if not lines:
        return "None."
    rows = ["| before | after | | source |", "| --- | --- | --- | --- |"]
    for line in lines:
        after = ", ".join(f"`{name}`" for name in line.new) or _nothing(line.fate)
        words = "; ".join(filter(None, (line.what, line.todo)))
        rows.append(f"| `{_cell(line.old)}` | {after} | {_cell(words)} | {_cell(line.source)} |")
    return "\n".join(rows)


def _nothing(fate: Fate) -> str:
    return "a setting of the server" if fate is Fate.MOVED else "none"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _exchange(item: Exchange) -> str:
    note = "" if item.sent else "\n\nThe number is an example: use the ids of your adapters."
    return "\n\n".join(
        [
            f"### {item.title}{note}",
            f"Before:\n\n<!-- before {item.id} curl -->\n```sh\n{curl(item.before)}\n```",
            f"After:\n\n<!-- after {item.id} curl -->\n```sh\n{curl(item.after)}\n```",
            f"Before, tritonclient:\n\n<!-- before {item.id} python -->\n```python\n"
            f"{tritonclient(item.before)}```",
            f"After, tritonclient:\n\n<!-- after {item.id} python -->\n```python\n"
            f"{tritonclient(item.after)}```",
        ]
    )
