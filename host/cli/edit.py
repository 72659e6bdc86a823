"""The commands that write the configuration: `init`, `add`, `remove`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from host.cli.common import CONFIG_NAME, FILE, HeaderType, find_config, secrets_option, show_path, users_config
from host.cli.exit_codes import DONE, WRONG, CommandFailed

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_FIRST_FILE = Path(__file__).with_name("first_file.yaml")
_STAND_IN = "unset"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_Command = TypeVar("_Command", bound=Callable[..., object])


@click.command()
@click.argument("file", type=FILE, default=CONFIG_NAME)
def init(file: str) -> int:
    """Write a first configuration with comments.

    FILE is ./colonnade.yaml unless another one is named. A file that is there already is left alone.
    """
    from config.hosts import HOSTS
    from config.importing.found import find_files
    from host.cli.own_file import OwnFile

    path = Path(os.path.abspath(file))
    if os.path.lexists(path):
        raise CommandFailed(f"{file} is there already; it is left as it is", WRONG)
    own = OwnFile(path)
    own.begin(_FIRST_FILE.read_text("utf-8"))
    own.write()
    print(f"{file} is written, with one server and examples in comments. Next:")
    print(f"  colonnade add NAME -- COMMAND...  adds a server{_of(file)}")
    if titles := sorted(
        {each.host.title for each in find_files(HOSTS, Path.cwd(), Path.home(), os.environ) if each.host}
    ):
        print(f"  colonnade import --merge          adds those of {', '.join(titles)}")
    print(f"  colonnade serve {file}" + " " * max(1, 17 - len(file)) + "serves it")
    if file == CONFIG_NAME and users_config().is_file():
        print(f"In this folder it is used instead of {show_path(users_config())}.")
    return DONE


def _of(file: str) -> str:
    return "" if file == CONFIG_NAME else f" (with --config {file})"


class _ServerName(click.ParamType[str]):
    """The id of a server of the configuration."""

    name = "name"

    def convert(self, value: str, parameter: click.Parameter | None, context: click.Context | None) -> str:
        return value

    def shell_complete(
        self, context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from host.cli.own_file import OwnFile

        try:
            own = OwnFile(_config_file(context.params.get("config")))
        except CommandFailed:
            return []
        return [CompletionItem(id) for id in own.servers if id.startswith(incomplete)]


def _file_option(command: _Command) -> _Command:
    return click.option("--config", metavar="FILE", type=FILE, help="The configuration to change.")(command)


@click.command()
@click.argument("name")
@click.argument("words", metavar="URL | -- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--env", "-e", "variables", metavar="NAME=VALUE", multiple=True,
    help="A variable for the program. NAME alone takes the value from the environment of Colonnade.",
)  # fmt: skip
@click.option(
    "--header", "-H", "headers", metavar="'NAME: VALUE'", multiple=True, type=HeaderType(),
    help="A header for the server at the URL.",
)  # fmt: skip
@click.option("--cwd", metavar="DIR", help="The folder the program starts in.")
@click.option("--trust", type=click.Choice(("trusted", "standard", "untrusted")), help="How far to trust it.")
@click.option("--ask", "asks", is_flag=True, help="Have a person confirm each call of its tools.")
@secrets_option
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
    config: str | None,
) -> int:
    """Add a server to the configuration.

    \b
    colonnade add time -- uvx mcp-server-time
    colonnade add github --env GITHUB_TOKEN -- npx -y @modelcontextprotocol/server-github
    colonnade add tracker https://example.com/mcp --header 'Authorization: Bearer TOKEN'

    The rest of the file stays as it is. Without --config: ./colonnade.yaml, or else
    ~/.config/colonnade/colonnade.yaml; if there is neither, ./colonnade.yaml is made. Literal secrets go to the
    system's keyring, or to files beside the configuration.
    """
    from config.document import Plain
    from config.literal_secrets import set_variables, without_secrets
    from config.references import variables_in
    from host.cli.own_file import OwnFile
    from host.cli.secret_store import open_secrets
    from host.sanitize import visible

    is_url = _is_url(words)
    _refuse_mixed(is_url, variables, headers, cwd)
    server: dict[str, object] = {"url": words[0]} if is_url else {"command": list(words)}
    if variables:
        server["env"] = dict(map(_variable, variables))
    if headers:
        server["headers"] = dict(headers)
    if cwd is not None:
        server["cwd"] = os.path.abspath(cwd)
    if trust is not None:
        server["trust"] = Plain(trust)
    if asks:
        server["consent"] = {"tools": Plain("ask")}
    own = OwnFile(_config_file(config))
    unset = _check(name, server, own.path)
    store = open_secrets(own.path, secrets)
    own.put(name, without_secrets(server, name, store.keep, set_variables=set_variables(os.environ)))
    store.save()
    own.write()
    print(f"{show_path(own.path)}: {name} is added" + ("" if own.exists else ", in a new file"))
    if store.names:
        print(f"Secrets are kept in {store.place}: {', '.join(map(visible, store.names))}.")
    for variable in unset:
        print(f"The variable {variable} is not set here; Colonnade needs it when it starts.")
    for notice in _of_connected_hosts(own.path, variables_in(server)):
        print(f"notice: {notice}", file=sys.stderr)
    print("It is served after: colonnade reload, or colonnade serve if no host runs")
    return DONE


@click.command()
@click.argument("name", type=_ServerName())
@_file_option
def remove(name: str, config: str | None) -> int:
    """Remove a server from the configuration.

    The rest of the file stays as it is. Secrets that were kept for the server stay too.
    """
    from config.importing.found import each_text
    from config.references import kept_secrets_of
    from host.cli.own_file import OwnFile

    own = OwnFile(_config_file(config))
    server = own.servers.get(name)
    own.remove(name)
    own.write()
    print(f"{show_path(own.path)}: {name} is removed")
    kept: list[str] = []

    def note(text: str) -> str:
        kept.extend(kept_secrets_of(text))
        return text

    each_text(server, note)
    if kept:
        print(f"Its secrets are still there: {', '.join(dict.fromkeys(kept))}.")
    for notice in _moved_and_removed(own.path, name, own.servers):
        print(f"notice: {notice}", file=sys.stderr)
    print("A running host stops it when it sees the change, or after: colonnade reload")
    return DONE


def _config_file(named: str | None) -> Path:
    """The file to change; a new one in the current folder if there is none."""
    if named is None:
        try:
            named = find_config()
        except CommandFailed:
            named = CONFIG_NAME
    return Path(os.path.abspath(named))


def _of_connected_hosts(file: Path, names: set[str]) -> list[str]:
    from host.cli.connected_files import known_records
    from host.cli.host_entry import notices_after_adding

    return notices_after_adding(known_records(), file, names)


def _moved_and_removed(file: Path, name: str, servers: Mapping[str, object]) -> list[str]:
    """The notices on a server that was moved out of files of hosts and is removed from the configuration."""
    from config.hosts.started import OurServers
    from host.cli.connected_files import HOSTS_BY_NAME, disconnect_command, known_records, not_served
    from host.sanitize import visible

    rest = OurServers({id: value for id, value in servers.items() if id != name}, file.parent, os.environ)
    everything = OurServers(servers, file.parent, os.environ)
    notices: list[str] = []
    for record in known_records():
        if os.path.realpath(record.config) != os.path.realpath(file):
            continue
        before = not_served(record, everything)
        for lost in (each for each in not_served(record, rest) if each not in before):
            host = HOSTS_BY_NAME[record.host]
            notices.append(
                f"{visible(lost)} was moved out of {show_path(Path(record.file))}, and nothing serves it now: "
                f"{disconnect_command(host, record.project)} puts it back, with all others"
            )
    return notices


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


class _Environment(Mapping[str, str]):
    """The variables of this process, in which each other one counts as set and is noted."""

    def __init__(self) -> None:
        self.unset: list[str] = []

    def __getitem__(self, name: str) -> str:
        if name not in os.environ:
            self.unset.append(name)
        return os.environ.get(name, _STAND_IN)

    def __iter__(self) -> Iterator[str]:
        return iter(os.environ)

    def __len__(self) -> int:
        return len(os.environ)


def _check(name: str, server: dict[str, object], file: Path) -> list[str]:
    """The variables that the server needs and that are not set here.

    Raises:
        CommandFailed: the configuration would be invalid.
    """
    from config.load import problems_of_server
    from config.references import Expander

    environ = _Environment()
    if problems := problems_of_server(name, server, Expander(environ, file.parent)):
        raise CommandFailed("; ".join(problems), WRONG)
    return list(dict.fromkeys(environ.unset))
