"""What every section of `engineroom.yaml` is made of."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator


class Closed(BaseModel):
    """No extra keys, no mutation, no silent coercion between strings and numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_enum_values=False)


def enum_of(cls: Any) -> Any:
    """Accept an enum's value in strict mode, as YAML gives strings."""

    def convert(value: Any) -> Any:
        if isinstance(value, str) and not isinstance(value, cls):
            allowed = [str(item) for item in cls]
            if value not in allowed:
                raise ValueError(f"{value!r} is not one of {', '.join(allowed)}")
            return cls(value)
        return value

    return BeforeValidator(convert)


def _as_float(value: Any) -> Any:
    return (
        float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
    )


Number = Annotated[float, BeforeValidator(_as_float)]
Text = Annotated[str, Field(min_length=1, max_length=4096)]
# Container references have no blanks; the characters are those of the OCI reference grammar.
ImageRef = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$", max_length=512)]
# TensorRT-LLM, Triton and Kubernetes keep sizes in signed 32-bit integers.
MAX_INT = 2**31 - 1
PositiveInt = Annotated[int, Field(ge=1, le=MAX_INT)]


def no_nul(value: str) -> str:
    if "\x00" in value:
        raise ValueError("contains a NUL character, which no path or configuration can hold")
    return value


def lists_as_tuples(*fields: str) -> Any:
    """A validator: YAML gives lists, and a frozen model holds tuples."""

    def convert(cls: type, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    return field_validator(*fields, mode="before")(classmethod(convert))
