"""`engineroom generate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from engineroom.cli.options import CatalogDir, Format, OutputFormat, finite
from engineroom.names import StrEnum


class ProtocolOption(StrEnum):
    HTTP = "http"
    GRPC = "grpc"


def _option(name: str, help: str, **facts: Any) -> Any:
    return typer.Option(name, help=help, **facts)


def command(
    prompt: Annotated[
        str | None,
        typer.Argument(help="Text as it is, or the user's message with --chat; - reads stdin."),
    ] = None,
    prompt_file: Annotated[Path | None, _option("--prompt-file", "The prompt from a file.")] = None,
    message: Annotated[
        list[str] | None,
        _option("--message", "A chat message; repeatable.", metavar="ROLE=TEXT"),
    ] = None,
    messages: Annotated[
        Path | None, _option("--messages", "JSON list of {role, content}; - reads stdin.")
    ] = None,
    chat: Annotated[
        Path | None,
        _option("--chat", "Tokenizer folder: its chat template, where the server applies none."),
    ] = None,
    system: Annotated[str | None, _option("--system", "System message of a chat.")] = None,
    url: Annotated[
        str | None,
        _option("--url", "The server (default: 127.0.0.1, port 8000 or, gRPC, 8001)."),
    ] = None,
    protocol: Annotated[
        ProtocolOption, _option("--protocol", "http or grpc.")
    ] = ProtocolOption.HTTP,
    model: Annotated[
        str | None, _option("--model", "Triton model to ask (default: found by its inputs).")
    ] = None,
    stream: Annotated[bool, typer.Option(help="Show the answer as it is made.")] = True,
    timeout: Annotated[
        float, _option("--timeout", "Seconds without an answer.", min=0.1, callback=finite)
    ] = 600.0,
    max_tokens: Annotated[int, typer.Option(min=1)] = 64,
    min_tokens: Annotated[int | None, typer.Option()] = None,
    temperature: Annotated[float | None, typer.Option()] = None,
    top_k: Annotated[int | None, typer.Option()] = None,
    top_p: Annotated[float | None, typer.Option()] = None,
    seed: Annotated[int | None, typer.Option()] = None,
    n: Annotated[int | None, _option("--n", "Sequences of one prompt.", min=1)] = None,
    best_of: Annotated[int | None, typer.Option(min=1)] = None,
    beam_width: Annotated[int | None, typer.Option(min=1)] = None,
    repetition_penalty: Annotated[float | None, typer.Option()] = None,
    presence_penalty: Annotated[float | None, typer.Option()] = None,
    frequency_penalty: Annotated[float | None, typer.Option()] = None,
    length_penalty: Annotated[float | None, typer.Option()] = None,
    stop: Annotated[list[str] | None, _option("--stop", "Text that ends it; repeatable.")] = None,
    bad: Annotated[list[str] | None, _option("--bad", "Text never made; repeatable.")] = None,
    json_schema: Annotated[
        Path | None, _option("--json-schema", "Schema file of the answer.")
    ] = None,
    regex: Annotated[str | None, _option("--regex", "Pattern of the answer.")] = None,
    grammar: Annotated[Path | None, _option("--grammar", "EBNF grammar file.")] = None,
    lora: Annotated[str | None, _option("--lora", "Adapter, by name or number.")] = None,
    usage: Annotated[bool, _option("--usage", "Ask for token counts.")] = False,
    log_probs: Annotated[bool, _option("--log-probs", "Ask for log probabilities.")] = False,
    perf_metrics: Annotated[
        bool, _option("--perf-metrics", "Ask for times and KV blocks.")
    ] = False,
    finish_reason: Annotated[bool, _option("--finish-reason", "Ask why it ended.")] = False,
    sets: Annotated[
        list[str] | None,
        _option("--set", "Any input by the model's own name; repeatable.", metavar="NAME=VALUE"),
    ] = None,
    fmt: Format = OutputFormat.TABLE,
    catalog: CatalogDir = None,
) -> None:
    """Ask a running server; reports time to first token and tokens a second."""
    from engineroom.cli import generate_input as given
    from engineroom.cli.console import show
    from engineroom.pipeline import Reporter, generate

    class Echo(Reporter):
        def answer(self, text: str) -> None:
            typer.echo(text, nl=False)

    reporter = Echo() if fmt is OutputFormat.TABLE else Reporter()
    options = {
        "min_tokens": min_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p,
        "seed": seed, "n": n, "best_of": best_of, "beam_width": beam_width, "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty, "frequency_penalty": frequency_penalty,
        "length_penalty": length_penalty, "stop": tuple(stop or ()), "bad": tuple(bad or ()),
        "lora": lora, "return_prompt_tokens": usage, "return_completion_tokens": usage,
        "return_log_probs": log_probs, "return_perf": perf_metrics,
        "return_finish_reason": finish_reason,
    }  # fmt: skip
    result = generate(
        url,
        given.prompt(prompt, prompt_file),
        max_tokens=max_tokens,
        stream=stream,
        tokenizer=chat,
        system=system,
        reporter=reporter,
        messages=given.messages(message, messages),
        options=options,
        guide=given.guide(json_schema, regex, grammar),
        sets=given.assignments(sets),
        model=model,
        protocol=str(protocol),
        timeout=timeout,
        catalog=catalog,
    )
    if fmt is OutputFormat.JSON:
        show(fmt, {"schema_version": 1, **result.as_dict()}, (), ())
        return
    for at, text in enumerate(result.answer.texts[1:], 2):
        typer.echo(f"\n--- {at} ---\n{text}", nl=False)
    typer.echo(f"\n[{result.timing()}]", err=True)
