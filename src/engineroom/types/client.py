"""How a request to a lane is written; field names differ between lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ClientFields:
    """How a request to this lane's front model is written.

    The names of sampling options and of further outputs are data: the column `dialect` of
    `deploy/support/request_fields.yaml`.

    Attributes:
        model: Triton model that clients call; the lane's first choice.
        prompt, max_tokens, stream, output: field names in the generate JSON.
        parts: what a streamed event carries: ``delta``.
        dialect: column of the table of field names: ``engine``, ``llmapi`` or ``vllm``.
        fronts: models that clients may call, by their name in `serving.fronts`, in order of
            preference; empty means `model` alone.
        messages: input that takes chat messages, where the front declares it.
        parameters_json: input that takes the sampling parameters as one JSON object (vLLM); then
            `max_tokens` and the other sampling options are keys of that object.
    """

    model: str
    prompt: str
    max_tokens: str
    stream: str
    output: str
    parts: str
    dialect: str = ""
    fronts: Mapping[str, str] = field(default_factory=dict)
    messages: str | None = "messages"
    parameters_json: str | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """Models to look for on a server, the preferred one first."""
        return tuple(self.fronts.values()) or (self.model,)

    def front(self, wanted: Sequence[str]) -> str:
        """The model that clients of a repository call: the first of its spec's `serving.fronts`."""
        return next((self.fronts[name] for name in wanted if name in self.fronts), self.model)
