"""`engineroom generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engineroom.cli.options import Format, OutputFormat


def command(
    prompt: Annotated[str, typer.Argument(help="The prompt, or the user's message with --chat.")],
    url: Annotated[
        str, typer.Option("--url", help="HTTP address of the server.")
    ] = "http://127.0.0.1:8000",
    max_tokens: Annotated[int, typer.Option(min=1)] = 64,
    stream: Annotated[bool, typer.Option(help="Show the answer as it is made.")] = True,
    chat: Annotated[
        Path | None,
        typer.Option("--chat", help="Tokenizer folder; its chat template wraps the prompt."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message, with --chat.")] = None,
    fmt: Format = OutputFormat.TABLE,
) -> None:
    """Ask a running server; reports time to first token and tokens a second."""
    from engineroom.cli.console import show
    from engineroom.pipeline import Reporter, generate

    class Echo(Reporter):
        def answer(self, text: str) -> None:
            typer.echo(text, nl=False)

    reporter = Echo() if fmt is OutputFormat.TABLE else Reporter()
    result = generate(
        url,
        prompt,
        max_tokens=max_tokens,
        stream=stream,
        tokenizer=chat,
        system=system,
        reporter=reporter,
    )
    if fmt is OutputFormat.JSON:
        show(fmt, {"schema_version": 1, **result.as_dict()}, (), ())
    else:
        typer.echo(f"\n[{result.timing()}]", err=True)
