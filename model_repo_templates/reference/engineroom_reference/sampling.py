"""Choosing the next token. Each sequence has a random generator of its own."""

import torch


def is_greedy(request):
    """Greedy unless temperature, top_k or top_p says otherwise; temperature 0, top_k 1 and top_p 0
    are greedy whatever the others say."""
    if request.top_k == 1 or request.temperature == 0 or request.top_p == 0:
        return True
    return not (request.temperature or request.top_k or request.top_p)


class Sampler:
    """Temperature is applied before, with the penalties; here top_k, then top_p of what is left.

    Args:
        request: top_k (0 or None: all), top_p (None or 1: all), seed (None: 0).
        index: of the sequence; its seed is the request's plus the index, modulo 2**64.
    """

    def __init__(self, request, index):
        self._top_k, self._top_p = request.top_k or 0, request.top_p
        self._random = None
        if not is_greedy(request):
            self._random = torch.Generator().manual_seed(((request.seed or 0) + index) % 2**64)

    def __call__(self, logits):
        """A token of `logits` [vocabulary]."""
        if self._random is None:
            return int(logits.argmax())
        if self._top_k:
            kept = logits.topk(min(self._top_k, logits.numel())).values[-1]
            logits = logits.masked_fill(logits < kept, float("-inf"))
        probabilities = torch.softmax(logits, -1)
        if self._top_p is not None and self._top_p < 1:
            ordered, order = probabilities.sort(descending=True, stable=True)
            # The smallest set that reaches top_p: a token goes when those before it already do.
            drop = ordered.cumsum(-1) - ordered >= self._top_p
            probabilities[order[drop]] = 0
        return int(torch.multinomial(probabilities, 1, generator=self._random))
