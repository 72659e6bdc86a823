"""The command line: arguments and exit codes. What the commands do is done elsewhere.

Exit codes: 0 done; 1 the call failed (the tool said so, or the server refused); 2 the configuration or the arguments
are wrong, or the port is taken, and nothing was started; 3 nobody could be reached.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from urllib.parse import urlsplit

from config import Config, ConfigError, StdioServer, load, schema
from host.background import BackgroundStream
from host.errors import first_of
from host.version import VERSION
from host.wire.port import bind

DONE, WRONG, INTERRUPTED = 0, 2, 130
LEVELS = ("debug", "info", "warning", "error")


def main() -> None:
    """The console script `colonnade`."""
    if sys.stdout is None or sys.stderr is None:  # started without them: whatever is said goes nowhere
        nowhere = open(os.devnull, "w")  # noqa: SIM115 - as long as the process lives
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
    arguments = _parser().parse_args()
    run: Callable[[argparse.Namespace], int] = arguments.run
    try:
        sys.exit(run(arguments))
    except ConfigError as problem:
        print(problem, file=sys.stderr)
        sys.exit(WRONG)
    except (KeyboardInterrupt, BrokenPipeError, BaseExceptionGroup) as problem:
        cause = first_of(problem)
        if isinstance(cause, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        if not isinstance(cause, BrokenPipeError):
            raise
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
    whose.add_argument("--url", metavar="URL", type=_url, help="use the endpoint that runs there")
    parser.add_argument(
        "--header",
        metavar="'NAME: VALUE'",
        action="append",
        default=[],
        type=_header,
        help="send this header along with --url",
    )
    parser.add_argument("--log-level", choices=LEVELS, default="error", help="how much goes to standard error")


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and parts.hostname is not None and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise argparse.ArgumentTypeError(f"expected a URL such as http://127.0.0.1:8808/mcp, found {text!r}")
    return text


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        # What was found may be a secret that lost its name.
        raise argparse.ArgumentTypeError("expected NAME: VALUE, for instance 'Authorization: Bearer TOKEN'")
    return name.strip(), value.strip()


# Loading the whole program takes half a second: check and schema need none of it, and the port listens first. So here,
# and nowhere else, a module of ours is imported in functions.


def _serve(arguments: argparse.Namespace) -> int:
    # Until the host itself listens for signals there is nothing that would have to be stopped.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(DONE))
    config = _load(arguments.file)
    bound = None
    if not arguments.stdio:
        try:
            bound = bind(config.listen.host, config.listen.port)
        except OSError as problem:
            print(f"colonnade: {problem.strerror}; another port is set under listen.address", file=sys.stderr)
            return WRONG
    out = BackgroundStream(sys.stderr if bound is None else sys.stdout)
    try:
        if bound is not None:
            host = f"[{config.listen.host}]" if ":" in config.listen.host else config.listen.host
            url = f"http://{host}:{bound.getsockname()[1]}{config.listen.path}"
            out.write(f"Colonnade {VERSION} serves {_servers(config)} at {url}\n")
        from host import commands

        commands.serve_until_stopped(config, bound, out, arguments.log_level)
    finally:
        out.close()
    return DONE


def _check(arguments: argparse.Namespace) -> int:
    config = _load(arguments.file)
    for spec in config.servers.values():
        print(f"{spec.id}: {spec.describe()}" + (" (disabled)" if spec.disabled else ""))
        if isinstance(spec, StdioServer) and not spec.disabled:
            _check_program(spec)
    print(f"{arguments.file}: ok, {_servers(config)}")
    return DONE


def _check_program(spec: StdioServer) -> None:
    """The file may be for another machine, so this is no error of it."""
    if shutil.which(spec.program.reveal(), path=spec.env["PATH"].reveal() if "PATH" in spec.env else None) is None:
        print(f"{spec.id}: notice: the program {spec.program} is not found here", file=sys.stderr)
    if not spec.cwd.is_dir():
        print(f"{spec.id}: notice: its folder (cwd) is not found here", file=sys.stderr)


def _schema(arguments: argparse.Namespace) -> int:
    print(json.dumps(schema(), indent=2))
    return DONE


def _list(arguments: argparse.Namespace) -> int:
    from host import commands

    return commands.show_list(commands.Whose(*_whose_endpoint(arguments)), as_json=arguments.json)


def _call(arguments: argparse.Namespace) -> int:
    try:
        wanted = json.loads(arguments.arguments)
    except ValueError as problem:
        print(f"colonnade: the arguments are not JSON: {problem}", file=sys.stderr)
        return WRONG
    if not isinstance(wanted, dict):
        print('colonnade: the arguments must be a JSON object, such as \'{"text": "hi"}\'', file=sys.stderr)
        return WRONG
    from host import commands

    whose = commands.Whose(*_whose_endpoint(arguments))
    return commands.call_tool(whose, arguments.name, arguments.arguments, as_json=arguments.json)


def _whose_endpoint(arguments: argparse.Namespace) -> tuple[str | None, dict[str, str], Config | None, str]:
    if arguments.header and arguments.url is None:
        print("colonnade: --header goes with --url; for a host from --config, set headers in its file", file=sys.stderr)
        sys.exit(WRONG)
    config = None if arguments.url is not None else _load(arguments.config)
    return arguments.url, dict(arguments.header), config, arguments.log_level


def _servers(config: Config) -> str:
    count = sum(not spec.disabled for spec in config.servers.values())
    return f"{count} server" + ("" if count == 1 else "s")


def _load(file: str) -> Config:
    config = load(file)
    for notice in config.notices:
        print(f"{file}: {notice}", file=sys.stderr)
    return config
