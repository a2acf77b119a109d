"""A mix of requests at concurrency 32, some cancelled, against a running server.

Each survivor must give what the same request gives alone; afterwards nothing may be left running and
no KV block may be held.
"""

from __future__ import annotations

import random
import re
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tests.conformance import wire

CONCURRENCY = 32
WAYS = ("http", "http-stream", "grpc", "grpc-stream")


@dataclass(frozen=True)
class Names:
    """A front's model and the names of what the mix sends."""

    model: str
    max_tokens: str
    stream: str
    stop: str
    seed: str
    temperature: str
    top_k: str
    min_tokens: str
    prompt: str = "text_input"
    extra: tuple[tuple[str, Any], ...] = ()


ENGINE = {
    "max_tokens": "max_tokens", "stream": "stream", "stop": "stop_words", "seed": "seed",
    "temperature": "temperature", "top_k": "top_k", "min_tokens": "min_tokens",
}  # fmt: skip
FRONTS = {
    "bls": Names("tensorrt_llm_bls", **ENGINE),
    "ensemble": Names("ensemble", **ENGINE),
    "llmapi": Names(
        "tensorrt_llm", "sampling_param_max_tokens", "streaming", "sampling_param_stop",
        "sampling_param_seed", "sampling_param_temperature", "sampling_param_top_k",
        "sampling_param_min_tokens",
    ),
}  # fmt: skip
PROMPTS = (
    'The "for" statement is used to', '{"name": "', "Return a list of", "The import statement",
    "Élan naïve über 東京", "[1, 2, ", "A generator is a function which", "Ωmega and 🐱",
)  # fmt: skip


def requests(names: Names, count: int = 24, seed: int = 1) -> list[dict[str, Any]]:
    """Bodies of every kind that the mix sends; each answer depends on nothing but its body."""
    source, made = random.Random(seed), []
    for i in range(count):
        body: dict[str, Any] = {
            names.prompt: PROMPTS[i % len(PROMPTS)],
            names.max_tokens: source.choice([3, 8, 17, 40]),
            **dict(names.extra),
        }
        if i % 3 == 1:
            body |= {names.seed: i, names.temperature: 0.8, names.top_k: 20}
        if i % 4 == 2:
            body[names.stop] = [" the", "\n\n"]
        if i % 5 == 3:
            body[names.min_tokens] = 3
        made.append(body)
    return made


@dataclass(frozen=True)
class Failure:
    """A request that ended with an error; times of the monotonic clock."""

    way: str
    message: str
    begun: float
    ended: float
    stuck: bool
    """The client's own time limit ended it."""


@dataclass(frozen=True)
class Wrong:
    """An answer that is not the one of the request alone."""

    way: str
    body: dict[str, Any]
    text: str
    expected: str
    begun: float
    ended: float


@dataclass
class Outcome:
    """What happened to the requests of a mix."""

    right: int = 0
    cancelled: int = 0
    wrong: list[Wrong] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    ways: Counter[str] = field(default_factory=Counter)

    @property
    def failed(self) -> list[str]:
        return [f"{failure.way}: {failure.message}" for failure in self.failures]


