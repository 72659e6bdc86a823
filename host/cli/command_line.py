"""The command `colonnade` with all of its commands, and what ends it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

import click

from host.cli.audit import audit
from host.cli.completion import COMPLETE_VARIABLE, complete, completion
from host.cli.config_file import check, schema
from host.cli.confirmations import ask, console
from host.cli.connect import connect, disconnect
from host.cli.definitions import definitions
from host.cli.edit import add, init, remove
from host.cli.endpoint import call, list_entries, prompt, read
from host.cli.exit_codes import DONE, INTERRUPTED, CommandFailed
from host.cli.explain import explain
from host.cli.grants import grants
from host.cli.importing import import_servers
from host.cli.login import credentials, login, logout
from host.cli.serve import serve
from host.cli.servers import disable, enable, logs, reload, restart
from host.cli.status import status

PROGRAM = "colonnade"
ALIASES = {"pins": "definitions"}
"""Names of commands that help does not list."""


class _Commands(click.Group):
    """Commands in the order in which they were added, with aliases."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.commands)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        return super().get_command(context, ALIASES.get(name, name))


def _print_version(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from host.version import VERSION

    print(f"{PROGRAM} {VERSION}")
    context.exit()


EXAMPLES = """\b
Examples:
  colonnade check                     validate ./colonnade.yaml
  colonnade serve                     serve it at http://127.0.0.1:8808/mcp
  colonnade list                      show what clients of the running host see
  colonnade call time__get_current_time '{"timezone": "Europe/Vienna"}'

The documentation is in docs/ of the repository; begin with getting-started.md.
"""


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version."
)
@click.pass_context
def colonnade(context: click.Context) -> int:
    """One MCP endpoint in front of many MCP servers."""
    if context.invoked_subcommand is None:
        print(context.get_help())
    return DONE


@click.command("help")
@click.argument("command", nargs=-1)
@click.pass_context
def show_help(context: click.Context, command: tuple[str, ...]) -> int:
    """Show the help of a command."""
    root = context.find_root()
    if command:
        return run([*command, "--help"])
    print(root.get_help())
    return DONE


for _command in (
    *(serve, check, schema),
    *(init, add, remove),
    *(import_servers, connect, disconnect),
    *(list_entries, call, read, prompt),
    *(status, logs, restart, enable, disable, reload),
    *(login, logout, credentials),
    *(ask, console, definitions, grants, explain, audit),
    *(completion, show_help),
):
    colonnade.add_command(_command)


def run(arguments: Sequence[str]) -> int:
    """Carry out the command that the arguments name; its exit code."""
    if sys.stdout is None or sys.stderr is None:  # started without them: the output goes nowhere
        nowhere = open(os.devnull, "w")  # noqa: SIM115 - as long as the process lives
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    if isinstance(sys.stdout, io.TextIOWrapper):  # texts of servers may have characters that the locale has not
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if instruction := os.environ.get(COMPLETE_VARIABLE):
            return complete(colonnade, PROGRAM, instruction)
        # Not `colonnade.main`: it ends with 1 when the reader of the output has left.
        with colonnade.make_context(PROGRAM, list(arguments)) as context:
            code: int = colonnade.invoke(context)
            return code
    except click.exceptions.Exit as done:
        return done.exit_code
    except CommandFailed as problem:
        print(f"{PROGRAM}: {problem}", file=sys.stderr)
        return problem.exit_code
    except click.ClickException as problem:
        problem.show()
        return problem.exit_code
    except (KeyboardInterrupt, BrokenPipeError, BaseExceptionGroup) as problem:
        from host.errors import first_exception

        cause = first_exception(problem)
        if isinstance(cause, KeyboardInterrupt):
            return INTERRUPTED
        if not isinstance(cause, BrokenPipeError):
            raise
        # The reader of the output has left. Python would report it once more while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
