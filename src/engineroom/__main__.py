"""Entry point: one place where errors become messages and exit codes."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; never shows a traceback unless ENGINEROOM_DEBUG is set."""
    try:
        from engineroom.cli.main import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # before `run` could take over
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
