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
from host.cli.exit_codes import UNREACHED, CommandFailed
from host.cli.signals import allow_interrupts

if TYPE_CHECKING:
    from host.cli.endpoint_client import Target
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

    Without --config and --url: those of the running host.
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

    NAME is the name that `colonnade list` shows, ARGUMENTS a JSON object. Without --config and --url, the running host
    is used.
    """
    json_object(arguments)
    _check_options(config, url, headers)
    from host.cli.endpoint_client import call_tool

    # The text, not the object: the tool gets the arguments as they were written.
    return call_tool(_target(selection, config, url, headers, log_level), name, arguments, as_json=as_json)


def _check_options(config: str | None, url: str | None, headers: tuple[tuple[str, str], ...]) -> None:
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

    endpoints = (
        {} if state is None else {each.endpoint: each.config for each in find_hosts(state.path) if each.endpoint}
    )
    if not endpoints:
        text = "no host of yours runs (colonnade serve); --config FILE starts one for this command, --url names another"
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
