"""The commands that write files: the configuration (`init`, `add`, `remove`), and those of desktop hosts (`connect`,
`disconnect`)."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from host.cli.approving import Offers, are_approved, show_offers
from host.cli.common import (
    CONFIG_NAME,
    FILE,
    Selection,
    default_config,
    find_config,
    is_confirmed,
    load_config,
    open_state,
    own_endpoint,
    pass_selection,
    read_header,
    secrets_option,
    show_path,
    state_option,
    users_config,
)
from host.cli.exit_codes import DONE, WRONG, CommandFailed
from host.cli.names import view_option
from host.cli.servers import offer_reload
from host.cli.trying import Advisable, approve_option, ask_key, keep_approved, no_try_option, try_new

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from config.desktop.desktop_host import DesktopHost
    from host.cli.desktop.host_file import Choices
    from host.storage.connections import Connections

_FIRST_FILE = Path(__file__).with_name("first_file.yaml")
_STAND_IN = "unset"
_NO_CONFIG = "make one of the servers of the host with colonnade import, name its file with --config FILE"
_ON_ANSWERS = """\
Calls that need your confirmation wait while `colonnade ask` or the page of `colonnade console` is open, or if
your desktop can notify you of them. Without any of these they are refused."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_yes_option = click.option(
    "--yes",
    "-y",
    is_flag=True,
    help="Do not ask before the server is started once, and a line that it is known to need is written.",
)


@click.command()
@click.argument("file", type=FILE, default=CONFIG_NAME)
@no_try_option
@_yes_option
def init(file: str, no_try: bool, yes: bool) -> int:
    """Write a first configuration with comments.

    FILE is ./colonnade.yaml unless another one is named. A file that is there already is left alone. If you agree, its
    server is started once before, so that its tools are known.
    """
    from config.desktop.hosts import HOSTS
    from config.desktop.importing.found import find_files
    from host.cli.desktop.own_file import OwnFile

    path = Path(os.path.abspath(file))
    if os.path.lexists(path):
        raise CommandFailed(f"{file} is there already; it is left as it is", WRONG)
    own = OwnFile(path)
    own.begin(_FIRST_FILE.read_text("utf-8"))
    own.make_folder()
    tried = try_new(own, None, yes=yes, no_try=no_try)
    if tried.unwanted:
        raise CommandFailed(f"{file} is not written")
    answers = "" if yes else ask_key()
    own.begin(_FIRST_FILE.read_text("utf-8") + (f"\n{answers}".rstrip("\n") + "\n" if answers else ""))
    own.write()
    keep_approved(path, tried, has_approved=False)
    print(f"{file} is written, with one server and examples in comments. Next:")
    of_file = "" if file == CONFIG_NAME else f" (with --config {file})"
    print(f"  colonnade add NAME -- COMMAND...  adds a server{of_file}")
    if titles := sorted(
        {each.host.title for each in find_files(HOSTS, Path.cwd(), Path.home(), os.environ) if each.host}
    ):
        print(f"  colonnade import --merge          adds those of {', '.join(titles)}")
    print(f"  colonnade serve {file}" + " " * max(1, 17 - len(file)) + "serves it")
    if file == CONFIG_NAME and users_config().is_file():
        print(f"In this folder it is used instead of {show_path(users_config())}.")
    return DONE


