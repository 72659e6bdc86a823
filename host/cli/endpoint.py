"""The commands that use an endpoint as a client does: `list`, `call`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

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
from host.cli.signals import allow_interrupts

if TYPE_CHECKING:
    from host.cli.endpoint_client import Target


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


@click.command("list")
@_endpoint_options
@pass_selection
def list_entries(
    selection: Selection,
    config: str | None,
    url: str | None,
    headers: tuple[tuple[str, str], ...],
    as_json: bool,
    log_level: str,
) -> int:
    """List servers with their states, and all entries.

    Either --config or --url is required.
    """
    _check_options(config, url, headers)
    from host.cli.endpoint_client import show_list

    return show_list(_target(selection, config, url, headers, log_level), as_json=as_json)


@click.command()
@click.argument("name")
@click.argument("arguments", default="{}")
@_endpoint_options
@pass_selection
def call(
    selection: Selection,
    name: str,
    arguments: str,
    config: str | None,
    url: str | None,
    headers: tuple[tuple[str, str], ...],
    as_json: bool,
    log_level: str,
) -> int:
    """Call a tool.

    NAME is the name that `colonnade list` shows, ARGUMENTS a JSON object. Either --config or --url is required.
    """
    json_object(arguments)
    _check_options(config, url, headers)
    from host.cli.endpoint_client import call_tool

    # The text, not the object: the tool gets the arguments as they were written.
    return call_tool(_target(selection, config, url, headers, log_level), name, arguments, as_json=as_json)


def _check_options(config: str | None, url: str | None, headers: tuple[tuple[str, str], ...]) -> None:
    if (config is None) == (url is None):
        raise click.UsageError("Expected one of --config FILE and --url URL.", click.get_current_context())
    if headers and url is None:
        raise click.UsageError(
            "--header goes with --url; for a host from --config, set headers in its file.", click.get_current_context()
        )


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
    return Target(url, dict(headers), None, state, log_level)
