"""`generate`: ask a running server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engineroom.errors import UsageError, Where
from engineroom.lanes import LANES, Lane
from engineroom.pipeline.job import Reporter
from engineroom.runner import chat, client
from engineroom.runner.client import Answer


@dataclass(frozen=True)
class Generated:
    """An answer and who gave it.

    Attributes:
        tokens_per_second: responses a second after the first; a response is one token unless a
            character is spread over several. None for an answer in one piece.
    """

    lane: str
    model: str
    answer: Answer
    tokens_per_second: float | None


def detect_lane(url: str) -> Lane:
    """The lane whose front model, with its field names, the server has.

    Raises:
        UsageError: none. ExternalToolError: no server there.
    """
    for lane in LANES.values():
        inputs = client.model_inputs(url, lane.client.model)
        if {lane.client.prompt, lane.client.max_tokens} <= inputs:
            return lane
    models = ", ".join(lane.client.model for lane in LANES.values())
    raise UsageError(
        f"{client.shown(url)} serves none of {models} with the inputs that engineroom renders"
    )


def generate(
    url: str,
    prompt: str,
    *,
    max_tokens: int = 64,
    stream: bool = False,
    tokenizer: Path | None = None,
    system: str | None = None,
    reporter: Reporter | None = None,
) -> Generated:
    """Ask once and time the answer.

    Args:
        tokenizer: folder whose chat template wraps the prompt; without it the prompt goes raw.
        system: system message, with `tokenizer` only.
    """
    if system and tokenizer is None:
        raise UsageError(
            "a system message needs a chat template",
            where=Where(key="--system"),
            hint="name the tokenizer's folder with --chat",
        )
    lane = detect_lane(url)
    text = prompt
    if tokenizer is not None:
        messages = [{"role": "system", "content": system}] if system else []
        text = chat.apply(tokenizer, [*messages, {"role": "user", "content": prompt}])
    say = reporter.answer if reporter else (lambda piece: None)
    answer = client.generate(url, lane.client, text, max_tokens, stream=stream, on_text=say)
    rest = answer.seconds - answer.ttft
    speed = (answer.events - 1) / rest if stream and answer.events > 1 and rest > 0 else None
    return Generated(str(lane.name), lane.client.model, answer, speed)
