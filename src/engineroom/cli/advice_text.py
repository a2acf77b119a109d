"""`plan`'s advice as plain lines: the verdict, what stands against each lane, and the reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engineroom.types.advice import Advice, LaneAnswer

_BUILD = {
    "needed": "an engine build is needed: no other lane carries this",
    "only-known": "an engine build is the only way that is known; another lane may do",
    "not-worth": "an engine build is not worth its complexity here",
    "impossible": "an engine build is impossible here",
    "unknown": "whether an engine build works here is unknown",
}


def advice_lines(advice: Sequence[Advice]) -> Iterator[str]:
    """Reasons that several targets share are written once, below the first of them."""
    seen: set[str] = set()
    for item in advice:
        use = (
            f"use {item.choice}"
            if item.choice
            else f"not known; try {item.provisional} first"
            if item.provisional
            else "no lane"
        )
        yield f"advice ({item.target}): {use}; {_BUILD[str(item.engine_build)]}"
        yield "  lanes: " + ", ".join(f"{a.lane} {a.support}" for a in item.lanes)
        for answer in item.lanes:
            yield from _against(answer)
        for note in item.reasons:
            if note.text not in seen:
                seen.add(note.text)
                yield f"  {note.code}: {note.text} [{note.source}]"


def _against(answer: LaneAnswer) -> Iterator[str]:
    for fact in answer.against:
        place = f" (`{fact.asked}`)" if fact.asked else ""
        yield f"    {answer.lane}, {fact.subject}{place}: {fact.text} [{fact.source}]"
    for fact in answer.mend:
        yield f"    {answer.lane}, to mend first (`{fact.asked}`): {fact.text}"
