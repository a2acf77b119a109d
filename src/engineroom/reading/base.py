"""How evidence is validated: facts are closed, other people's files are excerpts."""

from __future__ import annotations

from typing import Annotated, Any

from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

MAX_INT = 2**63 - 1

# A size of zero or below is a broken file; the ceiling keeps arithmetic and messages short.
Size = Annotated[int, Field(ge=1, le=MAX_INT, strict=True)]
Count = Annotated[int, Field(ge=0, le=MAX_INT, strict=True)]
Id = Annotated[int, Field(ge=-(2**63), le=MAX_INT, strict=True)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=20_000_000)]
ReleaseText = Annotated[
    str, BeforeValidator(lambda value: getattr(value, "text", value)), Field(max_length=100)
]
"""A release: YAML reads 26.10 as a number, whose text is kept by our reader."""


def version_of(text: str | None) -> Version | None:
    """A PEP 440 version; None for no text, or text that is none."""
    try:
        return Version(text) if text else None
    except InvalidVersion:
        return None


def _pep440(text: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion:
        raise ValueError(f"`{text}` is not a version; write e.g. 1.2.1") from None


PackageVersion = Annotated[ReleaseText, AfterValidator(_pep440)]
"""A version that ranges are tested against (PEP 440)."""


class Fact(BaseModel):
    """Something a user states: an unknown key is a typing error."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Excerpt(BaseModel):
    """A file that another tool wrote: keys that no rule reads are left alone."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


def as_list(value: Any) -> Any:
    """Hugging Face files write one id or a list of ids; rules see a list."""
    return value if value is None or isinstance(value, list | tuple) else [value]


def token_text(value: Any) -> Any:
    """A special token is a string, or an AddedToken object that holds one as `content`."""
    return value.get("content") if isinstance(value, dict) else value
