"""The command `colonnade`. A module for each group of commands, with what they need of the rest of the program imported
in the commands themselves: help and completion load none of it. `start.py` comes first."""

from host.cli.start import main

__all__ = ["main"]