def _complete_server(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The servers of the configuration whose ids begin so."""
    from host.cli.desktop.own_file import OwnFile

    try:
        own = OwnFile(_config_file(context.params.get("config")))
    except CommandFailed:
        return []
    return [id for id in own.servers if id.startswith(incomplete)]


_file_option = click.option("--config", metavar="FILE", type=FILE, help="The configuration to change.")


class _Add(click.Command):
    """All words after the program of a server are its arguments, also those that look like options of ours."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        options = {
            name: not option.is_flag
            for option in self.get_params(context)
            if isinstance(option, click.Option)
            for name in option.opts
        }
        place = _place_of_program(args, options)
        if place is None:
            return super().parse_args(context, args)
        program, rest = args[place], args[place + 1 :]
        if not context.resilient_parsing:
            if "--" in rest:
                command = shlex.join([program, *(word for word in rest if word != "--")])
                raise click.UsageError(f"Write -- before the command, as in: colonnade add NAME -- {command}", context)
            if ours := [word for word in rest if word.partition("=")[0] in options]:
                print(
                    f"notice: {shlex.join(ours)} {'goes' if len(ours) == 1 else 'go'} to {program}, as all that stands "
                    "after it; options of colonnade add stand before the command",
                    file=sys.stderr,
                )
        return super().parse_args(context, [*args[:place], "--", *args[place:]])


def _place_of_program(args: Sequence[str], options: Mapping[str, bool]) -> int | None:
    """The place of the program after the name of a server, if no `--` stands before it; None for a URL, too. `options`
    says for each of ours whether a value follows."""
    words, seen = iter(enumerate(args)), 0
    for place, word in words:
        if word == "--":
            return None
        if word.startswith("-"):
            if options.get(word, False):
                next(words, None)
        elif seen:
            return None if _SCHEME.match(word) else place
        else:
            seen = 1
    return None


@click.command(cls=_Add)
@click.argument("name")
@click.argument("words", metavar="URL | -- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--env", "-e", "variables", metavar="NAME=VALUE", multiple=True,
    help="A variable for the program. NAME alone takes the value from the environment of Colonnade.",
)  # fmt: skip
@click.option(
    "--header", "-H", "headers", metavar="'NAME: VALUE'", multiple=True, type=read_header,
    help="A header for the server at the URL.",
)  # fmt: skip
@click.option("--cwd", metavar="DIR", help="The folder the program starts in, or '${client:folder}'.")
@click.option("--trust", type=click.Choice(("trusted", "standard", "untrusted")), help="How far to trust it.")
@click.option("--ask", "asks", is_flag=True, help="Have a person confirm each call of its tools.")
@secrets_option
@no_try_option
@approve_option
@_yes_option
@_file_option
def add(
    name: str,
    words: tuple[str, ...],
    variables: tuple[str, ...],
    headers: tuple[tuple[str, str], ...],
    cwd: str | None,
    trust: str | None,
    asks: bool,
    secrets: str | None,
    no_try: bool,
    approve: bool,
    yes: bool,
    config: str | None,
) -> int:
    """Add a server to the configuration.

    \b
    colonnade add time -- uvx mcp-server-time
    colonnade add github --env GITHUB_TOKEN -- npx -y @modelcontextprotocol/server-github
    colonnade add tracker https://example.com/mcp --header 'Authorization: Bearer TOKEN'

    All words after the program are its own; options of this command stand before it.

    The rest of the file stays as it is. Without --config: ./colonnade.yaml, or else
    ~/.config/colonnade/colonnade.yaml; if there is neither, ./colonnade.yaml is made. Values of variables and headers,
    and other secrets, go to the system's keyring, or to files beside the configuration. If you agree, the server is
    started once before, so that its tools are known and mistakes are found; then you can approve what it offers.
    """
    from config.desktop.importing.tool_consent import ToolConsent, with_consent
    from config.document import Plain
    from config.literal_secrets import without_secrets
    from config.references import CLIENT_FOLDER, variables_in
    from host.cli.desktop.host_file import notices_after_adding
    from host.cli.desktop.own_file import OwnFile
    from host.cli.secret_store import open_secrets

    is_url = _is_url(words)
    _refuse_mixed(is_url, variables, headers, cwd)
    server: dict[str, object] = {"url": words[0]} if is_url else {"command": list(words)}
    if variables:
        server["env"] = dict(map(_variable, variables))
    if headers:
        server["headers"] = dict(headers)
    if cwd is not None:
        server["cwd"] = cwd if cwd == CLIENT_FOLDER else os.path.abspath(cwd)
    if trust is not None:
        server["trust"] = Plain(trust)
    own = OwnFile(_config_file(config))
    if asks:
        server = with_consent(server, ToolConsent("ask"), None, own.default("consent"))
    unset = _check(name, server, own.path)
    store = open_secrets(own.path, secrets)
    cleaned = without_secrets(server, name, store.keep, os.environ)

    def put() -> OwnFile:
        file = OwnFile(own.path)
        file.put(name, cleaned)
        return file

    own.make_folder()
    store.save()
    advisable = Advisable({name: cleaned}, own.defaults, put)
    tried = try_new(put(), [name], yes=yes, no_try=no_try, advisable=advisable)
    if tried.unwanted:
        raise CommandFailed(f"{name} is not added" + (f"; its secrets stay in {store}" if store.names else ""))
    has_approved = _approves(tried.offers, approve=approve, yes=yes)
    own = put()
    own.write()
    keep_approved(own.path, tried, has_approved=has_approved, wants_all=approve)
    print(f"{show_path(own.path)}: {name} is added" + ("" if own.exists else ", in a new file"))
    if store.names:
        print(f"Secrets are kept in {store}.")
    for variable in unset:
        print(f"The variable {variable} is not set here; the server needs it when it starts.")
    for notice in notices_after_adding(own.path, variables_in(server)):
        print(f"notice: {notice}", file=sys.stderr)
    served = offer_reload(open_state(None), own.path, [name], asks=sys.stdin.isatty() and not yes)
    if name in served.waiting or served.problem:
        print("It is served after: colonnade reload")
    elif not served.runs:
        print("It is served by colonnade serve, or as soon as a desktop host starts that is connected")
    return DONE


