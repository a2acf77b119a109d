"""Tensors of the llmapi model beside the version's contract, and what each is for.

A row applies to a version whose contract does not have the name. Inputs are declared whether or not
their feature is on: that of a feature that is off is answered with an error that names the switch,
because Triton ignores inputs that no model declares. Outputs are declared where their feature is on. Names come from later contracts or from the
engine lane, so that a client keeps them; `prefix + name of SamplingParams` is upstream's own pattern.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engineroom.spec.serving import Features


@dataclass(frozen=True)
class Addition:
    """One tensor that engineroom declares.

    Attributes:
        side: ``inputs`` or ``outputs``. dims: -1 is any length.
        feature: the switch in `serving.features`; None: always there.
        note: what it asks for or holds.
    """

    side: str
    name: str
    data_type: str
    dims: tuple[int, ...]
    feature: str | None
    note: str

    def tensor(self) -> dict[str, Any]:
        """As a contract writes it; every addition is optional."""
        return {
            "name": self.name,
            "data_type": self.data_type,
            "dims": list(self.dims),
            "optional": self.side == "inputs",
        }


def _in(name: str, kind: str, feature: str | None, note: str, length: int = 1) -> Addition:
    return Addition("inputs", name, f"TYPE_{kind}", (length,), feature, note)


def _out(name: str, kind: str, feature: str | None, note: str, *dims: int) -> Addition:
    return Addition("outputs", name, f"TYPE_{kind}", dims or (-1,), feature, note)


_S = "sampling_param_"
ADDITIONS: tuple[Addition, ...] = (
    _in("messages", "STRING", "chat",
        "Chat messages, a JSON list of {role, content}, instead of text_input; the model's own template "
        "is applied, and no second BOS is added."),
    _in("stream_cumulative", "BOOL", None,
        "Each streamed response has all of the text so far, as upstream's model sends it; default false: "
        "a delta."),
    _in(_S + "min_tokens", "INT32", None, "Fewest tokens before the answer may end."),
    _in(_S + "top_p_min", "FP32", None, "Lower bound of a decaying top_p."),
    _in(_S + "repetition_penalty", "FP32", None, "Above 0; above 1 discourages repetition."),
    _in(_S + "end_id", "INT32", None,
        "Token ids that end the answer instead of the model's own; -1 alone: none does.", -1),
    _in("request_priority", "FP32", None,
        "0 to 1, where the release's LLM API takes a priority (0.5 by default there)."),
    _in(_S + "bad", "STRING", "bad_words", "Words that must not be generated.", -1),
    _in(_S + "n", "INT32", "sequences", "Sequences to answer with; text_output has one element each."),
    _in(_S + "use_beam_search", "BOOL", "sequences",
        "The n best of best_of beams; not streamed. Needs max_beam_width."),
    _in(_S + "length_penalty", "FP32", "sequences", "How beam search weighs length."),
    _in("return_log_probs", "BOOL", "log_probs", "Asks for output_log_probs."),
    _in("return_num_input_tokens", "BOOL", "usage", "Asks for num_input_tokens."),
    _in("return_num_output_tokens", "BOOL", "usage", "Asks for num_output_tokens."),
    _in("return_context_logits", "BOOL", "context_logits", "Asks for context_logits."),
    _in("return_generation_logits", "BOOL", "generation_logits", "Asks for generation_logits."),
    _in(_S + "return_perf_metrics", "BOOL", "perf_metrics", "Asks for kv_cache_*, *_time_ns, *draft*."),
    _in("guided_decoding_guide_type", "STRING", "guided_decoding",
        "json, json_schema, regex, ebnf_grammar or structural_tag."),
    _in("guided_decoding_guide", "STRING", "guided_decoding", "The schema, expression or grammar."),
    _in("lora_id", "UINT64", "lora", "Adapter of the spec by its integer id."),
    _in("lora_name", "STRING", "lora", "Adapter of the spec by its name."),
    _in("lora_path", "STRING", "lora", "Only the path that the adapter has in the spec."),
    _in("lora_ckpt_source", "STRING", "lora", "hf or nemo."),
    _in("image_url", "STRING", "multimodal",
        "Images: data: URIs, or http(s) from the spec's allowed_hosts.", -1),
    _in(_S + "logits_post_processor_name", "STRING", None,
        "A processor that model.yaml registers by name; others are refused."),
    _out("output_log_probs", "FP32", "log_probs",
         "[n, tokens] since the last response; shorter rows end with zeros.", -1, -1),
    _out("num_input_tokens", "INT32", "usage", "[1] tokens of the prompt.", 1),
    _out("num_output_tokens", "INT32", "usage", "[n] tokens of each sequence."),
    _out("context_logits", "FP32", "context_logits", "[prompt, vocabulary], once.", -1, -1),
    _out("generation_logits", "FP32", "generation_logits",
         "[n, tokens, vocabulary]; on TensorRT-LLM with the last response.", -1, -1, -1),
    _out("kv_cache_reused_block", "INT32", "perf_metrics", "Prompt blocks found in the cache."),
    _out("kv_cache_missed_block", "INT32", "perf_metrics", "Prompt blocks not found."),
    _out("kv_cache_alloc_new_blocks", "INT32", "perf_metrics", "Blocks newly taken."),
    _out("kv_cache_alloc_total_blocks", "INT32", "perf_metrics", "Blocks in all."),
    _out("kv_cache_hit_rate", "FP32", "perf_metrics", "reused / (reused + missed)."),
    _out("arrival_time_ns", "INT64", "perf_metrics", "On the runtime's clock: differences count.", 1),
    _out("first_scheduled_time_ns", "INT64", "perf_metrics", "As arrival_time_ns.", 1),
    _out("first_token_time_ns", "INT64", "perf_metrics", "As arrival_time_ns.", 1),
    _out("last_token_time_ns", "INT64", "perf_metrics", "As arrival_time_ns.", 1),
    _out("acceptance_rate", "FP32", "perf_metrics", "Share of draft tokens that were kept.", 1),
    _out("total_accepted_draft_tokens", "INT32", "perf_metrics", "Draft tokens that were kept.", 1),
    _out("total_draft_tokens", "INT32", "perf_metrics", "Draft tokens proposed.", 1),
)  # fmt: skip
_BY_CONTRACT = _S + "logits_post_processor_name"
"""Declared only where the contract names it: older releases were not read for it."""


def additions(family: Mapping[str, Any], features: Features) -> list[Addition]:
    """The rows of `ADDITIONS` that a version's repository declares."""
    on = switches(features)
    names = {
        (side, tensor["name"])
        for side in ("inputs", "outputs")
        for tensor in family[side]
        if tensor.get("dims") is not None
    }
    stated = {tensor["name"] for tensor in family["inputs"]}
    return [
        row
        for row in ADDITIONS
        if (row.side, row.name) not in names
        and (row.name != _BY_CONTRACT or row.name in stated)
        and (row.side == "inputs" or row.feature is None or on[row.feature])
    ]


def tensors(family: Mapping[str, Any], side: str, features: Features) -> list[Mapping[str, Any]]:
    """Tensors of the model: the contract's, then the additions that it lacks.

    Outputs of a feature that is off are left out: nothing can ask for them, and each costs a little
    with every request.

    Args:
        side: ``inputs`` or ``outputs``.
    """
    on = switches(features)
    off = {
        row.name
        for row in ADDITIONS
        if row.side == "outputs" and row.feature and not on[row.feature]
    }
    found: list[Mapping[str, Any]] = [
        tensor
        for tensor in family[side]
        if tensor.get("dims") is not None and (side == "inputs" or tensor["name"] not in off)
    ]
    if features.chat:
        # One of text_input and messages is needed, which only the model can check.
        found = [{**t, "optional": True} if t["name"] == "text_input" else t for t in found]
    return [*found, *(row.tensor() for row in additions(family, features) if row.side == side)]


def switches(features: Features) -> dict[str, bool]:
    """{feature: on}, the model parameter `features`."""
    out = {}
    for name in type(features).model_fields:
        value = getattr(features, name)
        out[name] = value if isinstance(value, bool) else value not in (None, "off")
    return out
