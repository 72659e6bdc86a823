"""Parts that several commands share: options, types of values, and how files are opened."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

from host.cli.exit_codes import WRONG, CommandFailed
from host.cli.signals import end_loading

if TYPE_CHECKING:
    from config import Config
    from config.references import GivenAddress
    from host.cli.targets import DecisionScope
    from host.source import Endpoint
    from host.storage.directory import State

COMPLETE_VARIABLE = "_COLONNADE_COMPLETE"
"""The environment variable by which the script of a shell asks for completions."""
LOG_LEVELS = ("debug", "info", "warning", "error")
EVENT_PARTS = ("servers", "calls", "consent", "logins", "sandbox", "output", "host")
"""Parts of the log with events (`journal.Event.part`)."""
LOGGER_PARTS = ("listener", "fleet")
LOG_PARTS = (*EVENT_PARTS, *LOGGER_PARTS)
"""Parts of the log that may have levels of their own."""
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
CONFIG_NAME = "colonnade.yaml"
FILE = click.Path(readable=False)  # whether it can be read is for the configuration to say, with its own sentence
FOLDER = click.Path(file_okay=False, readable=False, path_type=Path)
_EXAMPLE = """'{"text": "hi"}'"""
_PAIR = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*=.*", re.DOTALL)

AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])


# Options


@dataclass(slots=True)
class Selection:
    """The configuration and state that `--config` and `--state` select. In a command inside another one, its own
    options win."""

    config: Path | None = None
    state: Path | None = None

    def open_state(self) -> State:
        """Raises CommandFailed if the state directory cannot be used."""
        return open_state(self.state)

    def scope(self) -> DecisionScope:
        """Whose decisions the command is about, once it has imported what it needs: interrupts are allowed.

        Raises:
            CommandFailed: the state directory cannot be used.
        """
        from host.cli.targets import DecisionScope

        end_loading()
        return DecisionScope(self.open_state(), self.config)


pass_selection = click.make_pass_decorator(Selection, ensure=True)


def _select(context: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    if value is not None:
        setattr(context.ensure_object(Selection), str(parameter.name), value)


config_option = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(readable=False, path_type=Path),
    expose_value=False,
    callback=_select,
    help="The configuration that is meant.",
)
"""Add `--config`, as the one configuration that is meant."""
state_option = click.option(
    "--state",
    metavar="DIR",
    type=FOLDER,
    expose_value=False,
    callback=_select,
    help="The state directory; default $COLONNADE_STATE, or ~/.local/state/colonnade.",
)
"""Add `--state`."""


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--config` and `--state`; the command takes the Selection first."""
    return config_option(state_option(pass_selection(command)))


@dataclass(frozen=True, slots=True)
class LeastLevels:
    """The least severities that are logged: of `parts` their own, of all others `level`."""

    level: str
    parts: dict[str, str] = field(default_factory=dict)

    def of(self, part: str) -> str:
        return self.parts.get(part, self.level)


def _read_levels(text: str) -> LeastLevels:
    level, parts = "", {}
    for each in text.split(","):
        part, of_part, given = each.strip().rpartition("=")
        if given not in LOG_LEVELS:
            raise click.BadParameter(f"{given!r} is no level; expected {', '.join(LOG_LEVELS)}")
        if not of_part and not level:
            level = given
        elif part in LOG_PARTS and part not in parts:
            parts[part] = given
        elif part in LOG_PARTS or not of_part:
            raise click.BadParameter(f"a second level for {part or 'all parts'}; expected one")
        else:
            raise click.BadParameter(f"{part!r} is no part of the log; expected {', '.join(LOG_PARTS)}")
    return LeastLevels(level or "warning", parts)


def log_level_option(default: str) -> Callable[[AnyCallable], AnyCallable]:
    """Add `--log-level`."""
    return click.option(
        "--log-level",
        metavar="LEVEL[,PART=LEVEL...]",
        type=_read_levels,
        shell_complete=lambda context, parameter, begun: [each for each in LOG_LEVELS if each.startswith(begun)],
        default=default,
        show_default=True,
        help=f"The least severity ({', '.join(LOG_LEVELS)}) that is logged to standard error, and that of parts of the "
        f"log: {', '.join(LOG_PARTS)}.",
    )


