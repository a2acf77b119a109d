"""What TensorRT-LLM's own Python does with text, by the same calls of the same libraries.

As in tokenizer/tokenizer.py and executor/result.py of 1.3: a prompt through the transformers tokenizer's
`encode`, a stream through one `DecodeStream` a sequence and token by token, a whole answer through
`decode`. Nothing is kept between requests, as there.
"""

from tensorrt_llm import answers
from transformers import AutoTokenizer


class Tokenizer:
    """The tokenizer of a folder, loaded with upstream's settings."""

    def __init__(self, folder):
        self.tokenizer = AutoTokenizer.from_pretrained(
            folder, legacy=False, padding_side="left", truncation_side="left", use_fast=True
        )
        self.eos_token_id = self.tokenizer.eos_token_id

    def encode(self, text, add_special_tokens):
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def prompt_ids(self, inputs, params):
        """Token ids of what `generate_async` takes."""
        if isinstance(inputs, dict):
            inputs = inputs.get("prompt_token_ids") or inputs.get("prompt")
        if isinstance(inputs, str):
            return self.encode(inputs, params.add_special_tokens)
        return list(inputs)

    def answer(self, prompt_ids, params, count, place):
        """(texts, ids) of sequence `place`, the texts empty, and why it ends: (reason, stop reason)."""
        source = answers.IDS or prompt_ids
        if answers.TEXTS:
            source = self.encode("".join(answers.TEXTS), False)
        count = min(count, answers.MOST)
        ids = source[place : place + count]
        if len(ids) < count:
            ids = [source[(place + k) % len(source)] for k in range(count)]
        ids, *ended = _ended(ids, params)
        return ([""] * len(ids), ids), tuple(ended)

    def step(self, output, params, streaming):
        """Bring `output.text` up to its ids."""
        if streaming and not params.use_beam_search:
            if output._states is None:
                from tokenizers.decoders import DecodeStream

                output._states = DecodeStream(skip_special_tokens=params.skip_special_tokens)
            output.text += self._stepped(output._states, output.token_ids_diff)
        else:
            output.text = self.tokenizer.decode(
                output.token_ids,
                skip_special_tokens=params.skip_special_tokens,
                spaces_between_special_tokens=params.spaces_between_special_tokens,
            )

    def _stepped(self, stream, ids):
        backend = self.tokenizer._tokenizer
        pieces = [piece for k in ids if (piece := stream.step(backend, k)) is not None]
        text = "".join(pieces)
        if getattr(self.tokenizer, "clean_up_tokenization_spaces", False):
            text = self.tokenizer.clean_up_tokenization(text)
        return text


def _ended(ids, params):
    """(ids of the answer, reason, stop reason): what ends it is in the answer only if asked for."""
    words = [([k], k) for k in params.stop_token_ids or ()]
    if params.stop:
        words += zip(params._stop_word_ids, params.stop)
    words = [(word, name) for word, name in words if word[-1] in ids]
    if params.ignore_eos or (not words and params.end_id not in ids):
        return ids, "length", None
    for at in range(1, len(ids) + 1):
        if ids[at - 1] == params.end_id:
            return ids[:at], "stop", None
        for word, name in words:
            if ids[max(0, at - len(word)) : at] == word:
                cut = at if params.include_stop_str_in_output else at - len(word)
                return ids[:cut], "stop", name
    return ids, "length", None
