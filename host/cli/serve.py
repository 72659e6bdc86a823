"""The command `serve`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from errno import EADDRINUSE
from typing import TYPE_CHECKING

import click

from host.cli.common import (
    FILE,
    Selection,
    count_servers,
    find_config,
    load_config,
    log_level_option,
    pass_selection,
    state_option,
)
from host.cli.exit_codes import DONE, WRONG, CommandFailed
from host.cli.http_servers import choose_plain_server, choose_servers, read_certificate
from host.non_blocking import NonBlockingStream

if TYPE_CHECKING:
    from config import Config
    from host.storage.directory import State


@click.command()
@click.argument("file", type=FILE, required=False)
@click.option("--stdio", is_flag=True, help="Serve one client on standard input and output.")
@click.option("--host", "ip", metavar="ADDRESS", help="Listen at this IP address instead of that of the file.")
@click.option("--port", type=click.IntRange(0, 65535), help="Listen at this port; 0 is a free one.")
@log_level_option("warning")
@state_option
@pass_selection
def serve(selection: Selection, file: str | None, stdio: bool, ip: str | None, port: int | None, log_level: str) -> int:
    """Serve all servers of a configuration behind one endpoint.

    FILE is a configuration (YAML), or the mcpServers file of a desktop host. Without FILE: ./colonnade.yaml, or else
    ~/.config/colonnade/colonnade.yaml.
    """
    if stdio and not (ip is None and port is None):
        raise click.UsageError("--host and --port do not go with --stdio.", click.get_current_context())
    config = _at(load_config(file or find_config(), may_ask=not stdio), ip, port)
    state = selection.open_state()
    bound = None
    certificate = None
    if not stdio:
        from host.wire.port import bind

        certificate = read_certificate(config)
        try:
            bound = bind(*config.listen.address)
        except OSError as error:
            holder = _holder(state, config.listen.address.port) if error.errno == EADDRINUSE else ""
            why = f"{error.strerror}{holder}; choose another port (--port, listen.address)"
            raise CommandFailed(why, WRONG) from error
    # With --stdio, states and the log both go to standard error.
    out = NonBlockingStream(sys.stderr if bound is None else sys.stdout)
    try:
        url = ""
        if bound is not None:
            from host.version import VERSION

            host = config.listen.address.host
            address = f"[{host}]" if ":" in host else host
            url = f"{config.listen.scheme}://{address}:{bound.getsockname()[1]}{config.listen.path}"
            out.write(f"Colonnade {VERSION} serves {count_servers(config)} at {url}\n")
        # The port listens; the rest of the program is imported only now.
        import trio

        from host import app
        from host.cli.log import StatusLines, open_log
        from host.cli.terminal import Terminal
        from host.errors import first_exception
        from host.heap import spare_collections

        spare_collections()
        # On a terminal, and with --stdio, the lines of states and those of the log are read together.
        shown_beside = bound is None or (out.isatty() and sys.stderr.isatty())
        journal = open_log(log_level, without=StatusLines.SHOWN_EVENTS if shown_beside else ())
        journal.subscribe(StatusLines(Terminal(out)).note)
        say = _to_terminal(out)
        problem = None
        try:
            if bound is None:
                trio.run(app.serve_over_stdio, config, state, journal, say, choose_plain_server(config.listen))
            else:
                trio.run(app.serve, config, state, bound, url, journal, say, choose_servers(config.listen, certificate))
        except* app.START_ERRORS as group:
            problem = first_exception(group)
        if problem is not None:
            raise CommandFailed(str(problem), WRONG)
        return DONE
    finally:
        out.close()


def _at(config: Config, ip: str | None, port: int | None) -> Config:
    """The configuration with another address.

    Raises:
        CommandFailed: that is no address, or one beyond loopback without access tokens.
    """
    from config import Address, is_loopback

    listen = config.listen
    if ip is None and port is None:
        return config
    if ip is not None:
        ip = "127.0.0.1" if ip == "localhost" else ip.strip("[]")
        try:
            beyond_loopback = not is_loopback(ip)
        except ValueError:
            raise CommandFailed("--host: expected an IP address or localhost", WRONG) from None
        if beyond_loopback and listen.auth is None:
            raise CommandFailed("--host: an address beyond loopback needs access tokens (listen.auth)", WRONG)
    address = Address(listen.address.host if ip is None else ip, listen.address.port if port is None else port)
    return replace(config, listen=replace(listen, address=address), given_address=address)


def _to_terminal(out: NonBlockingStream) -> Callable[[str], object] | None:
    """Write lines that only the person who started the host may read; None if standard error is no terminal: then it
    may be a file that others read."""
    if not sys.stderr.isatty():
        return None
    if out.isatty():
        return lambda line: out.write(f"{line}\n")
    return lambda line: print(line, file=sys.stderr, flush=True)


def _holder(state: State, port: int) -> str:
    """Words about the running host of this user that listens on the port; none if there is no such host."""
    from host.cli.admin_client import find_hosts
    from host.sanitize import visible
    from host.url import Url

    for host in find_hosts(state.path):
        if host.endpoint and Url.parse(host.endpoint).connect_port == port:
            return f" by your host of {visible(host.config)} (process {host.pid})"
    return ""
