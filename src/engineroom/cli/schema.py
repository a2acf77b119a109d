"""`engineroom schema`."""

from __future__ import annotations

import json

import typer


def command() -> None:
    """Print the JSON Schema of the spec file."""
    from engineroom.spec.load import json_schema

    typer.echo(json.dumps(json_schema(), indent=2, ensure_ascii=False))