class Mix:
    """The mix on one front.

    Args:
        ports: HTTP, gRPC and metrics port of the server.
        front: a key of FRONTS.
        timeout: seconds without a response after which a request counts as stuck.
        bodies: how many different requests. longest: tokens of an answer, at least 3.
    """

    def __init__(
        self,
        ports: tuple[int, int, int],
        front: str,
        timeout: float = 60,
        bodies: int = 24,
        longest: int = 40,
    ) -> None:
        self.timeout = timeout
        self.http, self.grpc_port, self.metrics = ports
        self.names = FRONTS[front]
        limit = self.names.max_tokens
        self.bodies = [
            {**body, limit: min(body[limit], longest)} for body in requests(self.names, bodies)
        ]
        self.local = threading.local()

    def ask(self, body: dict[str, Any], way: str, take: int | None = None) -> str:
        """The answer's text; with `take`, the client leaves after so many responses."""
        text = self._text(body, way, take)
        # The ensemble sends no character that its stream ends in: docs/serving.md.
        return text.rstrip("\ufffd") if self.names.model == "ensemble" else text

    def _text(self, body: dict[str, Any], way: str, take: int | None) -> str:
        stream = way.endswith("-stream")
        body = {**body, self.names.stream: True} if stream else body
        model = self.names.model
        if way == "http":
            return wire.text([wire.http_generate(self.http, model, body, self.timeout)])
        if way == "http-stream":
            return wire.text(
                wire.http_stream(self.http, model, body, take=take, timeout=self.timeout)
            )
        return wire.text(self.connection().ask(model, body, take=take, timeout=self.timeout))

    def connection(self) -> wire.Grpc:
        if not hasattr(self.local, "grpc"):
            self.local.grpc = wire.Grpc(self.grpc_port)
        return self.local.grpc

    def alone(self) -> list[str]:
        """Each body's text, one request at a time."""
        return [self.ask(body, "grpc-stream") for body in self.bodies]

    def run(
        self,
        expected: list[str],
        seconds: float,
        seed: int,
        *,
        cancel: float = 0.3,
        during: Callable[[], None] | None = None,
        concurrency: int = CONCURRENCY,
    ) -> Outcome:
        """Keep 32 requests under way for `seconds`.

        Args:
            cancel: share of the streamed requests whose client leaves after 0 to 4 responses.
            during: called once, in a thread of its own, when a third of the time is over.
        """
        outcome, lock = Outcome(), threading.Lock()
        end = time.monotonic() + seconds

        def work(number: int) -> None:
            source = random.Random(f"{seed}-{number}")
            while time.monotonic() < end:
                at, way = source.randrange(len(self.bodies)), source.choice(WAYS)
                leave = way.endswith("-stream") and source.random() < cancel
                take = source.randrange(5) if leave else None
                begun = time.monotonic()
                try:
                    text = self.ask(self.bodies[at], way, take)
                except Exception as error:
                    failure = Failure(
                        way, f"{type(error).__name__}: {error}", begun, time.monotonic(),
                        isinstance(error, TimeoutError),
                    )  # fmt: skip
                    with lock:
                        outcome.failures.append(failure)
                    time.sleep(0.2)
                    continue
                with lock:
                    outcome.ways[way] += 1
                    if leave:
                        outcome.cancelled += 1
                        right = expected[at].startswith(text)
                    else:
                        right = text == expected[at]
                        outcome.right += right
                    if not right:
                        outcome.wrong.append(
                            Wrong(way, self.bodies[at], text, expected[at], begun, time.monotonic())
                        )

        with ThreadPoolExecutor(concurrency + 1) as pool:
            jobs = [pool.submit(work, number) for number in range(concurrency)]
            if during is not None:
                time.sleep(seconds / 3)
                jobs.append(pool.submit(during))
            for job in jobs:
                job.result()
        return outcome

    def gauges(self) -> dict[str, float]:
        return gauges(self.metrics)

    def settled(self, seconds: float = 20) -> dict[str, float]:
        return settled(self.metrics, seconds)


def gauges(port: int) -> dict[str, float]:
    """{"request active": ..., "kv used": ...} of `/metrics`."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = {}
    for family, short in (("request_metrics", "request"), ("kv_cache_block_metrics", "kv")):
        pattern = rf"^nv_trt_llm_{family}\{{(.*)\}} (\S+)$"
        for labels, value in re.findall(pattern, text, re.MULTILINE):
            kind = re.search(r'_type="(\w+)"', labels)
            if kind:
                found[f"{short} {kind[1]}"] = float(value)
    return found


def settled(port: int, seconds: float = 20) -> dict[str, float]:
    """Gauges once nothing runs, or after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        now = gauges(port)
        idle = not any(now.get(name) for name in ("request active", "request waiting", "kv used"))
        if idle or time.monotonic() > end:
            return now
        time.sleep(0.1)
