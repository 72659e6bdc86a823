"""The command `serve`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from errno import EADDRINUSE
from functools import partial
from pathlib import Path
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
    from host.cli.common import LeastLevels
    from host.cli.log import LogFile
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
@click.option(
    "--log-format",
    type=click.Choice(("auto", "text", "json")),
    default="auto",
    show_default=True,
    help="How it is logged; auto: in the journal of systemd with fields, elsewhere as text.",
)
@click.option(
    "--log-file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Log to this file instead of standard error. It is opened again at each reload (SIGHUP).",
)
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
    log_level: LeastLevels,
    log_format: str,
    log_file: Path | None,
) -> int:
    """Serve all servers of a configuration behind one endpoint.

    FILE is a configuration (YAML), or the mcpServers file of a desktop host. Without FILE: ./colonnade.yaml, or else
    ~/.config/colonnade/colonnade.yaml.
    """
    if (stdio or daemon) and not (ip is None and port is None):
        raise click.UsageError("--host and --port do not go with --stdio.", click.get_current_context())
    if (own or view) and not stdio:
        raise click.UsageError(f"{'--own' if own else '--view'} goes with --stdio.", click.get_current_context())
    if (daemon or (stdio and not own)) and not (log_format == "auto" and log_file is None):
        raise click.UsageError(
            "--log-format and --log-file do not go with a host in the background, whose log colonnade status names; "
            "add --own.",
            click.get_current_context(),
        )
    if daemon:
        config = _without_clients_values(load_config(file or find_config(), in_background=True))
        _check_audit(config)
        return _serve_relays(config, selection.open_state(), log_level)
    config = load_config(file or find_config(), may_ask=not stdio, given_address=(_given_host(ip), port))
    if stdio:
        _check_audit(config)
    # Of a client over stdio; it needs the rules, whose import is left for later where a port is to open first.
    endpoint = own_endpoint(config, view) if stdio else None
    state = selection.open_state()
    bound = http2 = metrics = None
    certificate = None
    if not stdio:
        certificate = read_certificate(config)
        bound, http2, metrics = _open_ports(config.listen, state)
    from config import AuditPlace

    # States and the log both go to standard error where standard output is the protocol's, or the audit's.
    is_taken = bound is None or config.audit.to is AuditPlace.STDOUT
    out = NonBlockingStream(sys.stderr if is_taken else sys.stdout)
    try:
        # The port listens; the rest of the program is imported only now.
        import trio

        from host import app
        from host.cli.log import StatusLines, has_fields, log_lines, open_log
        from host.cli.terminal import Terminal
        from host.heap import spare_collections
        from host.journal import OutputLine
        from host.systemd import ServiceManager
        from host.wire.deadlines import SystemClock

        spare_collections()
        # On a terminal, and in one output, the lines of states and those of the log are read together.
        shown_beside = is_taken or (out.isatty() and sys.stderr.isatty())
        is_for_programs = has_fields(log_format, log_file)
        journal = open_log(
            log_level,
            without=StatusLines.SHOWN_EVENTS if shown_beside and log_file is None and not is_for_programs else (),
            written=log_format,
            file=None if log_file is None else _log_file(log_file),
        )
        begin = log_lines
        if not (is_taken and is_for_programs and log_file is None):  # else lines of text would stand among others
            lines = StatusLines(Terminal(out), waits=bound is not None)
            journal.subscribe(lines.note, OutputLine, *StatusLines.SHOWN_EVENTS)
            begin = lines.begin
        say = _to_terminal(out)
        with _start_errors():
            if endpoint is not None:
                trio.run(app.serve_over_stdio, config, state, journal, say, endpoint, clock=SystemClock())
            elif bound is not None:
                serve_http2 = None
                if http2 is not None:
                    from host.wire import http2 as server  # hypercorn takes a quarter of a second

                    serve_http2 = partial(server.serve_http2, bound=http2, certificate=certificate)
                url = _url(config.listen, config.listen.address.host, bound)
                first = _first_lines(config, url, http2, metrics, has_terminal=say is not None)
                on_started = partial(begin, *first)
                told = on_started, say, ServiceManager(os.environ)
                arguments = config, state, bound, url, journal, *told, certificate, serve_http2, metrics
                trio.run(app.serve, *arguments, clock=SystemClock())
        return DONE
    finally:
        for each in (bound, http2, metrics):
            if each is not None:
                each.close()  # the host has not, where its start failed
        out.close()


def _first_lines(
    config: Config, url: str, http2: socket.socket | None, metrics: socket.socket | None, *, has_terminal: bool
) -> Iterator[str]:
    from host.version import VERSION

    yield f"Colonnade {VERSION} serves {count_servers(config)} at {url}"
    if http2 is not None and config.listen.http2 is not None:
        yield f"HTTP/2 is served at {_url(config.listen, config.listen.http2.host, http2)}"
    if metrics is not None:
        yield f"Metrics are at {_metrics_url(config.listen, metrics)}"
    if not has_terminal and config.console is not None:
        yield "The console opens with the link that colonnade console prints"


def _log_file(path: Path) -> LogFile:
    """Raises CommandFailed if the log cannot be written there."""
    from host.cli.log import LogFile

    try:
        return LogFile(path)
    except OSError as problem:
        raise CommandFailed(f"--log-file: {path} cannot be opened: {problem.strerror}", WRONG) from problem


def _check_audit(config: Config) -> None:
    """Raises CommandFailed if the audit were to be on the standard output of a host that has none for it."""
    from config import AuditPlace

    if config.audit.to is AuditPlace.STDOUT:
        raise CommandFailed(
            "audit.to: with serve --stdio, standard output is the protocol's, and a host in the background has none; "
            "expected files; remove the key, or serve this file over HTTP (colonnade serve)",
            WRONG,
        )


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


def _serve_relays(config: Config, state: State, log_level: LeastLevels) -> int:
    """Be the host that a relay has started (host/relay.py). What is said until the first relay can connect goes to the
    relay, and later to a file."""
    if config.daemon is None:
        raise CommandFailed(
            "write daemon: false on a line of its own: a relay looks for it before it reads YAML", WRONG
        )
    import trio

    from host import app
    from host.cli.log import keep_log_short, open_log, open_to_append
    from host.downstream.relays import open_relay_claim
    from host.heap import spare_collections
    from host.relay import log_path
    from host.storage.store import StateError
    from host.wire.deadlines import SystemClock

    def on_started() -> None:
        path = log_path(str(state.path), str(config.source))
        try:
            log = open_to_append(path, os.O_RDWR | os.O_NOFOLLOW)
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


def _given_host(written: str | None) -> str | None:
    """The IP address of --host; None without one.

    Raises:
        CommandFailed: it is no IP address.
    """
    from config import is_loopback

    if written is None:
        return None
    host = "127.0.0.1" if written == "localhost" else written.strip("[]")
    try:
        is_loopback(host)
    except ValueError:
        raise CommandFailed("--host: expected an IP address or localhost", WRONG) from None
    return host


def _to_terminal(out: NonBlockingStream) -> Callable[[str], object] | None:
    """Write lines that only the person who started the host may read; None if there is no terminal: a file may be
    others' to read."""
    if out.isatty():
        return lambda line: out.write(f"{line}\n")
    return (lambda line: print(line, file=sys.stderr, flush=True)) if sys.stderr.isatty() else None


