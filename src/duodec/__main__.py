"""Start the `duodec` program, and let Ctrl-C end it at once while it imports or loads."""

from __future__ import annotations

import atexit
import sys

from duodec.machine.signals import end_quietly, ignore_signals, interrupted_at_once, is_server


def main() -> None:
    """Run the `duodec` program."""
    if is_server(sys.argv[1:]):
        atexit.register(ignore_signals)  # the first to be registered is the last to be called
        end_quietly()
        from duodec.cli.app import main as run

        run()
        return
    with interrupted_at_once():
        from duodec.cli.app import main as run
    run()


if __name__ == "__main__":
    main()