def own_endpoint(config: Config, view: str) -> Endpoint:
    """The endpoint of a client of this user, with a view if one is named.

    Raises:
        CommandFailed: there is no such view.
    """
    from config.problems import clip, did_you_mean
    from host.addresses import addresses_of

    endpoint = addresses_of(config).own(view)
    if endpoint is None:
        remedy = did_you_mean(view, config.views) or f"it has {', '.join(config.views) or 'none'}"
        raise CommandFailed(f"--view: {config.source} has no view {clip(view)}; {remedy}", WRONG)
    return endpoint


secrets_option = click.option(
    "--secrets",
    type=click.Choice(("keyring", "file")),
    help="Where literal secrets go. Default: the system's keyring if it can be used, else files beside FILE.",
)
"""Add `--secrets`."""


# Types of values. Each raises a BadParameter, to which click adds the name of the argument or option.


def read_url(text: str) -> str:
    """The URL of an endpoint."""
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and parts.hostname is not None and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise click.BadParameter(f"expected a URL such as http://127.0.0.1:8808/mcp, found {text!r}")
    return text


def read_header(text: str) -> tuple[str, str]:
    """`NAME: VALUE`, as a pair."""
    name, value = (part.strip() for part in text.partition(":")[::2])
    if not name or not value:
        # The value is not repeated: it may be a secret whose name was left out. One without quotes has ended at its
        # first blank; refused as a further argument, the rest would be repeated.
        raise click.BadParameter("expected NAME: VALUE, for instance 'Authorization: Bearer TOKEN'")
    return name, value


def read_age(text: str) -> int:
    """A time such as 15m, in seconds."""
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    if match is None:
        raise click.BadParameter(f"expected a time such as 15m, 2h or 7d, found {text!r}")
    return int(match[1]) * UNITS[match[2]]


def read_id(text: str) -> str:
    """The name of a call, or its beginning."""
    if re.fullmatch("[0-9a-f]{6,16}", text) is None:
        raise click.BadParameter("expected 6 to 16 digits of the ID that colonnade history shows")
    return text


def json_object(text: str = "{}", *more: str, before: str = "") -> dict[str, Any]:
    """The arguments of a call. `before` is the command before them, without its options.

    Raises:
        CommandFailed: the text is no JSON object, or there are `more` words. What `key=value` should be is said.
    """
    if words := dict(each.split("=", 1) for each in (text, *more) if _PAIR.fullmatch(each)):
        meant = shlex.quote(json.dumps({name: _json_value(given) for name, given in words.items()}, ensure_ascii=False))
        raise CommandFailed(f"the arguments must be one JSON object: {f'{before} {meant}'.strip()}", WRONG)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise CommandFailed(f"the arguments are not JSON, such as {_EXAMPLE}: {problem}", WRONG) from problem
    if not isinstance(value, dict) or more:
        raise CommandFailed(f"the arguments must be one JSON object, such as {_EXAMPLE}", WRONG)
    return value