def _approves(offers: Offers, *, approve: bool, yes: bool) -> bool:
    """Show what the server offers, and ask whether that is approved, unless the options say it."""
    if not offers:
        return False
    print("What it offers, with what each tool claims about itself:")
    show_offers(offers)
    if all(map(are_approved, offers.values())):
        return True
    if approve or yes:
        return approve
    return is_confirmed("Approve this, so that rules count these claims?")


@click.command()
@click.argument("name", shell_complete=_complete_server)
@_file_option
def remove(name: str, config: str | None) -> int:
    """Remove a server from the configuration.

    The rest of the file stays as it is. Secrets that were kept for the server stay too.
    """
    from config.desktop.importing.inputs import found_in
    from config.references import kept_secrets_of
    from host.cli.desktop.host_file import notices_after_removing
    from host.cli.desktop.own_file import OwnFile

    own = OwnFile(_config_file(config))
    server = own.servers.get(name)
    own.remove(name)
    own.write()
    print(f"{show_path(own.path)}: {name} is removed")
    if isinstance(server, dict) and (kept := found_in(server, kept_secrets_of)):
        print(f"Its secrets are still there: {', '.join(dict.fromkeys(kept))}.")
    for notice in notices_after_removing(own.path, name, own.servers):
        print(f"notice: {notice}", file=sys.stderr)
    print("A running host stops it when it sees the change, or after: colonnade reload")
    return DONE


def _config_file(named: str | None) -> Path:
    """The file to change; a new one in the current folder if there is none."""
    return Path(os.path.abspath(named or default_config() or CONFIG_NAME))


def _is_url(words: tuple[str, ...]) -> bool:
    """Whether these words are a URL, and no command.

    Raises:
        CommandFailed: they are neither.
    """
    scheme = _SCHEME.match(words[0])
    if scheme is None:
        return False
    if scheme[1].lower() not in ("http", "https"):
        raise CommandFailed(
            f"a server has no URL that begins with {scheme[0]}: expected http:// or https://, or a command after --",
            WRONG,
        )
    if len(words) > 1:
        raise CommandFailed("a URL stands alone; a command and its arguments go after --", WRONG)
    return True


