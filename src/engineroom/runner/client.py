"""A small client of Triton's HTTP generate endpoints; loopback or not, one request at a time."""

from __future__ import annotations

import http.client
import json
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


def _connect(url: str, timeout: float) -> http.client.HTTPConnection:
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"`{url}` is no http address", where=Where(key="--url"))
    cls = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return cls(parts.hostname, parts.port, timeout=timeout)


def _exchange(url: str, method: str, path: str, body: Any, timeout: float) -> tuple[int, bytes]:
    connection = _connect(url, timeout)
    try:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise ExternalToolError(
            f"no answer from {url}: {error}",
            hint="is the server running? `engineroom serve` starts one",
        ) from None
    finally:
        connection.close()


def model_metadata(url: str, model: str, timeout: float = 10) -> dict[str, Any] | None:
    """Triton's metadata of a model, or None when the server has no such model."""
    status, raw = _exchange(url, "GET", f"/v2/models/{model}", None, timeout)
    return dict(json.loads(raw)) if status == 200 else None


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
        text = str(_checked(raw, status).get(fields.output, ""))
        on_text(text)
        return Answer(text, 1, seconds, seconds)
    body[fields.stream] = True
    pieces: list[str] = []
    first = 0.0
    started = time.monotonic()
    for event in _events(url, f"/v2/models/{fields.model}/generate_stream", body, timeout):
        first = first or time.monotonic() - started
        piece = str(event.get(fields.output, ""))
        pieces.append(piece)
        on_text(piece)
    return Answer("".join(pieces), len(pieces), first, time.monotonic() - started)


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
        for line in response:
            if line.startswith(b"data:"):
                yield _checked(line[5:].strip(), 200)
    except (OSError, http.client.HTTPException) as error:
        raise ExternalToolError(f"the stream from {url} broke: {error}") from None
    finally:
        connection.close()


def _checked(raw: bytes, status: int) -> dict[str, Any]:
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = {"error": raw[:300].decode("utf-8", "replace")}
    if not isinstance(answer, dict) or status != 200 or "error" in answer:
        message = answer.get("error", answer) if isinstance(answer, dict) else answer
        raise ExternalToolError(f"the server answered {status}: {message}")
    return answer
