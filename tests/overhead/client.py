"""A closed-loop client: N connections, each sends its next request when the last one is answered.

Four kinds: `generate` (HTTP, one answer), `stream` (HTTP, server-sent events), `infer` (gRPC, one
answer a call; Triton refuses it for decoupled models), `grpc` (gRPC stream, one answer) and
`grpc-stream` (gRPC stream, an answer a token). HTTP is spoken over plain sockets, because a client
library would take CPU from the server that shares the machine.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

KINDS = ("generate", "stream", "infer", "grpc", "grpc-stream")
STREAMED = ("stream", "grpc-stream")


@dataclass(frozen=True)
class Answer:
    """Seconds to the first event and to the end, and the number of events."""

    first: float
    seconds: float
    events: int


class Connection(Protocol):
    async def once(self) -> Answer: ...

    async def close(self) -> None: ...


class Http:
    """One kept-alive connection."""

    def __init__(self, port: int, path: str, body: bytes) -> None:
        self._port = port
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self._request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
        self._pipe: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.last = b""

    async def once(self) -> Answer:
        if self._pipe is None:
            self._pipe = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._pipe
        start = time.perf_counter()
        writer.write(self._request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        ok = head.split(b" ", 2)[1] == b"200"
        if b"transfer-encoding: chunked" not in head:
            length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
            self.last = await reader.readexactly(length)
            seconds = time.perf_counter() - start
            self._check(ok, self.last)
            return Answer(seconds, seconds, 1)
        events_follow = b"text/event-stream" in head
        first, events = 0.0, 0 if events_follow else 1
        while size := int((await reader.readline()).split(b";")[0], 16):
            part = (await reader.readexactly(size + 2))[:-2]
            self.last = part
            if events_follow:
                events += part.count(b"data: ")
            first = first or time.perf_counter() - start
            self._check(ok, part)
        await reader.readexactly(2)
        return Answer(first, time.perf_counter() - start, events)

    @staticmethod
    def _check(ok: bool, part: bytes) -> None:
        if not ok or b'"error"' in part[:60]:
            raise RuntimeError(part[:300].decode(errors="replace"))

    async def close(self) -> None:
        if self._pipe is not None:
            self._pipe[1].close()


class Grpc:
    """One bidirectional stream, or with `unary` one call a request."""

    def __init__(
        self,
        port: int,
        model: str,
        fields: dict[str, Any],
        *,
        batched: bool,
        unary: bool,
        events: int,
    ) -> None:
        import tritonclient.grpc.aio as grpc

        self._client = grpc.InferenceServerClient(f"127.0.0.1:{port}")
        self._model, self._unary, self._events = model, unary, events
        self._ids = itertools.count()
        self._inputs = [_tensor(grpc, name, value, batched) for name, value in fields.items()]
        self._queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._answers: Any = None

    async def _requests(self) -> Any:
        while True:
            yield await self._queue.get()

    async def once(self) -> Answer:
        start = time.perf_counter()
        if self._unary:
            await self._client.infer(self._model, self._inputs)
            seconds = time.perf_counter() - start
            return Answer(seconds, seconds, 1)
        if self._answers is None:
            self._answers = self._client.stream_infer(self._requests())
        ident = str(next(self._ids))
        await self._queue.put(
            {"model_name": self._model, "inputs": self._inputs, "request_id": ident}
        )
        # Also counted, because an empty final response after the last event (upstream's BLS model
        # sends one) reaches only clients that ask for it, which this library cannot on a stream.
        first, events, final = 0.0, 0, False
        while events < self._events and not final:
            result, error = await anext(self._answers)
            if error:
                raise RuntimeError(str(error))
            response = result.get_response()
            if response.outputs:
                if response.id != ident:
                    raise RuntimeError(f"an event of request {response.id} came after its last one")
                events += 1
                first = first or time.perf_counter() - start
        return Answer(first, time.perf_counter() - start, events)

    async def close(self) -> None:
        if self._answers is not None:
            self._answers.cancel()
        await self._client.close()


def _tensor(grpc: Any, name: str, value: Any, batched: bool) -> Any:
    import numpy as np

    kinds = {str: ("BYTES", object), bool: ("BOOL", bool), int: ("INT32", np.int32)}
    data_type, dtype = kinds[type(value)]
    array = np.array([value.encode() if isinstance(value, str) else value], dtype)
    if batched:
        array = array.reshape(1, 1)
    item = grpc.InferInput(name, list(array.shape), data_type)
    item.set_data_from_numpy(array)
    return item


@dataclass(frozen=True)
class Target:
    """A served model, and how it calls the fields of a request."""

    http: int
    grpc: int
    model: str
    max_tokens: str = "max_tokens"
    stream: str = "stream"
    batched: bool = True
    more: dict[str, Any] = field(default_factory=dict)

    def connect(self, kind: str, prompt: str, tokens: int, ident: str = "a") -> Connection:
        """A connection; `ident` is the request id of all its requests over HTTP, unique among them."""
        fields: dict[str, Any] = {"text_input": prompt, self.max_tokens: tokens, **self.more}
        if kind in STREAMED:
            fields[self.stream] = True
        if kind in ("generate", "stream"):
            path = f"/v2/models/{self.model}/generate" + ("_stream" if kind == "stream" else "")
            return Http(self.http, path, json.dumps({"id": ident, **fields}).encode())
        unary, events = kind == "infer", tokens if kind in STREAMED else 1
        return Grpc(self.grpc, self.model, fields, batched=self.batched, unary=unary, events=events)


async def closed_loop(connections: list[Connection], seconds: float) -> list[Answer]:
    """Answers that began and ended within `seconds`.

    Raises:
        RuntimeError: a request failed; its error.
    """
    end = time.perf_counter() + seconds
    answers: list[Answer] = []

    async def worker(connection: Connection) -> None:
        while time.perf_counter() < end:
            answers.append(await connection.once())

    await asyncio.gather(*(worker(connection) for connection in connections))
    return answers