def _refuse_mixed(
    is_url: bool, variables: tuple[str, ...], headers: tuple[tuple[str, str], ...], cwd: str | None
) -> None:
    if is_url and (variables or cwd is not None):
        raise click.UsageError("--env and --cwd are for a program; a URL takes --header.", click.get_current_context())
    if headers and not is_url:
        raise click.UsageError("--header is for a URL; a program takes --env.", click.get_current_context())


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    return name, value if equals else f"${{env:{name}}}"


def _check(name: str, server: dict[str, object], file: Path) -> list[str]:
    """The variables that the server needs and that are not set here.

    Raises:
        CommandFailed: the configuration would be invalid.
    """
    from config.load import problems_of_server
    from config.references import Expander, variables_in

    unset = sorted(variables_in(server) - os.environ.keys())
    environ = {**os.environ, **dict.fromkeys(unset, _STAND_IN)}
    if problems := problems_of_server(name, server, Expander(environ, file.parent)):
        raise CommandFailed("; ".join(problems), WRONG)
    return unset


# The files of desktop hosts


def _read_host(name: str) -> DesktopHost:
    from host.cli.desktop.host_file import HOSTS_BY_NAME, meant_hosts

    if name not in HOSTS_BY_NAME:
        raise click.BadParameter(f"{name!r} is no host that is known; {meant_hosts(name)}")
    return HOSTS_BY_NAME[name]


