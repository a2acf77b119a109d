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
        tokens: tokens of the text, counted with the given tokenizer; None without one.
        ttft: seconds to the first piece of a stream; None for an answer in one piece, whose first
            token nobody sees.
        tokens_per_second: of a stream, tokens after the first over the time after the first; of a whole
            answer, tokens over all of its time. None when nothing counts the tokens.
    """

    lane: str
    model: str
    answer: Answer
    tokens: int | None
    ttft: float | None
    tokens_per_second: float | None

    def as_dict(self) -> dict[str, object]:
        speed = self.tokens_per_second
        return {
            "lane": self.lane,
            "model": self.model,
            "text": self.answer.text,
            "events": self.answer.events,
            "tokens": self.tokens,
            "ttft_seconds": None if self.ttft is None else round(self.ttft, 4),
            "seconds": round(self.answer.seconds, 4),
            "tokens_per_second": None if speed is None else round(speed, 2),
        }

    def timing(self) -> str:
        """One line for a person."""
        parts = [f"{self.lane} lane"]
        parts.append(f"TTFT {self.ttft:.3f} s" if self.ttft is not None else "TTFT: not streamed")
        if self.tokens_per_second is not None:
            parts.append(f"{self.tokens_per_second:.1f} tokens/s")
        return ", ".join(parts)


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
    tokens = chat.count_tokens(tokenizer, answer.text) if tokenizer is not None else None
    speed = None
    if tokens:
        # Without a first piece to subtract, the whole time counts.
        seconds = answer.seconds - (answer.ttft if stream else 0.0)
        made = tokens - 1 if stream else tokens
        speed = made / seconds if seconds > 0 and made > 0 else None
    ttft = answer.ttft if stream else None
    return Generated(str(lane.name), lane.client.model, answer, tokens, ttft, speed)
