"""Requests on a reference runtime in this process, and plain transformers beside it."""

from __future__ import annotations

import functools
import threading

import torch

from tests.conftest import TINY

ENDS = [2, 0]
WAIT = 60


def start(folder=TINY, **args):
    from engineroom_reference.runtime import ReferenceRuntime

    runtime = ReferenceRuntime()
    runtime.start(str(folder), args)
    return runtime


class Answer:
    """The chunks of one request; `done` is set when all its sequences have ended."""

    def __init__(self, n):
        self.chunks, self.done, self._open = [], threading.Event(), n
        self.handle = None

    def __call__(self, chunk):
        self.chunks.append(chunk)
        if chunk.final:
            self._open -= 1
        if self._open == 0 or chunk.finish_reason in ("error", "cancelled"):
            self.done.set()

    def wait(self):
        assert self.done.wait(WAIT)
        return self

    def of(self, index=0):
        return [chunk for chunk in self.chunks if chunk.index == index]

    def ids(self, index=0):
        return [token for chunk in self.of(index) for token in chunk.token_ids]

    def text(self, index=0):
        return "".join(chunk.text for chunk in self.of(index))

    def log_probs(self, index=0):
        return [value for chunk in self.of(index) for value in chunk.log_probs or []]

    def last(self, index=0):
        return self.of(index)[-1]


def begin(runtime, **fields):
    from runtime_api import Request

    answer = Answer(fields.get("n", 1))
    answer.handle = runtime.submit(Request(**fields), answer)
    return answer


def ask(runtime, **fields):
    return begin(runtime, **fields).wait()


@functools.lru_cache
def plain():
    """(transformers' own model in float32, tokenizer) of the tiny checkpoint."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(TINY)


def encode(text):
    return plain()[1](text).input_ids


@torch.inference_mode()
def plain_logits(ids):
    """Logits [tokens, vocabulary] of one pass over `ids`, without a cache."""
    return plain()[0](torch.tensor([ids])).logits[0].float()


@torch.inference_mode()
def plain_generate(prompt, max_tokens, **options):
    """Greedy tokens of transformers' `generate`, up to the first end token."""
    ids = torch.tensor([encode(prompt)])
    out = (
        plain()[0]
        .generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=ENDS,
            pad_token_id=0,
            **options,
        )[0, ids.shape[1] :]
        .tolist()
    )
    cut = [i for i, token in enumerate(out) if token in ENDS]
    return out[: cut[0]] if cut else out