def _open_ports(listen: Listen, state: State) -> tuple[socket.socket, socket.socket | None, socket.socket | None]:
    """The listening sockets of the endpoint, of HTTP/2 and of the metrics, which systemd may have passed.

    Raises:
        CommandFailed: an address cannot be had; or systemd passes a socket at one that the file does not name, for
            which its rules about addresses would not hold.
    """
    from host.systemd import NotOurs, take_sockets

    try:
        passed = {each.getsockname()[:2]: each for each in take_sockets(os.environ)}
    except NotOurs as problem:
        raise CommandFailed(str(problem), WRONG) from problem
    bound = _bind(listen.address, state, "--port, listen.address", passed)
    http2 = None if listen.http2 is None else _bind(listen.http2, state, "listen.http2", passed)
    metrics = None if listen.metrics is None else _bind(listen.metrics, state, "listen.metrics", passed)
    if passed:
        other = ", ".join(f"{host} port {port}" for host, port in passed)
        raise CommandFailed(
            f"systemd passes a socket at {other}; expected an address of listen in the file; give ListenStream= of the "
            "socket unit the same address",
            WRONG,
        )
    return bound, http2, metrics


def _bind(address: Address, state: State, option: str, passed: dict[tuple[str, int], socket.socket]) -> socket.socket:
    """A listening socket.

    Args:
        option: where another address can be chosen.
        passed: sockets by their addresses, of which the one that is used is taken out.
    """
    from host.wire.port import bind, prepare

    if (given := passed.pop((address.host, address.port), None)) is not None:
        return prepare(given)
    try:
        return bind(*address)
    except OSError as error:
        holder = _holder(state, address.port) if error.errno == EADDRINUSE else ""
        raise CommandFailed(f"{error.strerror}{holder}; choose another port ({option})", WRONG) from error


def _url(listen: Listen, host: str, bound: socket.socket) -> str:
    return f"{listen.scheme}://{_host_and_port(host, bound)}{listen.path}"


def _metrics_url(listen: Listen, bound: socket.socket) -> str:
    from config import is_loopback

    assert listen.metrics is not None
    host = listen.metrics.host
    return f"{'http' if is_loopback(host) else listen.scheme}://{_host_and_port(host, bound)}/metrics"


def _host_and_port(host: str, bound: socket.socket) -> str:
    address = f"[{host}]" if ":" in host else host
    return f"{address}:{bound.getsockname()[1]}"


def _holder(state: State, port: int) -> str:
    """Words about the running host of this user that listens on the port; none if there is no such host."""
    from host.cli.admin_client import find_hosts
    from host.sanitize import visible
    from host.url import Url

    for host in find_hosts(state.path):
        if host.endpoint and Url.parse(host.endpoint).connect_port == port:
            return f" by your host of {visible(host.config)} (process {host.pid})"
    return ""
