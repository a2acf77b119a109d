"""From a server's responses to one answer: texts of each sequence, and the other outputs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engineroom.errors import ExternalToolError

_INDEX = "sequence_index"


@dataclass(frozen=True)
class Answer:
    """Text and timings of one request; seconds.

    Attributes:
        text: of the first sequence.
        events: responses received; one a token or more in a stream, 1 otherwise.
        ttft: time to the first response.
        texts: of every sequence (`n`, beams), the first included.
        outputs: further outputs by the model's names. Lists of a stream's responses are joined; of
            single values the last one counts.
    """

    text: str
    events: int
    ttft: float
    seconds: float
    texts: tuple[str, ...] = ()
    outputs: Mapping[str, Any] = field(default_factory=dict)


class Collector:
    """Adds up responses.

    Args:
        output: name of the text output.
        lists: outputs that carry one value a token, joined over the responses of a stream.
        sums: outputs that count what is in their own response, added up.
        cumulative: each response has all of the text so far, not what is new.
    """

    def __init__(
        self,
        output: str,
        lists: frozenset[str] = frozenset(),
        sums: frozenset[str] = frozenset(),
        *,
        cumulative: bool = False,
    ) -> None:
        self.output, self.lists, self.sums = output, lists, sums
        self.cumulative = cumulative
        self.texts: dict[int, str] = {}
        self.outputs: dict[str, Any] = {}
        self.events = 0

    def add(self, response: Mapping[str, Any]) -> str:
        """Takes a response; returns the piece of the first sequence's text, maybe empty.

        Raises:
            ExternalToolError: no text in it.
        """
        self.events += 1
        value = response.get(self.output)
        pieces = value if isinstance(value, list) else [value]
        if not pieces or not all(isinstance(piece, str) for piece in pieces):
            raise ExternalToolError(f"the server's answer has no text in `{self.output}`")
        first = _sequence(response) if len(pieces) == 1 else 0
        shown = ""
        for at, piece in enumerate(pieces, first):
            known = self.texts.get(at, "")
            text = piece if self.cumulative else known + piece
            self.texts[at] = text
            if at == 0:
                shown = text[len(known) :]
        for name, other in response.items():
            if name != self.output:
                self._other(name, other)
        return shown

    def _other(self, name: str, value: Any) -> None:
        known = self.outputs.get(name)
        if name in self.lists:
            more = value if isinstance(value, list) else [value]
            self.outputs[name] = [*(known or []), *more]
        elif name in self.sums and known is not None:
            self.outputs[name] = _sum(known, value)
        else:
            self.outputs[name] = value

    def answer(self, ttft: float, seconds: float) -> Answer:
        texts = tuple(self.texts[at] for at in sorted(self.texts))
        return Answer(texts[0], self.events, ttft, seconds, texts, dict(self.outputs))


def _sequence(response: Mapping[str, Any]) -> int:
    """Which sequence a response is of, where the model says so."""
    index = response.get(_INDEX)
    return index if isinstance(index, int) and index > 0 else 0


def _sum(known: Any, value: Any) -> Any:
    if isinstance(known, list) and isinstance(value, list) and len(known) == len(value):
        return [a + b for a, b in zip(known, value)]
    if isinstance(known, int | float) and isinstance(value, int | float):
        return known + value
    return value
