"""The exit codes of all commands, and the exception that ends a command with one. docs/operations.md lists them."""

DONE = 0
"""The command succeeded. For `explain`: the verdict is allow."""
FAILED = 1
"""The action is not possible, or its result is a failure."""
WRONG = 2
"""The configuration, the arguments or the state directory are invalid, or the port is in use; nothing was started.
click uses the same code for usage errors."""
UNREACHED = 3
"""There is no endpoint or no running host to ask."""
VERDICT_ASK = 4
"""For `explain`: the verdict is ask."""
VERDICT_DENY = 5
"""For `explain`: the verdict is deny, or the definition is held."""
INTERRUPTED = 130
"""Interrupted from the keyboard."""


class CommandFailed(Exception):
    """Ends a command with this sentence on standard error."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code
