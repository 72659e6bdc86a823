"""The console script `colonnade`: signal handlers and hidden memory, before the rest of the program is loaded.

Loading takes half a second, and many seconds on a busy machine. So this file imports nothing but the signal handlers
(signals.py) before these are set.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys

from host.cli.signals import end_on_interrupt, end_on_stop_signals

_SET_PDEATHSIG, _SET_DUMPABLE = 1, 4


def main() -> None:
    """Run the command that the arguments name."""
    if sys.argv[1:2] == ["serve"]:
        end_on_stop_signals()
    else:
        end_on_interrupt()
    import gc  # nothing is imported before the handlers are set

    # Nearly all that is loaded stays. `heap.spare_collections` and `signals.end_loading` enable it again.
    gc.disable()
    atexit.register(gc.freeze)  # at its end Python would look at all that is loaded several times, for 120 ms
    hide_memory()
    from host.cli import command_line

    sys.exit(command_line.run(sys.argv[1:]))


def hide_memory() -> None:
    """Let no process of the same user read the environment and memory of this one or attach to it (Linux only).

    A server runs as the same user and would find every secret of the host in /proc. Without a core dump and a profiler
    nothing is lost but these: COLONNADE_DEBUGGABLE=1 leaves them possible.
    """
    if sys.platform == "linux" and os.environ.get("COLONNADE_DEBUGGABLE") != "1":
        import ctypes  # takes longer than all that comes before the signal handlers

        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends, also while it is stopped (Linux only)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
