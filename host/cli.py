"""The command line: arguments, exit codes, and output for people. What it does is done elsewhere.

Exit codes: 0 done; 1 the call failed (the tool said so, or the server refused); 2 the configuration or the arguments
are wrong, or the port is taken, and nothing was started; 3 nobody could be reached.
"""

from __future__ import annotations

import argparse
import atexit
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import ClassVar, TextIO

import trio
from msgspec import Raw

from config import Config, ConfigError, load, schema
from host.app import Host, open_host, serve, serve_over_stdio
from host.background import BackgroundStream
from host.errors import ColonnadeError
from host.exchange import Caller, Exchange
from host.journal import Crashed, Dropped, Event, Journal, LeftOut, Said, ServerFailed, ServerReady
from host.jsonrpc.messages import Request
from host.jsonrpc.raw import encode, members, value
from host.names import server_of_name
from host.peer import BrokenAnswer, PeerError
from host.protocol.methods import CALL, LISTINGS, Kind
from host.remote import fetch_status, open_remote
from host.upstream.listing import Ask, read_list
from host.version import VERSION
from host.wire.link import LinkLost

DONE, FAILED, WRONG, UNREACHED = 0, 1, 2, 3
LEVELS = ("debug", "info", "warning", "error")
UNREACHABLE = (LinkLost, BrokenAnswer, ValueError, trio.TooSlowError)


