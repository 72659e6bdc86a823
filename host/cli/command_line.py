"""The command `colonnade` with all of its commands, and what ends it."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from host.cli.common import COMPLETE_VARIABLE
from host.cli.exit_codes import DONE, INTERRUPTED, CommandFailed

PROGRAM = "colonnade"
ALIASES = {"pins": "definitions"}
"""Names of commands that help does not list."""
COMMANDS = {
    "serve": "serve.serve",
    "check": "config_file.check",
    "schema": "config_file.schema",
    "init": "desktop.edit.init",
    "add": "desktop.edit.add",
    "remove": "desktop.edit.remove",
    "import": "desktop.importing.import_servers",
    "connect": "desktop.edit.connect",
    "disconnect": "desktop.edit.disconnect",
    "list": "endpoint.list_entries",
    "call": "endpoint.call",
    "read": "endpoint.read",
    "prompt": "endpoint.prompt",
    "status": "status.status",
    "stop": "stop.stop",
    "logs": "servers.logs",
    "restart": "servers.restart",
    "enable": "servers.enable",
    "disable": "servers.disable",
    "install": "servers.install",
    "reload": "servers.reload",
    "login": "login.login",
    "logout": "login.logout",
    "credentials": "login.credentials",
    "ask": "confirmations.ask",
    "console": "confirmations.console",
    "definitions": "definitions.definitions",
    "grants": "grants.grants",
    "sandbox": "sandbox.sandbox",
    "explain": "explain.explain",
    "audit": "audit.audit",
    "history": "history.history",
    "migrate": "migrate.migrate",
    "completion": "completion.completion",
    "help": "command_line.show_help",
}
"""The place of each command in this folder, in the order of the help."""


class _Commands(click.Group):
    """Commands whose files are imported when they are needed: `serve` opens its port before all but its own."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        place = COMMANDS.get(ALIASES.get(name, name))
        if place is None:
            return None
        module, _, function = place.rpartition(".")
        command: click.Command = getattr(import_module(f"host.cli.{module}"), function)
        return command

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(context, arguments)
        except click.exceptions.NoSuchCommand as problem:  # it suggests names from `commands`, where there are none
            raise click.exceptions.NoSuchCommand(problem.command_name, possibilities=COMMANDS, ctx=context) from None


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


def run(arguments: Sequence[str]) -> int:
    """Carry out the command that the arguments name; its exit code."""
    if sys.stdout is None or sys.stderr is None:  # started without them: the output goes nowhere
        nowhere = open(os.devnull, "w")  # noqa: SIM115 - as long as the process lives
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    if isinstance(sys.stdout, io.TextIOWrapper):  # texts of servers may have characters that the locale has not
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if instruction := os.environ.get(COMPLETE_VARIABLE):
            from host.cli.completion import complete

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
