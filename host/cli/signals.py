"""Signal handlers while the program is loaded: they end the process at once.

A handler that raises would not do: an exception in the middle of an import can be swallowed by the code that is being
imported, and then the signal is lost (measured), or it ends the process with a traceback. The handlers hold until the
host listens for signals itself (app.py), or until a command has imported what it needs (`end_loading`).
"""

from __future__ import annotations

import atexit
import os
import signal

from host.cli.exit_codes import DONE, INTERRUPTED

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes long to load, too
    from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_YOUNG = 10_000
"""Objects more than at the last collection of garbage from which on there is another: some commands import more."""


def end_on_stop_signals() -> None:
    """For `serve`: end with status 0 when a signal says stop while there is nothing to be stopped: before the host
    listens for signals and after it has stopped everything."""
    atexit.register(_ignore_stop_signals)  # the first to be registered runs last
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, frame: os._exit(DONE))
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # what `nohup` says is left as it is
        signal.signal(signal.SIGHUP, lambda number, frame: None)


def end_on_interrupt() -> None:
    """For the other commands: end with status 130 on SIGINT, until `end_loading`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_interrupted)


def end_loading() -> None:
    """Have SIGINT raise KeyboardInterrupt from now on, so that a command which has imported everything can clean up;
    and collect garbage."""
    if signal.getsignal(signal.SIGINT) is _exit_interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    import gc  # nothing is imported before the handlers are set

    if not gc.isenabled():
        gc.set_threshold(_YOUNG)
        gc.enable()


def _ignore_stop_signals() -> None:
    # While Python takes itself down it gives handled signals their default action back: a second SIGTERM would turn
    # status 0 into death by a signal.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _exit_interrupted(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)
