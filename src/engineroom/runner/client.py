"""A small client of Triton's HTTP generate endpoints; loopback or not, one request at a time."""

from __future__ import annotations

import http.client
import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from engineroom.errors import ExternalToolError, UsageError, Where
from engineroom.types import ClientFields


@dataclass(frozen=True)
class Answer:
    """Text and timings of one request; seconds.

    Attributes:
        events: responses received; one a token or more in a stream, 1 otherwise.
        ttft: time to the first response.
    """

    text: str
    events: int
    ttft: float
    seconds: float


def shown(url: str) -> str:
    """The address without a user and password, for messages."""
    return re.sub(r"//[^/@]*@", "//", url)


def _connect(url: str, timeout: float) -> http.client.HTTPConnection:
    """A connection, not yet open.

    Raises:
        UsageError: no http(s) address, or a host or port that cannot be.
    """
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
        if parts.scheme not in ("http", "https") or not host or re.search(r"\s", host):
            raise ValueError("no http address")
        host.encode("idna")
    except (ValueError, UnicodeError) as error:
        raise UsageError(
            f"`{shown(url)}` is no address: {error}",
            where=Where(key="--url"),
            hint="write e.g. http://127.0.0.1:8000",
        ) from None
    cls = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return cls(host, port, timeout=timeout)


def _exchange(url: str, method: str, path: str, body: Any, timeout: float) -> tuple[int, bytes]:
    connection = _connect(url, timeout)
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise ExternalToolError(
            f"no answer from {shown(url)}: {error}",
            hint="is the server running? `engineroom serve` starts one",
        ) from None
    finally:
        connection.close()


def model_inputs(url: str, model: str, timeout: float = 10) -> frozenset[str]:
    """Names of a model's inputs by Triton's metadata; empty when the server has no such model.

    Raises:
        ExternalToolError: no server, not Triton, or an error of its own.
    """
    status, raw = _exchange(url, "GET", f"/v2/models/{model}", None, timeout)
    # Triton answers 400 for an unknown model, 404 for a known one of an unknown version.
    if status in (400, 404):
        return frozenset()
    answer = _checked(raw, status)
    inputs = answer.get("inputs")
    if not isinstance(inputs, list) or not all(isinstance(i, dict) and "name" in i for i in inputs):
        raise ExternalToolError(
            f"{shown(url)} answers, but not as Triton does",
            hint="name Triton's HTTP address (8000)",
        )
    return frozenset(str(item["name"]) for item in inputs)


def generate(
    url: str,
    fields: ClientFields,
    prompt: str,
    max_tokens: int,
    *,
    stream: bool,
    extra: dict[str, Any] | None = None,
    on_text: Callable[[str], None] = lambda text: None,
    timeout: float = 600,
) -> Answer:
    """Ask once.

    A request id is always sent: the engine lane's streams need one to put split characters together.

    Raises:
        ExternalToolError: no connection, or the server answered with an error.
    """
    body: dict[str, Any] = {
        "id": uuid.uuid4().hex,
        fields.prompt: prompt,
        fields.max_tokens: max_tokens,
        **(extra or {}),
    }
    if not stream:
        started = time.monotonic()
        status, raw = _exchange(url, "POST", f"/v2/models/{fields.model}/generate", body, timeout)
        seconds = time.monotonic() - started
        text = _text_of(_checked(raw, status), fields)
        on_text(text)
        return Answer(text, 1, seconds, seconds)
    body[fields.stream] = True
    pieces: list[str] = []
    first = 0.0
    started = time.monotonic()
    for event in _events(url, f"/v2/models/{fields.model}/generate_stream", body, timeout):
        first = first or time.monotonic() - started
        pieces.append(_text_of(event, fields))
        on_text(pieces[-1])
    if not pieces:
        raise ExternalToolError(f"{shown(url)} ended the stream without one event")
    return Answer("".join(pieces), len(pieces), first, time.monotonic() - started)


def _text_of(answer: dict[str, Any], fields: ClientFields) -> str:
    text = answer.get(fields.output)
    if not isinstance(text, str):
        raise ExternalToolError(f"the server's answer has no text in `{fields.output}`")
    return text


def _events(url: str, path: str, body: Any, timeout: float) -> Iterator[dict[str, Any]]:
    """Server-sent events of a generate_stream call."""
    connection = _connect(url, timeout)
    try:
        connection.request(
            "POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        if response.status != 200:
            _checked(response.read(), response.status)
        if "text/event-stream" not in response.headers.get("Content-Type", ""):
            raise ExternalToolError(f"{shown(url)} did not answer with a stream of events")
        rest = b""
        # read1, not readline: the latter takes a connection that was cut between two chunks for the end.
        while piece := response.read1(65536):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    yield _checked(line[5:].strip(), 200)
    except (OSError, http.client.HTTPException) as error:
        raise ExternalToolError(f"the stream from {shown(url)} broke: {error}") from None
    finally:
        connection.close()


def _checked(raw: bytes, status: int) -> dict[str, Any]:
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError):
        answer = {"error": raw[:300].decode("utf-8", "replace")}
    if not isinstance(answer, dict) or status != 200 or "error" in answer:
        message = answer.get("error", answer) if isinstance(answer, dict) else answer
        raise ExternalToolError(f"the server answered {status}: {str(message)[:500]}")
    return answer
