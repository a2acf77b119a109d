"""How a request to a lane is written; field names differ between lanes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ClientFields:
    """How a request to this lane's front model is written.

    Attributes:
        model: Triton model that clients call.
        max_tokens, stream, output: field names in the generate JSON.
        parts: what a streamed event carries: ``delta``.
    """

    model: str
    prompt: str
    max_tokens: str
    stream: str
    output: str
    parts: str
