"""The typer app, and the one mapping from exceptions to exit codes."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

import typer

from engineroom import __version__
from engineroom.cli import (
    artifacts,
    build,
    check,
    deploy,
    doctor,
    explain_log,
    generate,
    init,
    lint,
    matrix,
    migrate,
    plan,
    quantize,
    render,
    schema,
    serve,
    up,
    upgrade,
)
from engineroom.cli.options import LogFormat, state
from engineroom.errors import EngineroomError, UsageError, Where
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


for module in (
    init,
    schema,
    check,
    lint,
    doctor,
    plan,
    quantize,
    build,
    render,
    serve,
    generate,
    deploy,
    up,
    upgrade,
    migrate,
):
    app.command(module.__name__.rsplit(".", 1)[1])(module.command)
app.command("explain-log")(explain_log.command)
app.add_typer(matrix.app, name="matrix")
app.add_typer(artifacts.app, name="artifacts")


class _Signalled(BaseException):
    """TERM or HUP: unwinds like Ctrl-C, so that children are stopped and staged files removed."""

    def __init__(self, number: int) -> None:
        self.number = number


def _raise_signalled(number: int, frame: FrameType | None) -> None:
    raise _Signalled(number)


def _watch_signals() -> None:
    for name in ("SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _raise_signalled)


def run(argv: list[str]) -> int:
    """Run a command line; returns the exit code of its class of outcome."""
    _watch_signals()
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
    except _Signalled as stop:
        return 128 + stop.number
    except (BrokenPipeError, SystemExit):
        # The reader (head, less) went away; nothing is wrong. Typer leaves by `sys.exit` then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.OK)
    except OSError as error:
        # A full disk, a file where a folder should be, a path too long: the user's to mend.
        _say(_of_system(error))
        return int(ExitCode.USAGE)
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


def _of_system(error: OSError) -> UsageError:
    if isinstance(error, FileNotFoundError) and error.filename is None:
        try:
            Path.cwd()
        except FileNotFoundError:
            return UsageError(
                "the working directory is not there any more: it was removed or replaced, so no path "
                "relative to it means anything",
                hint="`cd` to a folder that exists (or `cd .` when it was made anew), and run again",
            )
    return UsageError(f"{error.strerror or error}", where=Where(_text(error.filename)))


def _text(name: object) -> str | None:
    return None if name is None else str(name)


def _say(error: EngineroomError) -> None:
    if state.log_format is LogFormat.JSON:
        problems = getattr(error, "problems", [error])
        for problem in problems:
            typer.echo(json.dumps({**problem.as_dict(), "run_id": state.run_id}), err=True)
    else:
        typer.echo(error.render(), err=True)
