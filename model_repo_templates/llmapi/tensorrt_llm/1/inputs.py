"""A request's tensors as a runtime request: one pass, each error names the tensor.

The names are the contract's (`triton.llmapi.inputs`) and engineroom's additions
(`engineroom.lanes.llmapi.tensors`). Triton has checked type and rank against config.pbtxt before.
"""

import json
import re

from input_table import PREFIX, gated, plain
from runtime_api import Guide, Lora, RequestError

# No tokenizer has tokens that average more: what is longer cannot fit, and is not tokenized at all.
MAX_BYTES_A_TOKEN = 64
# Names of runtime_api.Request that a runtime's errors use -> the tensors that clients know.
TENSORS = {
    "prompt": "text_input",
    "prompt_ids": "text_input",
    "guide": "guided_decoding_guide",
    "lora": "lora_name",
    "media": "image_url",
    "priority": "request_priority",
    "log_probs": "return_log_probs",
    "context_logits": "return_context_logits",
    "generation_logits": "return_generation_logits",
    "perf": PREFIX + "return_perf_metrics",
    "beam_width": PREFIX + "use_beam_search",
    "end_ids": PREFIX + "end_id",
    "logits_post_processor": PREFIX + "logits_post_processor_name",
    **{
        name: PREFIX + name
        for name in (
            "max_tokens", "min_tokens", "temperature", "top_k", "top_p", "top_p_min", "seed", "stop",
            "bad", "repetition_penalty", "frequency_penalty", "presence_penalty", "length_penalty",
            "best_of",
        )
    },
}  # fmt: skip
_WORD = re.compile(r"\w+")


def client_message(error):
    """A runtime's error, with the tensors that its words stand for where it does not name them."""
    text, field = str(error), getattr(error, "field", None)
    words = [field] if field else _WORD.findall(text)
    named = dict.fromkeys(TENSORS[word] for word in words if word in TENSORS)
    missing = [name for name in named if name not in text]
    return f"{', '.join(missing)}: {text}" if missing else text


class Limits:
    """Bounds of a request; a limit of None is not checked here.

    Args:
        args: LLM arguments of the version.
    """

    def __init__(self, args):
        self.tokens = args.get("max_seq_len")
        self.sequences = args.get("max_batch_size") or 2048
        self.beams = args.get("max_beam_width") or 1
        self.prompt_bytes = None if self.tokens is None else self.tokens * MAX_BYTES_A_TOKEN


class Wanted:
    """What a request asks for: `fields` are arguments of runtime_api.Request.

    Attributes:
        prompt: text, or None with `messages`.
        returns: names of outputs beside text_output.
        images: URLs. stop: this is a request to cancel those of the same id.
    """

    __slots__ = (
        "cumulative",
        "echo",
        "fields",
        "guide",
        "images",
        "lora",
        "messages",
        "prompt",
        "returns",
        "stop",
        "streaming",
    )  # fmt: skip

    def __init__(self):
        self.fields, self.returns, self.images = {}, (), ()
        self.prompt = self.messages = self.guide = self.lora = None
        self.streaming = self.cumulative = self.echo = self.stop = False


class Reader:
    """Reads requests for one model.

    Args:
        limits: `Limits`.
        features: {name: bool}, the spec's `serving.features`.
        adapters: [{"name", "id", "path"}] of `serving.features.lora`.
    """

    def __init__(self, limits, features, adapters=()):
        self._limits, self._adapters = limits, adapters
        self._table = {**plain(limits), **gated(limits, features)}

    def read(self, request):
        """`Wanted` of a Triton request.

        Raises:
            RequestError: names the tensor, and the switch if a feature is off.
        """
        wanted, table = Wanted(), self._table
        for tensor in request.inputs():
            name = tensor.name()
            take = table.get(name)
            if take is not None:
                take(wanted, name, tensor.as_numpy())
        if not wanted.stop:
            self._finish(wanted)
        return wanted

    def _finish(self, wanted):
        fields = wanted.fields
        if wanted.prompt is not None and wanted.messages is not None:
            raise RequestError("send text_input or messages, not both")
        if wanted.messages is None and not wanted.prompt:
            raise RequestError("text_input is " + ("missing" if wanted.prompt is None else "empty"))
        most = fields.get("max_tokens", 16)
        if fields.get("min_tokens", 0) > most:
            raise RequestError(
                f"{PREFIX}min_tokens {fields['min_tokens']} is above {PREFIX}max_tokens {most}"
            )
        sequences, best = fields.get("n", 1), fields.get("best_of")
        if best is not None and best < sequences:
            raise RequestError(f"{PREFIX}best_of {best} is below {PREFIX}n {sequences}")
        if fields.pop("beams", False):
            fields["beam_width"] = best or sequences
            if fields["beam_width"] > self._limits.beams:
                raise RequestError(
                    f"{PREFIX}use_beam_search with {fields['beam_width']} beams is above "
                    f"max_beam_width {self._limits.beams}"
                )
        if wanted.streaming and (fields.get("beam_width") or (best or 1) > sequences):
            raise RequestError(
                f"streaming with {PREFIX}use_beam_search or {PREFIX}best_of: which sequences are the "
                "best is known only at the end"
            )
        if wanted.guide:
            fields["guide"] = _guide(**wanted.guide)
        if wanted.lora:
            fields["lora"] = self._lora(**wanted.lora)
        if wanted.streaming:
            fields["streaming"] = True

    def _lora(self, lora_id=None, lora_name=None, lora_path=None, lora_ckpt_source=None):
        asked = {"id": lora_id, "name": lora_name, "path": lora_path}
        for adapter in self._adapters:
            if all(value in (None, adapter[key]) for key, value in asked.items()):
                return Lora(adapter["id"], adapter["name"], adapter["path"], lora_ckpt_source)
        said = ", ".join(
            f"lora_{key} {value!r}" for key, value in asked.items() if value is not None
        )
        names = ", ".join(adapter["name"] for adapter in self._adapters) or "none"
        raise RequestError(
            f"{said or 'lora_ckpt_source'}: no adapter of this model; it has {names}"
        )


def _guide(kind=None, text=None):
    if kind is None:
        raise RequestError("guided_decoding_guide_type is missing beside guided_decoding_guide")
    if text is None and kind != "json":
        raise RequestError(f"guided_decoding_guide is missing beside the guide type {kind}")
    if kind in ("json_schema", "structural_tag"):
        try:
            schema = json.loads(text)
        except (ValueError, RecursionError) as error:
            why = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise RequestError(f"guided_decoding_guide is not JSON: {why}") from None
        if not isinstance(schema, dict | bool):
            raise RequestError("guided_decoding_guide must be a JSON object")
    return Guide(kind, text)