def main() -> None:
    """The console script `colonnade`."""
    arguments = _parser().parse_args()
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        sys.exit(run(arguments))
    except ConfigError as problem:
        print(problem, file=sys.stderr)
        sys.exit(WRONG)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python would complain about it once more while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(DONE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="colonnade", description="One MCP endpoint in front of many MCP servers.")
    parser.add_argument("--version", action="version", version=f"colonnade {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serving = commands.add_parser("serve", help="serve all servers of FILE behind one endpoint")
    serving.add_argument("file", metavar="FILE", help="the configuration (YAML), or a desktop host's mcpServers file")
    serving.add_argument("--stdio", action="store_true", help="serve one client on standard input and output")
    serving.add_argument("--log-level", choices=LEVELS, default="warning", help="how much goes to standard error")
    serving.set_defaults(run=_serve)

    checking = commands.add_parser("check", help="validate FILE and start nothing")
    checking.add_argument("file", metavar="FILE")
    checking.set_defaults(run=_check)

    schematic = commands.add_parser("schema", help="print the JSON Schema of the configuration, for editors")
    schematic.set_defaults(run=_schema)

    listing = commands.add_parser("list", help="show the servers with their state, and their entries")
    _whose(listing)
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    listing.set_defaults(run=_list)

    calling = commands.add_parser("call", help="call one tool")
    calling.add_argument("name", metavar="NAME", help="the tool, as `colonnade list` shows it")
    calling.add_argument("arguments", metavar="ARGUMENTS", nargs="?", default="{}", help="a JSON object")
    _whose(calling)
    calling.add_argument("--json", action="store_true", help="print the whole result")
    calling.set_defaults(run=_call)
    return parser


def _whose(parser: argparse.ArgumentParser) -> None:
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument("--config", metavar="FILE", help="start a host from this configuration for the moment")
    whose.add_argument("--url", metavar="URL", help="use the endpoint that runs there")
    parser.add_argument(
        "--header", metavar="NAME:VALUE", action="append", default=[], help="send this header along with --url"
    )
    parser.add_argument("--log-level", choices=LEVELS, default="error", help="how much goes to standard error")


# serve, check, schema


def _serve(arguments: argparse.Namespace) -> int:
    config = _load(arguments.file)
    out = BackgroundStream(sys.stderr if arguments.stdio else sys.stdout)
    journal = _journal(arguments.log_level)
    states = _States(Terminal(out))
    journal.subscribe(states.note)
    try:
        if arguments.stdio:
            trio.run(serve_over_stdio, config, journal)
        else:
            trio.run(serve, config, journal, partial(states.serving, len(config.servers)))
    except OSError as problem:
        print(f"colonnade: {problem.strerror or problem}", file=sys.stderr)
        return WRONG
    finally:
        out.close()
    return DONE


def _check(arguments: argparse.Namespace) -> int:
    config = _load(arguments.file)
    for spec in config.servers.values():
        print(f"{spec.id}: {spec.describe()}" + (" (disabled)" if spec.disabled else ""))
    print(f"{arguments.file}: ok, {len(config.servers)} servers")
    return DONE


def _schema(arguments: argparse.Namespace) -> int:
    print(json.dumps(schema(), indent=2))
    return DONE


def _load(file: str) -> Config:
    config = load(file)
    for notice in config.notices:
        print(f"{file}: {notice}", file=sys.stderr)
    return config


# list and call


def _list(arguments: argparse.Namespace) -> int:
    return _with_host(arguments, partial(_show, as_json=arguments.json))


def _call(arguments: argparse.Namespace) -> int:
    try:
        wanted = json.loads(arguments.arguments)
    except ValueError as problem:
        print(f"colonnade: the arguments are not JSON: {problem}", file=sys.stderr)
        return WRONG
    if not isinstance(wanted, dict):
        print('colonnade: the arguments must be a JSON object, such as \'{"text": "hi"}\'', file=sys.stderr)
        return WRONG
    params = encode({"name": arguments.name, "arguments": Raw(arguments.arguments.encode())})
    return _with_host(arguments, partial(_invoke, params=params, as_json=arguments.json), name=arguments.name)


Work = Callable[[Ask, Callable[[str], bool], object | None], Awaitable[int]]
"""Does something with an endpoint, given how to ask it, whether it has a capability, and its status if it has one."""


def _with_host(arguments: argparse.Namespace, work: Work, name: str | None = None) -> int:
    """Run `work` against the endpoint at `--url`, or against a host started from `--config` for the moment."""
    headers = dict(part.split(":", 1) for part in arguments.header if ":" in part)
    code = FAILED
    try:
        if arguments.url is not None:
            code = trio.run(_remotely, arguments.url, headers, work)
        else:
            config = _load(arguments.config)
            code = trio.run(_locally, config, _journal(arguments.log_level), work, name)
    except* UNREACHABLE as group:
        print(f"colonnade: {arguments.url or arguments.config}: {_first(group)}", file=sys.stderr)
        code = UNREACHED
    except* (PeerError, ColonnadeError) as group:
        print(f"colonnade: {_first(group)}", file=sys.stderr)
    return code


async def _remotely(url: str, headers: Mapping[str, str], work: Work) -> int:
    status = await fetch_status(url, headers)
    async with open_remote(url, headers) as remote:
        return await work(remote.ask, remote.offer.capabilities.__contains__, status)


async def _locally(config: Config, journal: Journal, work: Work, name: str | None) -> int:
    async with open_host(config, journal) as host:
        server = server_of_name(name) if name is not None else None
        for upstream in host.roster.upstreams.values():
            if server is None or upstream.spec.id == server:
                await upstream.settled.wait()
        return await work(partial(_ask_locally, host), lambda _: True, json.loads(host.status()))


async def _ask_locally(host: Host, method: str, params: Raw | None) -> Raw:
    request = Request(1, method, params)
    caller = Caller("command line", None)
    return await host.router.answer(Exchange(request, members(params or b"{}"), caller, lambda notice: None))


async def _show(ask: Ask, has: Callable[[str], bool], status: object | None, *, as_json: bool) -> int:
    found: dict[Kind, list[Raw]] = {}
    for kind, listing in LISTINGS.items():
        found[kind] = []
        if has(listing.capability):
            try:
                await read_list(ask, listing, found[kind], lambda why: print(why, file=sys.stderr))
            except PeerError as refusal:
                print(f"{listing.method}: {refusal}", file=sys.stderr)
    if as_json:
        told = {LISTINGS[kind].member: [json.loads(bytes(raw)) for raw in raws] for kind, raws in found.items()}
        servers = status["servers"] if isinstance(status, dict) else None
        print(json.dumps({"servers": servers, **told}, indent=2))
        return DONE
    terminal = Terminal(sys.stdout)
    if isinstance(status, dict):
        for server in status["servers"]:
            _show_server(terminal, server)
        print()
    for kind, raws in found.items():
        for raw in raws:
            _show_entry(terminal, kind, raw)
    return DONE


def _show_server(terminal: Terminal, server: Mapping[str, object]) -> None:
    state = str(server["state"])
    entries = server["entries"]
    assert isinstance(entries, dict)
    counts = ", ".join(f"{count} {what}" for what, count in entries.items() if count)
    detail = counts if state == "ready" else str(server["detail"])
    print(f"{server['id']!s:<20} {terminal.state(state)} {server['transport']!s:<6} {_printable(detail)}".rstrip())


def _show_entry(terminal: Terminal, kind: Kind, raw: Raw) -> None:
    definition = members(raw)
    name = value(definition[LISTINGS[kind].key])
    described = definition.get("description") or definition.get("title") or Raw(b'""')
    said = value(described)
    first = said.strip().splitlines()[0] if isinstance(said, str) and said.strip() else ""
    print(f"{kind.value:<9} {_printable(str(name)):<44} {terminal.faint(_printable(first)[:90])}".rstrip())


async def _invoke(ask: Ask, has: Callable[[str], bool], status: object | None, *, params: Raw, as_json: bool) -> int:
    result = json.loads(bytes(await ask(CALL.name, params)))
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        for block in result.get("content", []):
            text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
            print(_printable(text, lines=True) if isinstance(text, str) else json.dumps(block))
    return FAILED if result.get("isError") is True else DONE


# Output


class Terminal:
    """Colours where a person looks, none where a program reads."""

    _STATES: ClassVar = {"ready": "32", "starting": "33", "failed": "31", "disabled": "2"}

    def __init__(self, out: TextIO | BackgroundStream) -> None:
        self.out = out
        self._colours = out.isatty() and "NO_COLOR" not in os.environ

    def state(self, state: str) -> str:
        return self._paint(f"{state:<8}", self._STATES.get(state, "0"))

    def faint(self, text: str) -> str:
        return self._paint(text, "2") if text else ""

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colours else text


def _printable(text: str, *, lines: bool = False) -> str:
    """Text of a server, fit for a terminal: nothing in it can move the cursor or change a colour."""
    return "".join(char if char.isprintable() or (lines and char in "\n\t") else ascii(char)[1:-1] for char in text)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    problem: BaseException = group
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    return problem


class _States:
    """A line for whoever watches: once when the port listens, and whenever a server becomes ready, or fails in a way
    that was not told yet."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._last_words: dict[str, str] = {}
        self._told: dict[str, str] = {}

    def serving(self, servers: int, url: str) -> None:
        self._say(f"Colonnade {VERSION} serves {servers} servers at {url}")

    def note(self, event: Event) -> None:
        if isinstance(event, Said):
            self._last_words[event.server] = event.line
        elif isinstance(event, ServerReady):
            self._told.pop(event.server, None)
            counts = f"({event.counts}, {event.seconds:.1f} s)"
            self._say(f"  {event.server:<20} {self._terminal.state('ready')} {self._terminal.faint(counts)}")
        elif isinstance(event, ServerFailed) and self._told.get(event.server) != event.why:
            self._told[event.server] = event.why
            again = "" if event.retry_in is None else f"; next attempt in {event.retry_in:.1f} s"
            self._say(f"  {event.server:<20} {self._terminal.state('failed')} {event.why}{again}")
            if event.server in self._last_words:
                self._say(f"  {'':<20} {self._terminal.faint('it said last: ' + self._last_words.pop(event.server))}")

    def _say(self, line: str) -> None:
        self._terminal.out.write(line + "\n")


# The log


def _journal(level: str) -> Journal:
    """A journal whose events go to standard error."""
    errors = BackgroundStream(sys.stderr)
    atexit.register(errors.close)
    logging.basicConfig(stream=errors, level=logging.ERROR, format="%(asctime)s %(levelname)s %(message)s")
    log = logging.getLogger("colonnade")
    log.setLevel(level.upper())
    journal = Journal()
    journal.subscribe(_Log(log).note)
    return journal


class _Log:
    """Writes events as log lines; of what a server can cause at will, one line a second and a count of the rest."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._last: dict[tuple[str, str], float] = {}
        self._held: dict[tuple[str, str], int] = {}

    def note(self, event: Event) -> None:
        if isinstance(event, Crashed):
            self._log.error("%s", event, exc_info=event.problem)
        elif isinstance(event, Dropped):
            self._limited((event.server, event.what), logging.WARNING, event)
        elif isinstance(event, LeftOut):
            self._limited((event.server, "left out"), logging.WARNING, event)
        elif isinstance(event, Said):
            self._limited((event.server, "stderr"), logging.INFO, event)
        else:
            self._log.info("%s", event)

    def _limited(self, cause: tuple[str, str], level: int, event: Event) -> None:
        now = time.monotonic()
        if now - self._last.get(cause, -10.0) < 1.0 and level > logging.INFO:
            self._held[cause] = self._held.get(cause, 0) + 1
            return
        self._last[cause] = now
        held = self._held.pop(cause, 0)
        self._log.log(level, "%s%s", event, f" (and {held} more like it)" if held else "")
