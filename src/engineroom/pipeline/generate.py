"""`generate`: ask a running server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engineroom.catalog import Catalog
from engineroom.catalog.request_fields import RequestFields, load_request_fields
from engineroom.errors import UsageError, Where
from engineroom.lanes import LANES, Lane
from engineroom.pipeline.job import Reporter
from engineroom.runner import chat, client
from engineroom.runner.client import Answer
from engineroom.runner.client_answer import Collector
from engineroom.runner.client_model import ModelInfo
from engineroom.runner.client_request import Ask, Guide, build
from engineroom.types import ClientFields

DEFAULT_URLS = {"http": "http://127.0.0.1:8000", "grpc": "127.0.0.1:8001"}
Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Generated:
    """An answer and who gave it.

    Attributes:
        tokens: tokens of the text: as the server counts them, where it was asked for usage, else
            counted with the given tokenizer; None without either.
        ttft: seconds to the first piece of a stream; None for an answer in one piece, whose first
            token nobody sees.
        tokens_per_second: of a stream, tokens after the first over the time after the first; of a whole
            answer, tokens over all of its time. None when nothing counts the tokens.
        usage: ``prompt_tokens`` and ``completion_tokens``, where the server said them.
    """

    lane: str
    model: str
    answer: Answer
    tokens: int | None
    ttft: float | None
    tokens_per_second: float | None
    protocol: str = "http"
    usage: Mapping[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        speed = self.tokens_per_second
        return {
            "lane": self.lane,
            "model": self.model,
            "protocol": self.protocol,
            "text": self.answer.text,
            "texts": list(self.answer.texts),
            "events": self.answer.events,
            "tokens": self.tokens,
            "ttft_seconds": None if self.ttft is None else round(self.ttft, 4),
            "seconds": round(self.answer.seconds, 4),
            "tokens_per_second": None if speed is None else round(speed, 2),
            "usage": dict(self.usage),
            "outputs": dict(self.answer.outputs),
        }

    def timing(self) -> str:
        """One line for a person."""
        parts = [f"{self.lane} lane"]
        parts.append(f"TTFT {self.ttft:.3f} s" if self.ttft is not None else "TTFT: not streamed")
        if self.tokens_per_second is not None:
            parts.append(f"{self.tokens_per_second:.1f} tokens/s")
        return ", ".join(parts)


def find_front(transport: client.Transport, model: str | None = None) -> tuple[Lane, ModelInfo]:
    """The lane and the model to ask: of that name, else the first front that the server has.

    A lane is known by the field names of its fronts, which differ; the name of a model is not enough.

    Raises:
        UsageError: no such model, or none with these fields. ExternalToolError: no server there.
    """
    for lane in LANES.values():
        fields = lane.client
        wanted = {fields.prompt, fields.parameters_json or fields.max_tokens}
        for name in (model,) if model else fields.models:
            info = transport.model(name)
            if info is None and model:
                raise UsageError(
                    f"{transport.shown} has no model `{model}`", where=Where(key="--model")
                )
            if info is not None and wanted <= set(info.inputs):
                return lane, info
    names = model or ", ".join(name for lane in LANES.values() for name in lane.client.models)
    raise UsageError(
        f"{transport.shown} serves none of {names} with the inputs that engineroom renders"
    )


def generate(
    url: str | None,
    prompt: str | None = None,
    *,
    max_tokens: int = 64,
    stream: bool = False,
    tokenizer: Path | None = None,
    system: str | None = None,
    reporter: Reporter | None = None,
    messages: Messages | None = None,
    options: Mapping[str, Any] | None = None,
    guide: Guide | None = None,
    sets: Mapping[str, str] | None = None,
    model: str | None = None,
    protocol: str = "http",
    timeout: float = 600,
    catalog: Path | None = None,
) -> Generated:
    """Ask once and time the answer.

    Args:
        url: None: the protocol's port on this machine.
        prompt: text that goes as it is, or the user's message with `tokenizer`.
        messages: chat messages, {role, content} each; instead of a prompt, or before it.
        tokenizer: folder whose chat template makes a prompt of messages where the server's front
            does not do it; counts tokens too.
        system: system message in front of the others.
        options: by row id of `deploy/support/request_fields.yaml`: ``temperature``, ``stop`` …
        sets: further inputs by the model's own names, as text.
        model: Triton model to ask instead of the lane's first front.

    Raises:
        UsageError: nothing or too much to ask, a name or a value that the model does not take.
        ExternalToolError: no server, or its own error.
    """
    conversation = _conversation(prompt, messages, system, tokenizer is not None)
    transport = client.connect(url or DEFAULT_URLS.get(protocol, ""), protocol, timeout)
    lane, info = find_front(transport, model)
    fields = lane.client
    text = prompt if conversation is None else None
    if conversation is not None and not _templated_there(
        transport, info, fields.messages, tokenizer
    ):
        text = _templated_here(info, conversation, tokenizer)
    table = load_request_fields(Catalog(catalog))
    asked = {"max_tokens": max_tokens, **(options or {})}
    ask = Ask(
        prompt=text,
        messages=conversation if text is None else None,
        stream=stream,
        options=asked,
        guide=guide,
        sets=sets or {},
    )
    body = build(info, fields, table, ask)
    say = reporter.answer if reporter else (lambda piece: None)
    # Several sequences may come as several responses, which the endpoint for one answer refuses.
    several = (asked.get("n") or 1) > 1
    answer = client.send(
        transport, info.name, body, _collector(table, fields, body),
        stream=stream or several, on_text=say,
    )  # fmt: skip
    usage = _usage(table, fields.dialect, answer)
    tokens = usage.get("completion_tokens")
    if tokens is None and tokenizer is not None:
        tokens = chat.count_tokens(tokenizer, answer.text)
    speed = _speed(tokens, answer, stream)
    ttft = answer.ttft if stream else None
    return Generated(str(lane.name), info.name, answer, tokens, ttft, speed, protocol, usage)


def _conversation(
    prompt: str | None, messages: Messages | None, system: str | None, chat_folder: bool
) -> list[Mapping[str, str]] | None:
    """Messages to send, or None for a raw prompt."""
    if prompt is None and not messages:
        raise UsageError(
            "nothing to ask", where=Where(key="PROMPT"),
            hint="write a prompt, - for standard input, or --message user='...'",
        )  # fmt: skip
    if messages is None and not chat_folder:
        if system:
            raise UsageError(
                "a system message needs a chat template",
                where=Where(key="--system"),
                hint="name the tokenizer's folder with --chat, or send the prompt with --message user=…",
            )
        return None
    first = [{"role": "system", "content": system}] if system else []
    last = [{"role": "user", "content": prompt}] if prompt is not None else []
    return [*first, *(messages or ()), *last]


def _templated_there(
    transport: client.Transport, info: ModelInfo, name: str | None, tokenizer: Path | None
) -> bool:
    """Whether the server's front applies the chat template itself."""
    if name is None or name not in info.inputs:
        return False
    if tokenizer is None:
        return True  # if it is switched off, the server says which switch
    known = info.config if info.config is not None else transport.config(info.name)
    return not ModelInfo(info.name, info.inputs, config=known).switched_off("chat")


