"""Entry point: one place where errors become messages and exit codes."""

from __future__ import annotations

import sys


def _repeat(unraisable: sys.UnraisableHookArgs) -> None:
    """An interrupt that lands in a callback (an import lock's, a finaliser's) is sent again.

    Python prints such an exception and goes on, so that a Ctrl-C would be lost behind a traceback.
    """
    number = getattr(unraisable.exc_value, "number", None)
    if isinstance(unraisable.exc_value, KeyboardInterrupt) or isinstance(number, int):
        import os
        import signal
        import threading

        # From a thread and a little later: sent at once, it would be raised in this hook and lost too.
        again = threading.Timer(0.005, os.kill, (os.getpid(), number or signal.SIGINT))
        again.daemon = True
        again.start()
        return
    sys.__unraisablehook__(unraisable)


def main() -> None:
    """Run the command line; never shows a traceback unless ENGINEROOM_DEBUG is set."""
    sys.unraisablehook = _repeat
    try:
        from engineroom.cli.main import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # before `run` could take over
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
