"""Entry point: one place where errors become messages and exit codes."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; never shows a traceback unless ENGINEROOM_DEBUG is set."""
    from engineroom.cli.main import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