def _json_value(text: str) -> object:
    """The value that a word stands for: a number or a truth, or else the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


# The terminal


def is_confirmed(question: str) -> bool:
    """Whether the person at the terminal answers yes. The end of the input is no."""
    return (ask_person(question, " [y/N] ") or "").lower() in ("y", "yes")


def ask_person(question: str, prompt: str) -> str | None:
    """The line that a person types after the question was shown, without blanks around it; None at the end of the
    input."""
    show_question(question, prompt)
    line = sys.stdin.readline()
    return line.strip() if line else None


def show_question(question: str, prompt: str) -> None:
    """Show a question, and the prompt for its answer. What was typed at the terminal before, a begun line included, was
    meant for something else and is thrown away. What comes through a pipe stays."""
    import termios

    print(question, end="", flush=True)
    with suppress(OSError, ValueError, termios.error):  # no terminal, or one in name only
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    print(prompt, end="", flush=True)  # last: who waits for it may answer at once


# Files


def find_config(remedy: str = "name its FILE") -> str:
    """The configuration file that is used where none is named: `colonnade.yaml` in the current folder, or else the
    user's own. The remedy is what to do where there is none, as a part of a sentence.

    Raises:
        CommandFailed: there is neither.
    """
    if (found := default_config()) is not None:
        return found
    raise CommandFailed(f"there is no configuration: {remedy}, or put it at ./{CONFIG_NAME} or {users_config()}", WRONG)


def default_config() -> str | None:
    """As `find_config`; None if there is neither."""
    for each in (Path(CONFIG_NAME), users_config()):
        if os.path.lexists(each):  # a link to nothing is an error of its own, not a reason to use the other one
            return str(each)
    return None


def users_config() -> Path:
    """The configuration that is used in folders without one of their own. It may not be there."""
    from host import relay

    return Path(relay.users_config(os.environ))


def load_config(
    file: str,
    *,
    may_ask: bool = False,
    in_background: bool = False,
    given_address: GivenAddress = (None, None),
) -> Config:
    """The configuration, with its notices on standard error. If it is invalid, all problems are printed and the command
    ends.

    Args:
        may_ask: the inputs of a desktop host's file may be asked for on the terminal, if there is one.
        in_background: servers may lack variables, which clients hand over.
        given_address: holds instead of that of the file.
    """
    from config import ConfigError, load

    try:
        if may_ask and sys.stdin.isatty():
            config = load(file, ask=ask_for_input, given_address=given_address)
        else:
            config = load(file, in_background=in_background, given_address=given_address)
    except ConfigError as problem:
        print(problem, file=sys.stderr)
        if not may_ask and not sys.stdin.isatty() and (unset := _unset_variables(file)):
            print(
                f"A desktop host passes on few variables, perhaps not {', '.join(unset)}: use ${{file:PATH}} or "
                "${keyring:NAME} in the configuration, or give them in env of Colonnade's entry in the host's file.",
                file=sys.stderr,
            )
        raise click.exceptions.Exit(WRONG) from problem
    for notice in config.notices:
        print(f"{file}: {notice}", file=sys.stderr)
    return config


def _unset_variables(file: str) -> list[str]:
    """The environment variables that a configuration of ours needs and that are not set."""
    from config import ConfigError
    from config.load import place_of, read_file
    from config.references import variables_in

    try:
        document, host = read_file(place_of(Path(os.path.abspath(file))))
    except ConfigError:
        return []
    return sorted(variables_in(document.root) - os.environ.keys()) if host is None else []


def ask_for_input(id: str, description: str) -> str | None:
    """An input of a desktop host's file, as the person at the terminal types it; None at the end of the input."""
    from getpass import getpass

    from host.sanitize import visible

    try:
        return getpass(f"{visible(description or id)}: ", stream=sys.stderr)
    except EOFError:
        return None


def open_state(directory: Path | None) -> State:
    """The state directory.

    Raises:
        CommandFailed: it cannot be used.
    """
    from host.storage import directory as storage
    from host.storage.store import StateError

    try:
        return storage.open_state(directory)
    except StateError as problem:
        raise CommandFailed(str(problem), WRONG) from problem


def show_path(path: Path) -> str:
    """A path for people, with `~` for the user's folder."""
    from host.sanitize import visible

    try:
        return visible(f"~/{path.relative_to(Path.home())}")
    except ValueError:
        return visible(str(path))


def typed_path(path: Path) -> str:
    """A path as a word of a command line."""
    from host.sanitize import visible

    shown = show_path(path)
    return shown if shown == f"~/{shlex.quote(shown[2:])}" else visible(shlex.quote(str(path)))


def count_servers(config: Config) -> str:
    """The number of servers that are not disabled, in words."""
    return counted(sum(not spec.disabled for spec in config.servers.values()), "server")


def own_folder() -> str:
    """The real path of the folder in which the command runs, which is that of a client; empty if it is gone."""
    try:
        return os.path.realpath(os.getcwd())
    except OSError:
        return ""


def counted(count: int, what: str) -> str:
    """A number of things, in words."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")
