"""The commands that use an endpoint as a client does: `list`, `call`, `read`, `prompt`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from host.cli.common import (
    FILE,
    AnyCallable,
    HeaderType,
    Selection,
    UrlType,
    json_object,
    load_config,
    log_level_option,
    pass_selection,
    state_option,
)
from host.cli.exit_codes import DONE, FAILED, UNREACHED, CommandFailed
from host.cli.names import PROMPT, RESOURCE, SERVER, TOOL
from host.cli.signals import allow_interrupts

if TYPE_CHECKING:
    from host.cli.endpoint_client import Target
    from host.cli.results import ResultPrinter
    from host.storage.directory import State


def _endpoint_options(command: AnyCallable) -> AnyCallable:
    options: list[Callable[[AnyCallable], AnyCallable]] = [
        click.option(
            "--config", metavar="FILE", type=FILE, help="Start a host from this configuration for the command."
        ),
        click.option("--url", metavar="URL", type=UrlType(), help="Use the endpoint at this URL."),
        click.option(
            "--header",
            "headers",
            metavar="'NAME: VALUE'",
            multiple=True,
            type=HeaderType(),
            help="Send this header to the endpoint at --url; may be repeated.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        log_level_option("error"),
        state_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _files_option(command: AnyCallable) -> AnyCallable:
    return click.option(
        "-o",
        "--output",
        "folder",
        metavar="DIR",
        type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
        callback=lambda context, parameter, folder: folder or Path(),  # the current one need not be writable
        help="Write images, audio and other binary content into this folder; default: the current one.",
    )(command)


@click.command("list")
@click.argument("server", required=False, type=SERVER)
@_endpoint_options
@pass_selection
def list_entries(selection: Selection, /, server: str | None, as_json: bool, **where: Any) -> int:
    """List servers with their states, and all entries.

    With SERVER: its entries alone, with whole descriptions and their arguments, and the entries that clients do not
    see. Without --config and --url: those of the running host.

    Tokens are an estimate: the bytes of the definitions that clients see, divided by 4.
    """
    _check_options(**where)
    from host.cli import listing
    from host.cli.endpoint_client import fetch_listing
    from host.cli.terminal import Terminal

    found = fetch_listing(_target(selection, **where), server)
    if server is not None:
        found = found.of_server(server)
    if as_json:
        print(json.dumps(listing.as_json(found), indent=2))
    else:
        listing.show(Terminal(sys.stdout), found, in_full=server is not None)
    return DONE


@click.command()
@click.argument("name", type=TOOL)
@click.argument("arguments", default="{}")
@_files_option
@_endpoint_options
@pass_selection
def call(selection: Selection, /, name: str, arguments: str, folder: Path, as_json: bool, **where: Any) -> int:
    """Call a tool.

    NAME is the name that `colonnade list` shows, ARGUMENTS a JSON object. Without --config and --url, the running host
    is used. Images, audio and other binary content are written into new files; --json prints the result as it is.
    """
    json_object(arguments)
    _check_options(**where)
    from msgspec import Raw

    from host.cli.endpoint_client import request_entry
    from host.cli.results import ResultPrinter
    from host.protocol.methods import TOOLS_CALL

    # The text, not the object: the tool gets the arguments as they were written.
    params = {"arguments": Raw(arguments.encode())}
    result = request_entry(_target(selection, **where), TOOLS_CALL, name, params)
    printer = ResultPrinter(folder, name)
    code = _show(result, as_json, printer, printer.show_tool_result)
    return FAILED if result.get("isError") is True else code


@click.command()
@click.argument("uri", type=RESOURCE)
@_files_option
@_endpoint_options
@pass_selection
def read(selection: Selection, /, uri: str, folder: Path, as_json: bool, **where: Any) -> int:
    """Read a resource.

    URI is one that `colonnade list` shows, or one that a template describes. Without --config and --url, the running
    host is used. Content that is no text is written into new files; --json prints the result as it is.
    """
    _check_options(**where)
    from host.cli.endpoint_client import request_entry
    from host.cli.results import ResultPrinter
    from host.protocol.methods import RESOURCES_READ

    result = request_entry(_target(selection, **where), RESOURCES_READ, uri, {})
    printer = ResultPrinter(folder, uri)
    return _show(result, as_json, printer, printer.show_contents)


@click.command()
@click.argument("name", type=PROMPT)
@click.argument("arguments", default="{}")
@_files_option
@_endpoint_options
@pass_selection
def prompt(selection: Selection, /, name: str, arguments: str, folder: Path, as_json: bool, **where: Any) -> int:
    """Get a prompt.

    NAME is the name that `colonnade list` shows, ARGUMENTS a JSON object whose values are texts. Without --config and
    --url, the running host is used. Content that is no text is written into new files; --json prints the result as it
    is.
    """
    given = json_object(arguments)
    _check_options(**where)
    from host.cli.endpoint_client import request_entry
    from host.cli.results import ResultPrinter
    from host.protocol.methods import PROMPTS_GET

    result = request_entry(_target(selection, **where), PROMPTS_GET, name, {"arguments": given})
    printer = ResultPrinter(folder, name)
    return _show(result, as_json, printer, printer.show_prompt)


def _show(
    result: Mapping[str, Any], as_json: bool, printer: ResultPrinter, show: Callable[[Mapping[str, Any]], None]
) -> int:
    """Print a result; the exit code is that of a failure if a part of it could not be written."""
    if as_json:
        print(json.dumps(result, indent=2))
        return DONE
    show(result)
    return DONE if printer.is_whole else FAILED


def _check_options(config: str | None, url: str | None, headers: tuple[tuple[str, str], ...], log_level: str) -> None:
    if config is not None and url is not None:
        raise click.UsageError("--config and --url do not go together.", click.get_current_context())
    if headers and config is not None:
        raise click.UsageError(
            "--header does not go with --config: such a host needs no token.", click.get_current_context()
        )


def _running_endpoint(state: State | None) -> str:
    """The URL of the only running host that has one.

    Raises:
        CommandFailed: none runs, or several do.
    """
    from host.cli.admin_client import find_hosts

    hosts = [each for each in find_hosts(state.path) if not each.problem] if state is not None else []
    endpoints = {each.endpoint: each.config for each in hosts if each.endpoint}
    if not endpoints:
        found = "no host of yours runs (colonnade serve)"
        if hosts:
            found = f"the running host of {hosts[0].config} serves its one client only (serve --stdio)"
        text = f"{found}; --config FILE starts one for this command, --url names another"
        raise CommandFailed(text, UNREACHED)
    if len(endpoints) > 1:
        known = "; ".join(f"{url} ({config})" for url, config in endpoints.items())
        raise CommandFailed(f"several hosts run; say which one with --url: {known}")
    return next(iter(endpoints))


def _target(
    selection: Selection, config: str | None, url: str | None, headers: tuple[tuple[str, str], ...], log_level: str
) -> Target:
    from host.cli.endpoint_client import Target
    from host.storage.directory import state_directory

    allow_interrupts()
    if config is not None:
        return Target(None, {}, load_config(config), selection.open_state(), log_level)
    # The endpoint may be another user's: no state directory is made for it.
    state = selection.open_state() if state_directory(selection.state).is_dir() else None
    if url is None:
        url = _running_endpoint(state)
    return Target(url, dict(headers), None, state, log_level)
