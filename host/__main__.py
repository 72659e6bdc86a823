"""The commands of the console script (colonnade.py), and `python -m host`, which is the same.

A desktop host waits about a second for `serve --stdio`, and starts it many times: the relay is tried before anything
else is imported.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command that the arguments name."""
    if sys.argv[1:2] == ["serve"] and "--stdio" in sys.argv:
        from host import relay

        if (status := relay.run(sys.argv[2:])) is not None:
            sys.exit(status)
    from host.cli import start

    start.main()


if __name__ == "__main__":
    from colonnade import main as checked_main

    checked_main()
