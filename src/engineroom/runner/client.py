"""A small client of Triton servers, over HTTP or gRPC; loopback or not, one request at a time."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from engineroom.errors import ExternalToolError, UsageError, Where
from engineroom.names import StrEnum
from engineroom.runner.client_answer import Answer, Collector
from engineroom.runner.client_grpc import GrpcTransport
from engineroom.runner.client_http import HttpTransport, shown
from engineroom.runner.client_model import ModelInfo
from engineroom.types import ClientFields

__all__ = ["Answer", "Transport", "connect", "generate", "model_inputs", "send", "shown"]


class ProtocolName(StrEnum):
    HTTP = "http"
    GRPC = "grpc"


class Transport(Protocol):
    """How a request travels; both implementations answer alike."""

    @property
    def shown(self) -> str: ...

    def model(self, name: str, timeout: float = 10) -> ModelInfo | None: ...

    def config(self, name: str, timeout: float = 10) -> dict[str, Any]: ...

    def ask(self, model: str, body: Mapping[str, Any], *, ident: str, stream: bool) -> Any: ...


def connect(url: str, protocol: str = "http", timeout: float = 600) -> Transport:
    """The transport of a protocol; no connection is made yet.

    Raises:
        UsageError: no such protocol, or no address.
    """
    if protocol == ProtocolName.HTTP:
        return HttpTransport(url, timeout)
    if protocol == ProtocolName.GRPC:
        return GrpcTransport(url, timeout)
    raise UsageError(
        f"no protocol `{protocol}`", where=Where(key="--protocol"), hint="one of http, grpc"
    )


def model_inputs(url: str, model: str, timeout: float = 10) -> frozenset[str]:
    """Names of a model's inputs by Triton's metadata; empty when the server has no such model.

    Raises:
        ExternalToolError: no server, not Triton, or an error of its own.
    """
    info = HttpTransport(url).model(model, timeout)
    return frozenset(info.inputs) if info else frozenset()


def send(
    transport: Transport,
    model: str,
    body: Mapping[str, Any],
    collector: Collector,
    *,
    stream: bool,
    on_text: Callable[[str], None] = lambda text: None,
) -> Answer:
    """Send one request and add up its responses.

    A request id is always sent: the ensemble's streams need one to put split characters together.
    Leaving (an exception, Ctrl-C) closes the stream, which cancels the request on the server.

    Raises:
        ExternalToolError: no connection, no response, or the server answered with an error.
    """
    started = time.monotonic()
    first = 0.0
    events = transport.ask(model, body, ident=uuid.uuid4().hex, stream=stream)
    with contextlib.closing(events):
        for event in events:
            first = first or time.monotonic() - started
            piece = collector.add(event)
            if piece or collector.events == 1:
                on_text(piece)
    if not collector.events:
        raise ExternalToolError(f"{transport.shown} ended the stream without one event")
    return collector.answer(first, time.monotonic() - started)


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
    protocol: str = "http",
) -> Answer:
    """Ask once, with the lane's own field names; nothing is looked up or checked beforehand.

    Args:
        extra: further inputs by name, sent as they are.

    Raises:
        ExternalToolError: no connection, or the server answered with an error.
    """
    body: dict[str, Any] = {fields.prompt: prompt}
    if fields.parameters_json is None:
        body[fields.max_tokens] = max_tokens
    else:
        body[fields.parameters_json] = json.dumps({fields.max_tokens: max_tokens})
    body |= extra or {}
    if stream:
        body[fields.stream] = True
    transport = connect(url, protocol, timeout)
    collector = Collector(fields.output)
    return send(transport, fields.model, body, collector, stream=stream, on_text=on_text)
