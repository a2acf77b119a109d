"""Triton's HTTP generate endpoints with the standard library; loopback or not."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

from engineroom.errors import ExternalToolError, UsageError, Where
from engineroom.runner.client_model import ModelInfo, model_info

_OWN = ("id", "model_name", "model_version", "sequence_id", "sequence_start", "sequence_end")
_MAX_MESSAGE = 500


def shown(url: str) -> str:
    """The address without a user and password, for messages."""
    return re.sub(r"//[^/@]*@", "//", url)


class HttpTransport:
    """One server by its HTTP address; a connection a call.

    Args:
        timeout: seconds to wait for a connection, and between two pieces of an answer.
    """

    def __init__(self, url: str, timeout: float = 600) -> None:
        self.url, self.timeout = url, timeout

    @property
    def shown(self) -> str:
        return shown(self.url)

    def model(self, name: str, timeout: float = 10) -> ModelInfo | None:
        """A model's metadata; None when the server has no such model.

        Raises:
            ExternalToolError: no server, not Triton, or an error of its own.
        """
        status, raw = self._exchange("GET", f"/v2/models/{quote(name)}", None, timeout)
        # Triton answers 400 for an unknown model, 404 for a known one of an unknown version.
        if status in (400, 404):
            return None
        return model_info(name, _checked(raw, status), self.shown)

    def config(self, name: str, timeout: float = 10) -> dict[str, Any]:
        """A model's configuration as JSON."""
        status, raw = self._exchange("GET", f"/v2/models/{quote(name)}/config", None, timeout)
        return _checked(raw, status)

    def ask(
        self, model: str, body: Mapping[str, Any], *, ident: str, stream: bool
    ) -> Iterator[dict[str, Any]]:
        """Responses, each {output: value}; closing the iterator closes the connection.

        Raises:
            ExternalToolError: no connection, a broken stream, or the server's own error.
        """
        path, data = f"/v2/models/{quote(model)}", {"id": ident, **body}
        if stream:
            yield from self._events(f"{path}/generate_stream", data)
        else:
            status, raw = self._exchange("POST", f"{path}/generate", data, self.timeout)
            yield _outputs(_checked(raw, status))

    def _events(self, path: str, body: Any) -> Iterator[dict[str, Any]]:
        """Server-sent events of a generate_stream call."""
        connection = self._connect(self.timeout)
        with contextlib.ExitStack() as stack:
            stack.callback(connection.close)
            try:
                connection.request("POST", path, _json(body), {"Content-Type": "application/json"})
                response = stack.enter_context(contextlib.closing(connection.getresponse()))
                if response.status != 200:
                    _checked(response.read(), response.status)
                if "text/event-stream" not in response.headers.get("Content-Type", ""):
                    raise ExternalToolError(f"{self.shown} did not answer with a stream of events")
                rest = b""
                # read1, not readline: the latter takes a connection cut between two chunks for the end.
                while piece := response.read1(65536):
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        if line.startswith(b"data:"):
                            yield _outputs(_checked(line[5:].strip(), 200))
            except (OSError, http.client.HTTPException) as error:
                raise ExternalToolError(f"the stream from {self.shown} broke: {error}") from None

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        """A connection, not yet open.

        Raises:
            UsageError: no http(s) address, or a host or port that cannot be.
        """
        try:
            parts = urlsplit(self.url if "//" in self.url else f"http://{self.url}")
            host, port = parts.hostname, parts.port
            if parts.scheme not in ("http", "https") or not host or re.search(r"\s", host):
                raise ValueError("no http address")
            host.encode("idna")
        except (ValueError, UnicodeError) as error:
            raise UsageError(
                f"`{self.shown}` is no address: {error}",
                where=Where(key="--url"),
                hint="write e.g. http://127.0.0.1:8000",
            ) from None
        cls = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return cls(host, port, timeout=timeout)

    def _exchange(self, method: str, path: str, body: Any, timeout: float) -> tuple[int, bytes]:
        connection = self._connect(timeout)
        try:
            data = None if body is None else _json(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        except TimeoutError:
            raise ExternalToolError(
                f"no answer from {self.shown} within {timeout:g} s", hint="raise --timeout"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise ExternalToolError(
                f"no answer from {self.shown}: {error}",
                hint="is the server running? `engineroom serve` starts one",
            ) from None
        finally:
            connection.close()


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()


def _outputs(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in _OWN}


def _checked(raw: bytes, status: int) -> dict[str, Any]:
    """The JSON object of an answer.

    Raises:
        ExternalToolError: another status than 200, an `error` field, or no JSON object.
    """
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError):
        answer = {"error": raw[:300].decode("utf-8", "replace")}
    if not isinstance(answer, dict) or status != 200 or "error" in answer:
        message = answer.get("error", answer) if isinstance(answer, dict) else answer
        raise ExternalToolError(f"the server answered {status}: {str(message)[:_MAX_MESSAGE]}")
    return answer
