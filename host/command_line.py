"""The command line: arguments and exit codes. What the commands do is done elsewhere.

Exit codes: 0 done; 1 the call failed (the tool said so, or the server refused); 2 the configuration or the arguments
are wrong, or the port is taken, and nothing was started; 3 nobody could be reached. `explain` says the verdict: 0
allow, 4 ask, 5 deny, and 1 if there is none.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from config import Config, ConfigError, StdioServer, Trust, load, schema
from host.errors import first_exception
from host.non_blocking import NonBlockingStream
from host.storage.directory import State, open_state, state_directory
from host.storage.store import StateError
from host.version import VERSION
from host.wire.port import bind

DONE, WRONG, INTERRUPTED = 0, 2, 130
UNCONFINED = (
    "it is not trusted, yet its program runs as you, unconfined: Colonnade stands between its messages and the client, "
    "not between its process and your files (docs/consent.md)"
)
LEVELS = ("debug", "info", "warning", "error")


def main() -> None:
    """Parse the arguments, carry out the command, and exit with its code."""
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
        cause = first_exception(problem)
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

    _state(serving)

    checking = commands.add_parser("check", help="validate FILE and start nothing")
    checking.add_argument("file", metavar="FILE")
    checking.set_defaults(run=_check)

    schematic = commands.add_parser("schema", help="print the JSON Schema of the configuration, for editors")
    schematic.set_defaults(run=_schema)

    listing = commands.add_parser("list", help="show the servers with their state, and their entries")
    _whose(listing)
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    _state(listing)
    listing.set_defaults(run=_list)

    calling = commands.add_parser("call", help="call one tool")
    calling.add_argument("name", metavar="NAME", help="the tool, as `colonnade list` shows it")
    calling.add_argument("arguments", metavar="ARGUMENTS", nargs="?", default="{}", help="a JSON object")
    _whose(calling)
    calling.add_argument("--json", action="store_true", help="print the whole result")
    _state(calling)
    calling.set_defaults(run=_call)
    _add_deciding(commands)
    return parser


def _add_deciding(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The commands by which a person decides."""
    asking = commands.add_parser("ask", help="show the questions that wait for a person, and answer them")
    asking.add_argument("id", metavar="ID", nargs="?", help="show this one in full")
    asking.add_argument("answer", metavar="ANSWER", nargs="?", help="once, session, 15m (any time), always or deny")
    asking.add_argument(
        "--arguments",
        metavar="WHICH",
        default="exact",
        help="what a lasting answer is for: exact (these arguments, the default), any, or conditions as a JSON object",
    )
    asking.add_argument("--follow", action="store_true", help="stay and hear of new ones: then somebody is there")
    _about(asking, _ask)

    opening = commands.add_parser("console", help="print an address that opens the web console, once")
    _about(opening, _console)

    held = commands.add_parser(
        "definitions", aliases=["pins"], help="show definitions that are held, and approve or reject them"
    )
    held.add_argument("--show", action="store_true", help="show every difference in full")
    _about(held, _definitions)
    doing = held.add_subparsers(metavar="[approve|reject|revoke]")
    for decision in ("approve", "reject"):
        one = doing.add_parser(decision, help=f"{decision} what is held back, by the ids that are shown")
        one.add_argument("ids", metavar="ID", nargs="*")
        one.add_argument("--server", help="all that waits of this server; everything is shown first")
        one.add_argument("--yes", action="store_true", help="do not ask whether that is meant")
        _about(one, _decide)
        one.set_defaults(decision=decision)
    revoking = doing.add_parser("revoke", help="hold back what is approved, until it is approved again")
    revoking.add_argument("server")
    revoking.add_argument("kind", choices=("tool", "prompt", "resource", "template", "instructions", "launch"))
    revoking.add_argument("name", nargs="?", default="")
    _about(revoking, _revoke_pin)

    granting = commands.add_parser("grants", help="show what was allowed for longer than one call, and take it back")
    _about(granting, _grants)
    taking = granting.add_subparsers(metavar="[revoke]").add_parser("revoke", help="take grants back")
    taking.add_argument("ids", metavar="ID", nargs="+")
    _about(taking, _revoke_grants)

    explaining = commands.add_parser("explain", help="what would become of a call, and why")
    explaining.add_argument("--server", required=True)
    what = explaining.add_mutually_exclusive_group(required=True)
    for kind in ("tool", "prompt", "resource", "template"):
        what.add_argument(f"--{kind}", metavar="NAME", help="its own name at the server")
    explaining.add_argument("--args", metavar="JSON", help="the arguments: a JSON object")
    explaining.add_argument("--json", action="store_true", help="print one JSON object")
    _about(explaining, _explain)

    auditing = commands.add_parser("audit", help="print what was decided and what came of it")
    for name in ("server", "kind", "caller"):
        auditing.add_argument(f"--{name}", help=f"only records of this {name}")
    auditing.add_argument("--since", metavar="TIME", type=_since, help="only from then on: 15m, 2h, 7d ago")
    auditing.add_argument("--follow", action="store_true", help="go on with what comes")
    _about(auditing, _audit)
    inside = auditing.add_subparsers(metavar="[verify | init]")
    verifying = inside.add_parser("verify", help="whether anybody changed the files")
    verifying.add_argument(
        "--key-file", metavar="FILE", help="the verification key, - for standard input; else $COLONNADE_AUDIT_KEY"
    )
    verifying.add_argument("--head", metavar="HEAD", help="a record that must be there, as verify printed it")
    _about(verifying, _verify)
    sealing = inside.add_parser("init", help="seal the files from now on, and print the verification key once")
    sealing.add_argument("--again", action="store_true", help="begin another chain, with another key")
    _about(sealing, _init_audit)


