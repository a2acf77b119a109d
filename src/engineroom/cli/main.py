"""The typer app, and the one mapping from exceptions to exit codes."""

from __future__ import annotations

import json
import os
import sys
import traceback

import typer

from engineroom import __version__
from engineroom.cli import (
    build,
    check,
    deploy,
    generate,
    init,
    plan,
    quantize,
    render,
    schema,
    serve,
    up,
)
from engineroom.cli.options import LogFormat, state
from engineroom.errors import EngineroomError
from engineroom.names import ExitCode

# Typer before 0.25 uses click, later ones carry their own copy: the class is found, not imported.
_UsageError: type[Exception] = next(
    cls for cls in typer.BadParameter.__mro__ if cls.__name__ == "ClickException"
)

# Rich help costs 150 ms at every start, and shell completion is not worth an option line.
app = typer.Typer(
    name="engineroom",
    help="From a Hugging Face LLM to a tuned, checked, deployed NVIDIA Triton service.",
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"engineroom {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    log_format: LogFormat = typer.Option(
        LogFormat.TEXT, "--log-format", help="How progress and errors are written to stderr."
    ),
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True),
) -> None:
    state.log_format = log_format


for module in (init, schema, check, plan, quantize, build, render, serve, generate, deploy, up):
    app.command(module.__name__.rsplit(".", 1)[1])(module.command)


def run(argv: list[str]) -> int:
    """Run a command line; returns the exit code of its class of outcome."""
    try:
        result = app(argv, prog_name="engineroom", standalone_mode=False)
    except EngineroomError as error:
        _say(error)
        return int(error.exit_code)
    except typer.Exit as error:
        return int(error.exit_code)
    except _UsageError as error:
        error.show(sys.stderr)  # type: ignore[attr-defined]
        return int(ExitCode.USAGE)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("interrupted", err=True)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader (head, less) went away; nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.OK)
    except Exception as error:
        if os.environ.get("ENGINEROOM_DEBUG"):
            traceback.print_exc()
        _say(
            EngineroomError(
                f"internal error: {type(error).__name__}: {error}",
                hint="this is our fault; please report it with the output of ENGINEROOM_DEBUG=1",
            )
        )
        return int(ExitCode.INTERNAL)
    return result if isinstance(result, int) else int(ExitCode.OK)


def _say(error: EngineroomError) -> None:
    if state.log_format is LogFormat.JSON:
        problems = getattr(error, "problems", [error])
        for problem in problems:
            typer.echo(json.dumps({**problem.as_dict(), "run_id": state.run_id}), err=True)
    else:
        typer.echo(error.render(), err=True)
