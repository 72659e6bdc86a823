"""The command `serve`."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from errno import EADDRINUSE, EINVAL
from functools import partial
from typing import TYPE_CHECKING

import click

from host.cli.common import (
    FILE,
    Selection,
    count_servers,
    find_config,
    load_config,
    log_level_option,
    own_endpoint,
    pass_selection,
    state_option,
)
from host.cli.endpoint_certificate import read_certificate
from host.cli.exit_codes import DONE, WRONG, CommandFailed
from host.cli.names import view_option
from host.non_blocking import NonBlockingStream

if TYPE_CHECKING:
    import socket

    from config import Address, Config, Listen
    from host.storage.directory import State


@click.command()
@click.argument("file", type=FILE, required=False)
@click.option("--stdio", is_flag=True, help="Serve one client on standard input and output, from the one host of FILE.")
@click.option("--own", is_flag=True, help="With --stdio: serve it from a host of its own, which ends with it.")
@view_option("With --stdio: serve what this view has. It is a convenience: who starts the command can leave it out.")
@click.option("--daemon", is_flag=True, hidden=True, help="Be the host of FILE that serve --stdio starts.")
@click.option("--host", "ip", metavar="ADDRESS", help="Listen at this IP address instead of that of the file.")
@click.option("--port", type=click.IntRange(0, 65535), help="Listen at this port; 0 is a free one.")
@log_level_option("warning")
@state_option
@pass_selection
def serve(
    selection: Selection,
    file: str | None,
    stdio: bool,
    own: bool,
    view: str,
    daemon: bool,
    ip: str | None,
    port: int | None,
    log_level: str,
) -> int:
    """Serve all servers of a configuration behind one endpoint.

    FILE is a configuration (YAML), or the mcpServers file of a desktop host. Without FILE: ./colonnade.yaml, or else
    ~/.config/colonnade/colonnade.yaml.
    """
    if (stdio or daemon) and not (ip is None and port is None):
        raise click.UsageError("--host and --port do not go with --stdio.", click.get_current_context())
    if (own or view) and not stdio:
        raise click.UsageError(f"{'--own' if own else '--view'} goes with --stdio.", click.get_current_context())
    if daemon:
        config = _without_clients_values(load_config(file or find_config(), in_background=True))
        return _serve_relays(config, selection.open_state(), log_level)
    config = _at(load_config(file or find_config(), may_ask=not stdio), ip, port)
    # Of a client over stdio; it needs the rules, whose import is left for later where a port is to open first.
    endpoint = own_endpoint(config, view) if stdio else None
    state = selection.open_state()
    bound = http2 = None
    certificate = None
    if not stdio:
        from config import DEFAULT_CAPACITY

        certificate = read_certificate(config)
        if config.capacity.connections != DEFAULT_CAPACITY.connections:
            with _start_errors():  # before it is said that the host serves
                from host.app import endpoint_limits

                endpoint_limits(config)
        bound = _bind(config.listen.address, state, "--port, listen.address")
        if config.listen.http2 is not None:
            http2 = _bind(config.listen.http2, state, "listen.http2")
    # With --stdio, states and the log both go to standard error.
    out = NonBlockingStream(sys.stderr if bound is None else sys.stdout)
    try:
        url = ""
        if bound is not None:
            from host.version import VERSION

            url = _url(config.listen, config.listen.address.host, bound)
            out.write(f"Colonnade {VERSION} serves {count_servers(config)} at {url}\n")
            if http2 is not None and config.listen.http2 is not None:
                out.write(f"HTTP/2 is served at {_url(config.listen, config.listen.http2.host, http2)}\n")
        # The port listens; the rest of the program is imported only now.
        import trio

        from host import app
        from host.cli.log import StatusLines, open_log
        from host.cli.terminal import Terminal
        from host.heap import spare_collections
        from host.journal import OutputLine
        from host.wire.deadlines import SystemClock

        spare_collections()
        # On a terminal, and with --stdio, the lines of states and those of the log are read together.
        shown_beside = bound is None or (out.isatty() and sys.stderr.isatty())
        journal = open_log(log_level, without=StatusLines.SHOWN_EVENTS if shown_beside else ())
        journal.subscribe(StatusLines(Terminal(out)).note, OutputLine, *StatusLines.SHOWN_EVENTS)
        say = _to_terminal(out)
        if bound is not None and say is None and config.console is not None:
            out.write("The console opens with the link that colonnade console prints\n")
        with _start_errors():
            if endpoint is not None:
                trio.run(app.serve_over_stdio, config, state, journal, say, endpoint, clock=SystemClock())
            elif bound is not None:
                serve_http2 = None
                if http2 is not None:
                    from host.wire import http2 as server  # hypercorn takes a quarter of a second

                    serve_http2 = partial(server.serve_http2, bound=http2, certificate=certificate)
                arguments = config, state, bound, url, journal, say, certificate, serve_http2
                trio.run(app.serve, *arguments, clock=SystemClock())
        return DONE
    finally:
        out.close()


@contextmanager
def _start_errors() -> Iterator[None]:
    """Turn why a host could not start into CommandFailed."""
    from host.app import START_ERRORS
    from host.errors import first_exception

    problem = None
    try:
        yield
    except* START_ERRORS as group:
        problem = first_exception(group)
    if problem is not None:
        raise CommandFailed(str(problem), WRONG)


def _serve_relays(config: Config, state: State, log_level: str) -> int:
    """Be the host that a relay has started (host/relay.py). What is said until the first relay can connect goes to the
    relay, and later to a file."""
    if config.daemon is None:
        raise CommandFailed(
            "write daemon: false on a line of its own: a relay looks for it before it reads YAML", WRONG
        )
    import trio

    from host import app
    from host.cli.log import keep_log_short, open_log
    from host.downstream.relays import open_relay_claim
    from host.heap import spare_collections
    from host.relay import log_path
    from host.storage.store import StateError
    from host.wire.deadlines import SystemClock

    def on_started() -> None:
        path = log_path(str(state.path), str(config.source))
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK  # for a named pipe
        try:
            log = os.open(path, flags, 0o600)
            if not stat.S_ISREG(os.fstat(log).st_mode):
                raise OSError(EINVAL, "it is no regular file")
            os.dup2(log, 2)
            os.close(log)
            keep_log_short(f"{time.strftime('%Y-%m-%d %H:%M:%S')} process {os.getpid()} serves {config.source}")
        except OSError as problem:
            raise StateError(f"the log {path} cannot be written: {problem.strerror}; remove it") from problem

    spare_collections()
    with _start_errors(), open_relay_claim(state, config.source) as claim:
        if claim is not None:  # else two relays have started one, and both find the other
            trio.run(app.serve_relays, config, state, claim, open_log(log_level), on_started, clock=SystemClock())
    return DONE


def _without_clients_values(config: Config) -> Config:
    """Take what only servers use out of the environment, which has it from the relay that started this host: these are
    values of a client as those of any other one."""
    from config import Secret
    from host.relay_start import host_environment

    own = host_environment(os.environ, config.own_variables)
    used = {name for spec in config.servers.values() for name in spec.variables}
    taken = {name: Secret(os.environ.pop(name)) for name in used - own.keys() if name in os.environ}
    return replace(config, handed_over=taken)


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
    """Write lines that only the person who started the host may read; None if there is no terminal: a file may be
    others' to read."""
    if out.isatty():
        return lambda line: out.write(f"{line}\n")
    return (lambda line: print(line, file=sys.stderr, flush=True)) if sys.stderr.isatty() else None


def _bind(address: Address, state: State, option: str) -> socket.socket:
    """A listening socket.

    Args:
        option: where another address can be chosen.
    """
    from host.wire.port import bind

    try:
        return bind(*address)
    except OSError as error:
        holder = _holder(state, address.port) if error.errno == EADDRINUSE else ""
        raise CommandFailed(f"{error.strerror}{holder}; choose another port ({option})", WRONG) from error


def _url(listen: Listen, host: str, bound: socket.socket) -> str:
    address = f"[{host}]" if ":" in host else host
    return f"{listen.scheme}://{address}:{bound.getsockname()[1]}{listen.path}"


def _holder(state: State, port: int) -> str:
    """Words about the running host of this user that listens on the port; none if there is no such host."""
    from host.cli.admin_client import find_hosts
    from host.sanitize import visible
    from host.url import Url

    for host in find_hosts(state.path):
        if host.endpoint and Url.parse(host.endpoint).connect_port == port:
            return f" by your host of {visible(host.config)} (process {host.pid})"
    return ""