def _about(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    # A command inside another one says these after its own name: what is not said there is left as it is.
    parser.add_argument("--config", metavar="FILE", default=argparse.SUPPRESS, help="the configuration that is meant")
    parser.add_argument("--state", metavar="DIR", type=Path, default=argparse.SUPPRESS, help="where decisions are kept")
    parser.set_defaults(run=run)


def _state(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state", metavar="DIR", type=Path, help="where decisions are kept ($COLONNADE_STATE)")


def _since(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected a time such as 15m, 2h or 7d, found {text!r}")
    return time.time() - int(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


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
    config = _load(arguments.file)
    state = _opened(arguments)
    bound = None
    if not arguments.stdio:
        try:
            bound = bind(*config.listen.address)
        except OSError as problem:
            print(f"colonnade: {problem.strerror}; another port is set under listen.address", file=sys.stderr)
            return WRONG
    out = NonBlockingStream(sys.stderr if bound is None else sys.stdout)
    try:
        url = ""
        if bound is not None:
            host = config.listen.address.host
            host = f"[{host}]" if ":" in host else host
            url = f"http://{host}:{bound.getsockname()[1]}{config.listen.path}"
            out.write(f"Colonnade {VERSION} serves {_servers(config)} at {url}\n")
        from host import commands

        return commands.serve_until_stopped(config, state, bound, url, out, arguments.log_level)
    finally:
        out.close()


def _check(arguments: argparse.Namespace) -> int:
    config = _load(arguments.file)
    for spec in config.servers.values():
        print(f"{spec.id}: {spec.describe()}" + (" (disabled)" if spec.disabled else ""))
        if isinstance(spec, StdioServer) and not spec.disabled:
            _check_program(spec)
            if spec.trust is Trust.UNTRUSTED:
                print(f"{spec.id}: notice: {UNCONFINED}", file=sys.stderr)
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

    return commands.show_list(commands.Target(*_whose_endpoint(arguments)), as_json=arguments.json)


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

    whose = commands.Target(*_whose_endpoint(arguments))
    return commands.call_tool(whose, arguments.name, arguments.arguments, as_json=arguments.json)


def _whose_endpoint(
    arguments: argparse.Namespace,
) -> tuple[str | None, dict[str, str], Config | None, State | None, str]:
    if arguments.header and arguments.url is None:
        print("colonnade: --header goes with --url; for a host from --config, set headers in its file", file=sys.stderr)
        sys.exit(WRONG)
    if arguments.url is None:
        return None, {}, _load(arguments.config), _opened(arguments), arguments.log_level
    # The endpoint may be anybody's: nothing is kept for it here.
    known = state_directory(arguments.state).is_dir()
    return arguments.url, dict(arguments.header), None, _opened(arguments) if known else None, arguments.log_level


def _opened(arguments: argparse.Namespace) -> State:
    """The state directory; the end of the command if it cannot be used."""
    try:
        return open_state(getattr(arguments, "state", None))
    except StateError as problem:
        print(f"colonnade: {problem}", file=sys.stderr)
        sys.exit(WRONG)


def _where(arguments: argparse.Namespace) -> tuple[State, Path | None]:
    named = getattr(arguments, "config", None)
    return _opened(arguments), None if named is None else Path(named)


def _ask(arguments: argparse.Namespace) -> int:
    from host import deciding

    where = deciding.DecisionScope(*_where(arguments))
    follow = arguments.follow or (arguments.id is None and sys.stdin.isatty() and sys.stdout.isatty())
    return deciding.ask(where, arguments.id, arguments.answer, arguments.arguments, follow=follow)


def _console(arguments: argparse.Namespace) -> int:
    from host import deciding

    return deciding.console(deciding.DecisionScope(*_where(arguments)))


def _definitions(arguments: argparse.Namespace) -> int:
    from host import deciding

    return deciding.definitions(deciding.DecisionScope(*_where(arguments)), everything=arguments.show)


def _decide(arguments: argparse.Namespace) -> int:
    if not arguments.ids and arguments.server is None:
        print(
            "colonnade: say what: the ids that `colonnade definitions` shows, or --server NAME for all", file=sys.stderr
        )
        return WRONG
    from host import deciding

    where = deciding.DecisionScope(*_where(arguments))
    return deciding.decide(where, arguments.decision, arguments.ids, arguments.server, sure=arguments.yes)


def _revoke_pin(arguments: argparse.Namespace) -> int:
    from host import deciding

    where = deciding.DecisionScope(*_where(arguments))
    return deciding.revoke_pin(where, arguments.server, arguments.kind, arguments.name)


def _grants(arguments: argparse.Namespace) -> int:
    from host import deciding

    return deciding.grants(deciding.DecisionScope(*_where(arguments)))


def _revoke_grants(arguments: argparse.Namespace) -> int:
    from host import deciding

    return deciding.revoke_grants(deciding.DecisionScope(*_where(arguments)), arguments.ids)


def _explain(arguments: argparse.Namespace) -> int:
    kind = next(each for each in ("tool", "prompt", "resource", "template") if getattr(arguments, each) is not None)
    given = None
    if arguments.args is not None:
        try:
            given = json.loads(arguments.args)
        except ValueError as problem:
            print(f"colonnade: the arguments are not JSON: {problem}", file=sys.stderr)
            return WRONG
        if not isinstance(given, dict):
            print("colonnade: the arguments must be a JSON object", file=sys.stderr)
            return WRONG
    from host import deciding

    where = deciding.DecisionScope(*_where(arguments))
    name = getattr(arguments, kind)
    return deciding.explain(where, arguments.server, kind, name, given, as_json=arguments.json)


def _audit(arguments: argparse.Namespace) -> int:
    from host import deciding

    return deciding.audit(
        _opened(arguments),
        server=arguments.server,
        kind=arguments.kind,
        caller=arguments.caller,
        since=arguments.since,
        follow=arguments.follow,
    )


def _verify(arguments: argparse.Namespace) -> int:
    from host import deciding

    return deciding.verify_audit(_opened(arguments), arguments.key_file, arguments.head)


def _init_audit(arguments: argparse.Namespace) -> int:
    from host import deciding

    return deciding.init_audit(_opened(arguments), again=arguments.again)


def _servers(config: Config) -> str:
    count = sum(not spec.disabled for spec in config.servers.values())
    return f"{count} server" + ("" if count == 1 else "s")


def _load(file: str) -> Config:
    config = load(file)
    for notice in config.notices:
        print(f"{file}: {notice}", file=sys.stderr)
    return config
