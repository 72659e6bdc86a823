"""The commands that use an endpoint as a client does: `list`, `call`, `read`, `prompt`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from host.cli.common import (
    FILE,
    AnyCallable,
    Selection,
    config_option,
    default_config,
    find_config,
    json_object,
    load_config,
    log_level_option,
    pass_selection,
    read_header,
    read_url,
    state_option,
    users_config,
)
from host.cli.exit_codes import DONE, FAILED, UNREACHED, WRONG, CommandFailed
from host.cli.names import PROMPT, RESOURCE, SERVER, TOOL, view_option
from host.cli.signals import end_loading

if TYPE_CHECKING:
    from host.cli.admin_client import RunningHost
    from host.cli.common import LeastLevels
    from host.cli.endpoint_client import Target
    from host.storage.directory import State


def _endpoint_options(command: AnyCallable) -> AnyCallable:
    options: list[Callable[[AnyCallable], AnyCallable]] = [
        config_option,
        click.option(
            "--running", metavar="FILE", type=FILE, hidden=True, help="The same as --config, of a former version."
        ),
        click.option("--own", is_flag=True, help="Use a host of its own, started for this command."),
        click.option("--url", metavar="URL", type=read_url, help="Use the endpoint at this URL."),
        click.option(
            "--header",
            "headers",
            metavar="'NAME: VALUE'",
            multiple=True,
            type=read_header,
            help="Send this header to the endpoint at the URL; may be repeated.",
        ),
        view_option("Use what this view has."),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        log_level_option("error"),
        state_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


_files_option = click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    callback=lambda context, parameter, folder: folder or Path(),  # the current one need not be writable
    help="Write images, audio and other binary content into this folder; default: the current one.",
)


@click.command("list")
@click.argument("server", required=False, type=SERVER)
@click.option("--clients", is_flag=True, help="List the clients of your running hosts instead.")
@_endpoint_options
@pass_selection
def list_entries(selection: Selection, /, server: str | None, clients: bool, as_json: bool, **where: Any) -> int:
    """List servers with their states, and all entries.

    With SERVER: its entries alone, with whole descriptions and their arguments, and the entries that clients do not
    see. Without --config, --own and --url: those of ./colonnade.yaml, or else ~/.config/colonnade/colonnade.yaml. A
    running host of it is used; if there is none, the only one that runs, and if none does, one is started for this,
    but not of a file in the current folder.

    Tokens are an estimate: the bytes of the definitions that clients see, divided by 4.
    """
    _check_options(selection, **where)
    from host.cli import listing
    from host.cli.desktop.host_file import cut_names
    from host.cli.endpoint_client import fetch_listing
    from host.cli.terminal import Terminal

    if clients:
        if server or selection.config or any(where[each] for each in ("running", "own", "url", "headers", "view")):
            text = "--clients lists those of your running hosts: only --json and --state go with it."
            raise click.UsageError(text, click.get_current_context())
        return _list_clients(selection, as_json=as_json)
    target = _target(selection, **where)
    found = fetch_listing(target, server)
    if server is not None:
        found = found.of_server(server)
    if as_json:
        print(json.dumps(listing.as_json(found), indent=2))
    else:
        terminal = Terminal(sys.stdout)
        listing.show(terminal, found, in_full=server is not None)
        for text in () if target.source is None else cut_names(target.source, found.tool_names):
            print(terminal.paragraph("note: ", text, indent=6, faint=True))
    return DONE


def _list_clients(selection: Selection, *, as_json: bool) -> int:
    from host.cli import listing
    from host.cli.terminal import Terminal

    targets = selection.scope().running()
    hosts = [{"config": each.config, "pid": each.pid, **each.get("clients")} for each in targets]
    if as_json:
        print(json.dumps(hosts, indent=2))
    else:
        listing.show_clients(Terminal(sys.stdout), hosts)
    return DONE


@click.command()
@click.argument("name", type=TOOL)
@click.argument("arguments", nargs=-1)
@_files_option
@_endpoint_options
@pass_selection
def call(
    selection: Selection, /, name: str, arguments: tuple[str, ...], folder: Path, as_json: bool, **where: Any
) -> int:
    """Call a tool.

    NAME is the name that `colonnade list` shows, ARGUMENTS a JSON object. Without --config, --own and --url, the same
    host is used as by `list`. Images, audio and other binary content are written into new files; --json prints the
    result as it is.
    """
    _check_name(name, *arguments)
    json_object(*arguments, before=f"colonnade call {shlex.quote(name)}")
    from msgspec import Raw

    # The text, not the object: the tool gets the arguments as they were written.
    params = {"arguments": Raw("".join(arguments).encode() or b"{}")}
    return _request(selection, "tool", name, params, folder, as_json=as_json, where=where)


@click.command()
@click.argument("uri", type=RESOURCE)
@_files_option
@_endpoint_options
@pass_selection
def read(selection: Selection, /, uri: str, folder: Path, as_json: bool, **where: Any) -> int:
    """Read a resource.

    URI is one that `colonnade list` shows, or one that a template describes. Without --config, --own and --url, the
    same host is used as by `list`. Content that is no text is written into new files; --json prints the result as it
    is.
    """
    return _request(selection, "resource", uri, {}, folder, as_json=as_json, where=where)


@click.command()
@click.argument("name", type=PROMPT)
@click.argument("arguments", nargs=-1)
@_files_option
@_endpoint_options
@pass_selection
def prompt(
    selection: Selection, /, name: str, arguments: tuple[str, ...], folder: Path, as_json: bool, **where: Any
) -> int:
    """Get a prompt.

    NAME is the name that `colonnade list` shows, ARGUMENTS a JSON object whose values are texts. Without --config,
    --own and --url, the same host is used as by `list`. Content that is no text is written into new files; --json
    prints the result as it is.
    """
    _check_name(name, *arguments)
    given = json_object(*arguments, before=f"colonnade prompt {shlex.quote(name)}")
    return _request(selection, "prompt", name, {"arguments": given}, folder, as_json=as_json, where=where)


def _check_name(name: str, *words: str) -> None:
    """Raises CommandFailed if the name and the first word are a server and its entry."""
    from host.cli.suggest import name_of_words

    if "__" not in name and words and (meant := name_of_words(name, words[0])):
        raise CommandFailed(f"expected the name as clients see it; did you mean {meant}?", WRONG)


def _request(
    selection: Selection,
    kind: str,
    name: str,
    params: Mapping[str, object],
    folder: Path,
    *,
    as_json: bool,
    where: Mapping[str, Any],
) -> int:
    """Send a request that reaches one entry, and print its result. The exit code is that of a failure if the tool says
    so, or if a part of the result could not be written."""
    _check_options(selection, **where)
    from host.cli.endpoint_client import request_entry
    from host.cli.results import ResultPrinter
    from host.protocol.methods import PROMPTS_GET, RESOURCES_READ, TOOLS_CALL

    printer = ResultPrinter(folder, name)
    method, show = {
        "tool": (TOOLS_CALL, printer.show_tool_result),
        "resource": (RESOURCES_READ, printer.show_contents),
        "prompt": (PROMPTS_GET, printer.show_prompt),
    }[kind]
    result = request_entry(_target(selection, **where), method, name, params)
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        show(result)
    has_failed = kind == "tool" and result.get("isError") is True
    return FAILED if has_failed or not printer.is_whole else DONE


Headers = tuple[tuple[str, str], ...]


def _check_options(
    selection: Selection, *, running: str | None, own: bool, url: str | None, headers: Headers, **_others: object
) -> None:
    if running is not None:
        print("colonnade: --running FILE is --config FILE by now, and will be removed", file=sys.stderr)
    given = {"--config": selection.config, "--running": running, "--own": own or None, "--url": url}
    chosen = [option for option, value in given.items() if value is not None]
    if len(chosen) > 1 and chosen != ["--config", "--own"]:
        raise click.UsageError(f"{' and '.join(chosen)} do not go together.", click.get_current_context())
    if headers and (own or selection.config is not None):
        raise click.UsageError(
            f"--header does not go with {chosen[0]}: no token is needed.", click.get_current_context()
        )


def _running_hosts(state: State | None, config: str | Path | None, default: str | None) -> list[RunningHost]:
    """The running hosts of one configuration that this command can be a client of: of the one that is named, or else of
    the default file, or else of the only one, which is said. None if no host runs, and a file is named or there is a
    default one.

    Raises:
        CommandFailed: there is none of this, or there are hosts of several configurations.
    """
    from host.cli.admin_client import find_hosts
    from host.sanitize import visible

    hosts = [each for each in find_hosts(state.path) if not each.problem] if state is not None else []
    if config is not None:
        hosts = [each for each in hosts if each.config == os.path.realpath(config)]
    usable = [each for each in hosts if not each.stdio]
    if config is None and default is not None:
        if of_default := [each for each in usable if each.config == os.path.realpath(default)]:
            return of_default
        if len({each.config for each in usable}) == 1:
            text = f"this is {visible(usable[0].config)}, which runs; {visible(default)} does not (--config)"
            print(f"colonnade: {text}", file=sys.stderr)
    if len(configs := list(dict.fromkeys(each.config for each in usable))) > 1:
        known = "; ".join(map(visible, configs))
        raise CommandFailed(f"several hosts run; say which one with --config FILE or --url URL: {known}")
    if not usable and config is None and default is None:
        found = "no host of yours runs (colonnade serve)"
        if hosts:
            found = f"the running host of {visible(hosts[0].config)} serves its one client only (serve --stdio --own)"
        raise CommandFailed(f"{found}; --config FILE starts one for this command, --url names another", UNREACHED)
    return usable


def _target(
    selection: Selection,
    running: str | None,
    own: bool,
    url: str | None,
    headers: Headers,
    view: str,
    log_level: LeastLevels,
) -> Target:
    from host.addresses import VIEW_MARK
    from host.cli.endpoint_client import Target
    from host.storage.directory import state_directory

    end_loading()
    command = str(click.get_current_context().info_name)
    # The endpoint may be another user's: no state directory is made for it.
    state = selection.open_state() if state_directory(selection.state).is_dir() else None
    hosts: list[RunningHost] = []
    if url is None and not own:
        named = running or selection.config
        default = None if named or headers else default_config()
        hosts = _running_hosts(state, named, default)
        if running is not None and not hosts:
            raise CommandFailed(f"no host of {running} runs; --config FILE starts one for this command", UNREACHED)
        # For one version, and only for people: scripts may take each line for an error.
        if hosts and selection.config is not None and sys.stderr.isatty():
            text = f"{selection.config} is served by process {hosts[-1].pid}, which is used; --own starts another one"
            print(f"colonnade: {text}, as --config did", file=sys.stderr)
        if headers and not (url := next((each.endpoint for each in hosts if each.endpoint), None)):
            raise CommandFailed(f"--header is for a URL, and the host of {hosts[0].config} has none", WRONG)
    if url is not None or hosts:
        if url is not None and view:
            url = f"{url.rstrip('/')}/{VIEW_MARK}{view}"
        return Target(command, url, dict(headers), hosts, None, state, view, log_level)
    file = str(selection.config or find_config("name its FILE with --config"))
    if not own and selection.config is None:
        if os.path.realpath(file) != os.path.realpath(users_config()):
            # A folder may be somebody else's, such as a repository that was cloned: its programs start when asked for.
            text = f"no host of ./{file} runs (colonnade serve); --config {file} starts its servers for this command"
            raise CommandFailed(text, UNREACHED)
        print(f"colonnade: no host of {file} runs, so one is started for this command", file=sys.stderr)
    config = load_config(file)
    return Target(command, None, {}, (), config, selection.open_state(), view, log_level)