def _templated_here(info: ModelInfo, messages: Messages, tokenizer: Path | None) -> str:
    if tokenizer is None:
        raise UsageError(
            f"`{info.name}` has no input `messages`, so the template must be applied here",
            where=Where(key="--message"),
            hint="name the tokenizer's folder with --chat",
        )
    return chat.apply(tokenizer, [dict(message) for message in messages])


def _collector(table: RequestFields, fields: ClientFields, body: Mapping[str, Any]) -> Collector:
    names = {
        how: frozenset(
            n for row in table.outputs if row.streamed == how for n in row.names(fields.dialect)
        )
        for how in ("join", "sum")
    }
    switch = table.names("stream_cumulative", fields.dialect)
    cumulative = any(body.get(name) is True for name in switch)
    return Collector(fields.output, names["join"], names["sum"], cumulative=cumulative)


def _usage(table: RequestFields, dialect: str, answer: Answer) -> dict[str, int]:
    found = {}
    for row in table.outputs:
        if row.id in ("prompt_tokens", "completion_tokens"):
            for name in row.names(dialect):
                value = answer.outputs.get(name)
                total = sum(value) if isinstance(value, list) else value
                if isinstance(total, int):
                    found[row.id] = total
    return found


def _speed(tokens: int | None, answer: Answer, stream: bool) -> float | None:
    if not tokens:
        return None
    # Without a first piece to subtract, the whole time counts.
    seconds = answer.seconds - (answer.ttft if stream else 0.0)
    made = tokens - 1 if stream else tokens
    return made / seconds if seconds > 0 and made > 0 else None