def _complete_host(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from host.cli.desktop.host_file import hosts_beginning_with

    return hosts_beginning_with(incomplete)


@click.command()
@click.argument("hosts", metavar="[HOST]...", nargs=-1, type=_read_host, shell_complete=_complete_host)
@click.option("--config", "config_file", metavar="FILE", type=FILE, help="The configuration to serve.")
@view_option("Offer the host what this view has.")
@click.option("--url", "by_url", is_flag=True, help="Use the URL of the running host instead of starting another one.")
@click.option("--token", metavar="NAME", help="With --url: the access token that the host uses.")
@click.option("--write-token", is_flag=True, help="With --url: write the token itself into the host's file.")
@click.option("--move", is_flag=True, help="Take the servers that Colonnade serves out of the host's file.")
@click.option("--project", is_flag=True, help="Use the host's file in the current folder, not the user's own.")
@click.option("--file", "path", metavar="FILE", type=FILE, help="Use this file of the host.")
@click.option("--dry-run", is_flag=True, help="Print the difference and write nothing.")
@no_try_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask before servers are started and files are written.")
@state_option
@pass_selection
def connect(
    selection: Selection,
    hosts: tuple[DesktopHost, ...],
    config_file: str | None,
    view: str,
    by_url: bool,
    token: str | None,
    write_token: bool,
    move: bool,
    project: bool,
    path: str | None,
    dry_run: bool,
    no_try: bool,
    yes: bool,
) -> int:
    """Put Colonnade into the files of desktop hosts.

    Without HOST: list the hosts that are found here. A host starts Colonnade with `serve --stdio`, or uses its URL
    (--url). With --move, the servers that Colonnade serves are taken out of the host's file; without it, the host
    starts them a second time, past all rules. `colonnade disconnect` gives everything back. If you agree, servers that
    never ran are started once before, so that the host finds their tools.
    """
    options = (config_file, view, by_url, token, write_token, move, project, path, dry_run, no_try, yes)
    if not hosts and any(options):
        raise click.UsageError(
            "Name a HOST to connect; without options, colonnade connect lists them.", click.get_current_context()
        )
    from config.load import place_of, read_file
    from host.cli.desktop.host_file import (
        Choices,
        PreparedEdit,
        apply_connected,
        carry_out,
        connected_edit,
        failures,
        file_of,
        our_servers,
    )
    from host.storage.connections import Connections

    state = selection.open_state()
    connections = Connections(state)
    if not hosts:
        with failures():
            return _list(connections)
    _check_options(hosts, path, project)
    source = Path(os.path.abspath(config_file or find_config(_NO_CONFIG)))
    config = load_config(str(source), in_background=not by_url)
    if config.daemon is None and not by_url:
        config = load_config(str(source))  # no client hands its values over to another one's host
    own_endpoint(config, view)
    document, _ = read_file(place_of(source))
    servers = served = our_servers(source)
    if move:
        asks = sys.stdin.isatty() and not (yes or dry_run)
        running = offer_reload(state, source, asks=asks)
        if running.problem:
            raise CommandFailed(f"the running Colonnade does not say which servers it serves: {running.problem}")
        served = servers.without(running.waiting)
    choices = Choices(source, config, document, servers, served, state, view, by_url, token, write_token, move)
    if not (dry_run or by_url or no_try) and (yes or sys.stdin.isatty()):
        _try_servers(choices, yes=yes)

    def prepare(host: DesktopHost) -> list[PreparedEdit]:
        return [connected_edit(host, file_of(host, path, project=project), project, connections, choices)]

    with failures(), connections.lock():
        return carry_out(hosts, prepare, apply_connected, connections, dry_run=dry_run, yes=yes, last=_ON_ANSWERS)


def _try_servers(choices: Choices, *, yes: bool) -> None:
    """Try the servers that never ran, unless a host of this configuration runs: it has started them."""
    from host.cli.admin_client import find_hosts
    from host.cli.trying import try_unknown

    if any(host.config == os.path.realpath(choices.file) for host in find_hosts(choices.state.path)):
        return
    trials = try_unknown(choices.config, choices.config.servers, choices.state, yes=yes)
    if failed := [each.server for each in trials if each.has_failed]:
        print(f"A host goes on trying to start {', '.join(failed)}.")


@click.command()
@click.argument("hosts", metavar="HOST...", nargs=-1, required=True, type=_read_host, shell_complete=_complete_host)
@click.option("--project", is_flag=True, help="Use the host's file in the current folder, not the user's own.")
@click.option("--file", "path", metavar="FILE", type=FILE, help="Use this file of the host.")
@click.option("--dry-run", is_flag=True, help="Print the difference and write nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before writing.")
@state_option
@pass_selection
def disconnect(
    selection: Selection, hosts: tuple[DesktopHost, ...], project: bool, path: str | None, dry_run: bool, yes: bool
) -> int:
    """Take Colonnade out of the files of desktop hosts.

    A file that did not change since is given back byte for byte. Otherwise only Colonnade's own entry is taken out, and
    the servers that `connect --move` took out are put back.
    """
    from host.cli.desktop.host_file import (
        PreparedEdit,
        apply_given_back,
        carry_out,
        failures,
        given_back_edit,
        records_of,
    )
    from host.storage.connections import Connections

    connections = Connections(selection.open_state())
    _check_options(hosts, path, project)

    def prepare(host: DesktopHost) -> list[PreparedEdit]:
        return [given_back_edit(host, record) for record in records_of(host, project, path, connections)]

    with failures(), connections.lock():
        return carry_out(hosts, prepare, apply_given_back, connections, dry_run=dry_run, yes=yes)


def _check_options(hosts: tuple[DesktopHost, ...], path: str | None, project: bool) -> None:
    if path is not None and (len(hosts) != 1 or project):
        raise click.UsageError("--file is for one host, and not for --project.", click.get_current_context())


def _list(connections: Connections) -> int:
    from host.cli.desktop.host_file import file_states
    from host.sanitize import visible

    states = file_states(connections)
    for each in states:
        print(f"{each.host.name:<15} {each.state:<15} {visible(str(each.path))}")
        for note in each.notes:
            print(f"{'':<31} {visible(note)}")
    if not states:
        print("No file of a desktop host is found here. colonnade connect HOST makes one.")
    return DONE
