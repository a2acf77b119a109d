"""From a model's logits to those that are sampled from, one sequence at a time.

The order and the formulas are those of TensorRT-LLM's penalty kernel: bias, temperature, repetition
(divides a positive logit, multiplies a negative one), presence (once) and frequency (each
occurrence), over the tokens of the prompt and the answer. Masks come last: bad words, end tokens
before `min_tokens`, the grammar.
"""

import torch

_MOST = torch.finfo(torch.float32).max
_NONE = float("-inf")


class Words:
    """Token sequences that must not be completed: the last token is masked when the rest matches."""

    def __init__(self, sequences):
        self.single = sorted({sequence[0] for sequence in sequences if len(sequence) == 1})
        self._longer = {}  # last token but one -> [(the tokens before the last, the last)]
        for sequence in sequences:
            if len(sequence) > 1:
                rest = list(sequence[:-1])
                self._longer.setdefault(rest[-1], []).append((rest, sequence[-1]))

    def masked(self, ids):
        """Tokens that may not follow `ids`."""
        if not self._longer or not ids:
            return self.single
        found = [last for rest, last in self._longer.get(ids[-1], ()) if ids[-len(rest) :] == rest]
        return self.single + found


class Processor:
    """The logits rules of one request; `counts` belong to one sequence of it.

    Args:
        request: bias, penalties, temperature, min_tokens.
        bad: `Words`.
        ends: tokens that end an answer, masked until `min_tokens` are generated.
    """

    def __init__(self, request, bad, ends):
        self._bad, self._ends = bad, ends
        self._least = request.min_tokens or 0
        self._bias = None
        if request.embedding_bias is not None:
            self._bias = torch.tensor(request.embedding_bias, dtype=torch.float32)
        self._temperature = request.temperature or 1.0
        self._repetition = request.repetition_penalty or 1.0
        self._presence = request.presence_penalty or 0.0
        self._frequency = request.frequency_penalty or 0.0
        self._penalties = (self._repetition, self._presence, self._frequency) != (1.0, 0.0, 0.0)
        self._changes = self._penalties or self._temperature != 1.0 or self._bias is not None

    def counts(self, ids, vocabulary):
        """Occurrences of each token in `ids`, or None where no penalty needs them."""
        if not self._penalties:
            return None
        return torch.bincount(torch.tensor(ids), minlength=vocabulary)

    def __call__(self, logits, ids, made, counts, allowed=None):
        """Logits [vocabulary] to sample from; masked tokens are -inf.

        Args:
            logits: of the model; left as they are.
            ids: prompt and answer so far; `made`: the length of the answer.
            allowed: None, or a boolean mask [vocabulary] of the grammar.

        Raises:
            ValueError: no token is left.
        """
        if self._changes:
            if self._bias is not None:
                logits = logits + self._bias
            logits = logits / self._temperature
            if counts is not None:
                seen = counts > 0
                repeated = torch.where(
                    logits < 0, logits * self._repetition, logits / self._repetition
                )
                lowered = repeated - self._presence - self._frequency * counts
                logits = torch.where(seen, lowered, logits)
            logits = torch.nan_to_num(logits, nan=0.0, posinf=_MOST, neginf=-_MOST)
        else:
            logits = logits.clone()
        if allowed is not None:
            logits[~allowed] = _NONE
        masked = self._bad.masked(ids)
        if masked:
            logits[masked] = _NONE
            if not bool((logits > _NONE).any()):
                raise ValueError("bad words leave no token to continue with")
        if made < self._least and self._ends:
            longer = logits.clone()
            longer[self._ends] = _NONE
            # A finished grammar allows nothing but an end: it wins.
            if bool((longer > _NONE).any()):
                logits = longer
        return logits
