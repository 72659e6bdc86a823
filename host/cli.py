"""The console script `colonnade`: what must hold before the rest of the program is loaded.

Loading takes half a second, and many seconds on a busy machine. So this file imports nothing but what it needs to set
the signal handlers that hold until the host listens for signals itself, sets them, and hides the memory of the process.
A handler that raises would not do: an exception in the middle of an import can be swallowed by the code that is being
imported, and then the signal is lost (measured), or it ends the process with a traceback.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes long to load, too
    from types import FrameType

DONE, INTERRUPTED = 0, 130
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_SET_PDEATHSIG, _SET_DUMPABLE = 1, 4


def main() -> None:
    """Run the command that the arguments name."""
    if sys.argv[1:2] == ["serve"]:
        _prepare_serving()
    elif signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    hide_memory()
    from host import command_line

    if signal.getsignal(signal.SIGINT) is _interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command_line.main()


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


def _prepare_serving() -> None:
    """End the process at once, with status 0, when a signal says stop while there is nothing to be stopped: before the
    host listens for signals (app.py) and after it has stopped everything."""
    atexit.register(_ignore_stop_signals)  # the first to be registered runs last
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, frame: os._exit(DONE))
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # what `nohup` says is left as it is
        signal.signal(signal.SIGHUP, lambda number, frame: None)


def _ignore_stop_signals() -> None:
    # While Python takes itself down it gives handled signals their default action back: a second SIGTERM would turn
    # status 0 into death by a signal.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _interrupted(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)
