"""One way to ask every front: neutral names in, tensors of the front out, one kind of answer back.

Neutral fields of a request: prompt, messages, max_tokens, min_tokens, temperature, top_k, top_p, seed,
stop, bad, n, repetition_penalty, presence_penalty, frequency_penalty, end_ids, echo, guide (kind,
text), log_probs, counts, reasons, perf, context_logits, generation_logits, and `raw`: inputs by the
front's own names.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.conformance import wire

FRONTS = ("bls", "ensemble", "llmapi", "vllm")
PROTOCOLS = ("http", "grpc")
VOCABULARY = 2048
_ENGINE = {
    "prompt": "text_input", "stop": "stop_words", "bad": "bad_words", "n": "num_return_sequences",
    "end_ids": "end_id",
}  # fmt: skip
_PREFIX = "sampling_param_"
_LLMAPI = {
    "prompt": "text_input", "messages": "messages", "end_ids": _PREFIX + "end_id",
}  # fmt: skip
_FLAGS = {
    "engine": {
        "log_probs": ["return_log_probs"],
        "counts": ["return_num_input_tokens", "return_num_output_tokens"],
        "perf": ["return_perf_metrics"],
        "context_logits": ["return_context_logits"],
        "generation_logits": ["return_generation_logits"],
    },
    "llmapi": {
        "log_probs": ["return_log_probs", "return_cumulative_logprob"],
        "counts": ["return_num_input_tokens", "return_num_output_tokens"],
        "reasons": ["return_finish_reason", "return_stop_reason"],
        "perf": [_PREFIX + "return_perf_metrics"],
        "context_logits": ["return_context_logits"],
        "generation_logits": ["return_generation_logits"],
    },
    "vllm": {
        "log_probs": ["return_logprobs", "return_cumulative_logprob"],
        "counts": ["return_num_input_tokens", "return_num_output_tokens"],
        "reasons": ["return_finish_reason"],
    },
}
_GUIDES = {"json_schema": "json", "regex": "regex", "ebnf_grammar": "grammar"}


@dataclass
class Answer:
    """What a front answered; lists have one element a sequence.

    Attributes:
        events: the responses, as they came. texts: put together.
        log_probs: of each token. cumulative: None where it was not sent.
        context_logits: [prompt, vocabulary]. generation_logits: [tokens, vocabulary] a sequence.
        perf: {name: value}, by the engine lane's names.
    """

    events: list[wire.Response]
    texts: list[str]
    log_probs: list[list[float]] = field(default_factory=list)
    token_ids: list[list[int]] = field(default_factory=list)
    cumulative: list[float] | None = None
    input_tokens: int | None = None
    output_tokens: list[int] | None = None
    finish: list[str] | None = None
    stop: list[str] | None = None
    context_logits: np.ndarray | None = None
    generation_logits: list[np.ndarray] = field(default_factory=list)
    perf: dict[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        assert len(self.texts) == 1
        return self.texts[0]


class Front:
    """One front of a running server.

    Args:
        name: of FRONTS. endpoints: with `http`, `grpc` and `metrics` ports.
    """

    def __init__(self, name: str, endpoints: Any) -> None:
        self.name, self.endpoints = name, endpoints
        self.dialect = "engine" if name in ("bls", "ensemble") else name
        self.model = {
            "bls": "tensorrt_llm_bls", "ensemble": "ensemble", "llmapi": "tensorrt_llm",
            "vllm": "vllm_model",
        }[name]  # fmt: skip
        self.streaming = "streaming" if name == "llmapi" else "stream"
        self.grpc = wire.Grpc(endpoints.grpc)
        self.grpc.types(self.model)

    # ---- requests
    def input_name(self, neutral: str) -> str:
        """The front's name of a neutral field."""
        if self.dialect == "engine":
            return _ENGINE.get(neutral, neutral)
        if self.dialect == "llmapi":
            return _LLMAPI.get(neutral, _PREFIX + neutral)
        return "text_input" if neutral == "prompt" else neutral

    def body(self, stream: bool = False, **asked: Any) -> dict[str, Any]:
        """Inputs by the front's own names."""
        made: dict[str, Any] = {}
        params: dict[str, Any] = {}
        for name, value in asked.items():
            if name == "raw":
                made |= value
            elif name in _FLAGS[self.dialect]:
                made |= dict.fromkeys(_FLAGS[self.dialect][name], value)
            elif name in ("log_probs", "counts", "reasons", "perf", "context_logits"):
                raise ValueError(f"{self.name} has no {name}")
            elif name == "guide":
                self._guide(made, params, *value)
            elif name == "echo":
                exclude = "exclude_input_in_output"
                if self.dialect == "llmapi":
                    exclude = _PREFIX + "exclude_input_from_output"
                made[exclude] = not value
            elif self.dialect == "vllm" and name != "prompt":
                vllm = {"end_ids": "stop_token_ids", "bad": "bad_words"}.get(name, name)
                params[vllm] = value
            else:
                made[self.input_name(name)] = value
        if self.dialect == "vllm":
            made.setdefault("sampling_parameters", json.dumps(params))
            if not stream:  # a stream never has the prompt
                made.setdefault("exclude_input_in_output", True)
        if stream:
            made[self.streaming] = True
        return made

    def _guide(self, made: dict[str, Any], params: dict[str, Any], kind: str, text: str) -> None:
        if self.dialect == "vllm":
            value = json.loads(text) if kind == "json_schema" else text
            params["structured_outputs"] = json.dumps({_GUIDES[kind]: value})
        else:
            made |= {"guided_decoding_guide_type": kind, "guided_decoding_guide": text}

    def ask(
        self,
        protocol: str = "http",
        stream: bool = False,
        take: int | None = None,
        request_id: str | None = None,
        **asked: Any,
    ) -> Answer:
        """Ask and put the answer together. Raises wire.Refused."""
        body = self.body(stream, **asked)
        if protocol == "grpc":
            events = self.grpc.ask(self.model, body, take=take, request_id=request_id)
        else:
            if request_id is not None:
                body["id"] = request_id
            port = self.endpoints.http
            if stream:
                events = wire.http_stream(port, self.model, body, take=take)
            else:
                events = [wire.http_generate(port, self.model, body)]
        return self.answer(events, int(asked.get("n", 1)))

    def many(self, requests: Sequence[dict[str, Any]]) -> list[Answer]:
        """All of them at once."""
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(lambda one: self.ask(**one), requests))

    # ---- answers
    def answer(self, events: list[wire.Response], n: int) -> Answer:
        made = Answer(events, [wire.text(events, i) for i in range(n)])
        if self.dialect == "vllm":
            self._vllm(made, events, n)
        else:
            self._tensors(made, events, n)
        return made

    def _vllm(self, made: Answer, events: list[wire.Response], n: int) -> None:
        made.log_probs, made.token_ids = [[] for _ in range(n)], [[] for _ in range(n)]
        for event in events:
            for i, text in enumerate(event.get("logprobs", ())):
                for row in json.loads(text):
                    ((token, value),) = row.items()
                    made.token_ids[i].append(int(token))
                    made.log_probs[i].append(value["logprob"])
        if "num_input_tokens" in events[-1]:
            made.input_tokens = int(events[-1]["num_input_tokens"][0])
            counts = np.array([event["num_output_tokens"] for event in events])
            made.output_tokens = counts.sum(0).tolist()
        if "cumulative_logprob" in events[-1]:
            made.cumulative = events[-1]["cumulative_logprob"].tolist()
        if "finish_reason" in events[-1]:
            made.finish = events[-1]["finish_reason"].tolist()

    def _tensors(self, made: Answer, events: list[wire.Response], n: int) -> None:
        made.log_probs = [[] for _ in range(n)]
        logits: list[list[np.ndarray]] = [[] for _ in range(n)]
        outputs: dict[int, int] = {}
        cumulative: dict[int, float] = {}
        for event in events:
            where = event.get("sequence_index")
            at = None if where is None else int(where[0])
            for i, row in self._rows(event.get("output_log_probs"), at, n):
                made.log_probs[i].extend(row.tolist())
            for i, row in self._rows(event.get("generation_logits"), at, n):
                logits[i].append(row.reshape(-1, VOCABULARY))
            if "context_logits" in event:
                made.context_logits = event["context_logits"].reshape(-1, VOCABULARY)
            if "num_input_tokens" in event:
                made.input_tokens = int(event["num_input_tokens"][0])
            if "num_output_tokens" in event:
                for i, count in enumerate(event["num_output_tokens"].tolist()):
                    place = i if at is None else at
                    outputs[place] = outputs.get(place, 0) + count
            name = "cumulative_logprob" if self.dialect == "llmapi" else "cum_log_probs"
            for i, value in enumerate(event.get(name, np.array([])).tolist()):
                cumulative[i if at is None else at] = value
            for short, name in (("finish", "finish_reason"), ("stop", "stop_reason")):
                if name in event:
                    setattr(made, short, event[name].tolist())
            for name, array in event.items():
                if name.endswith("_ns") or name.startswith(("kv_cache", "acceptance", "total_")):
                    neutral = {"kv_cache_reused_block": "kv_cache_reused_blocks"}.get(name, name)
                    made.perf[neutral] = array[0].item()
        made.generation_logits = [np.concatenate(rows) for rows in logits if rows]
        made.output_tokens = [outputs[i] for i in sorted(outputs)] or None
        made.cumulative = [cumulative[i] for i in sorted(cumulative)] or None

    @staticmethod
    def _rows(array: np.ndarray | None, at: int | None, n: int) -> list[tuple[int, np.ndarray]]:
        """(sequence, its flat values) of a tensor [.., sequences, ..]."""
        if array is None:
            return []
        if at is not None:
            return [(at, array)]
        return list(enumerate(array.reshape(n, -1)))


def shape(event: wire.Response, name: str) -> list[int]:
    """Shape of a tensor that came over gRPC."""
    return event.shapes[name]
