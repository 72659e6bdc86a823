"""The trial of new servers by the commands that write them: what is started is shown, and the person is asked."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from host.cli.common import LeastLevels, counted, is_confirmed, own_folder

if TYPE_CHECKING:
    from config import Config
    from config.known_servers import Advice
    from host.cli.desktop.own_file import OwnFile
    from host.policy.rows import DefinitionRow
    from host.storage.directory import State
    from host.trial import Trial

_LONGEST = 300
"""Characters of a command or a URL that are shown."""

no_try_option = click.option("--no-try", is_flag=True, help="Do not start the servers once to learn what they offer.")
"""Add `--no-try`."""


approve_option = click.option(
    "--approve", is_flag=True, help="Approve what the servers offer as it is shown, so that their claims count."
)
"""Add `--approve`."""


@dataclass(frozen=True)
class Tried:
    """The servers of a command after their trial.

    Attributes:
        unwanted: those that failed and that the person does not want.
        offers: the definitions that the others offer, by server.
        unknown: the others of which nothing that they offer is known.
        why: why that is so.
    """

    unwanted: frozenset[str] = frozenset()
    offers: Mapping[str, Sequence[DefinitionRow]] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Advisable:
    """The servers that a command is about to write, while lines that are known to help may still be put in.

    Attributes:
        servers: the keys of each, which are changed in place.
        defaults: the keys under `defaults` of the file.
        put: gives the file with the servers as they are now.
        refused: the server and the line of each that the person did not want.
    """

    servers: Mapping[str, dict[str, object]]
    defaults: Mapping[str, object]
    put: Callable[[], OwnFile]
    refused: set[tuple[str, str]] = field(default_factory=set)

    def advise(self, id: str, *, yes: bool, info: Iterable[tuple[str, str]] = (), reason: str = "") -> bool:
        """Show what is known of a server, and put in the lines that the person wants. Whether there are any. A line
        that was refused is shown again only with a failure that it mends."""
        from config.known_servers import advise
        from host.cli.terminal import printable

        taken = False
        for advice in advise(self.servers[id], self.defaults, info=dict(info), reason=reason):
            if (id, advice.line) in self.refused and not advice.row.is_shown_by(reason):
                continue
            show_advice(id, [advice])
            if advice.changed is None:
                continue
            if not yes and not (sys.stdin.isatty() and is_confirmed(f"Write this line for {id}?")):
                self.refused.add((id, advice.line))
                continue
            print(f"Written for {id}: {printable(advice.line)}")
            self.servers[id].clear()
            self.servers[id].update(advice.changed)
            taken = True
        return taken


def show_advice(id: str, advices: Iterable[Advice]) -> None:
    """Show what is known of a server."""
    from host.cli.terminal import Terminal, printable

    for advice in advices:
        print(Terminal(sys.stdout).paragraph(f"  {id:<20} ", printable(f"known of it: {advice}"), indent=23))


def try_new(
    own: OwnFile, ids: Iterable[str] | None, *, yes: bool, no_try: bool, advisable: Advisable | None = None
) -> Tried:
    """Try the servers that a command is about to write.

    Args:
        own: the file with the servers, before it is written.
        ids: the new ones; None for all.
        yes: nobody is asked, and the answer is yes.
        advisable: what is known of them is advised before and after the trial. Those that failed are tried once more
            with what was put in.
    """
    from config import ConfigError, load
    from host.cli.common import open_state

    if advisable is not None and [id for id in advisable.servers if advisable.advise(id, yes=yes)]:
        own = advisable.put()
    if no_try:
        return Tried(why="with --no-try, no server was tried")
    try:
        config = load(own.path, data=own.data, in_background=True)  # a variable may be missing for one server alone
    except ConfigError as problem:
        print(f"Not tried, since the file has a mistake: {problem.problems[0]}")
        return Tried(why="the file has a mistake, so no server was tried")
    wanted = _startable(config, config.servers if ids is None else ids)
    trials = try_unknown(config, wanted, open_state(None), yes=yes)
    if advisable is not None:
        helped = [
            each.server
            for each in trials
            if advisable.advise(each.server, yes=yes, info=each.info, reason=each.problem)
        ]
        if again := [each.server for each in trials if each.has_failed and each.server in helped]:
            config = load(own.path, data=advisable.put().data, in_background=True)
            others = [each for each in trials if each.server not in again]
            trials = [*others, *try_unknown(config, again, open_state(None), yes=True)]
    offers = {each.server: each.definitions for each in trials if each.definitions}
    failed = [each.server for each in trials if each.has_failed]
    unwanted = frozenset[str]()
    if failed and yes:
        print(f"Added all the same: {', '.join(failed)}.")
    elif failed and not is_confirmed(f"Add {', '.join(failed)} all the same?"):
        unwanted = frozenset(failed)
    unknown = tuple(id for id in wanted if id not in offers and id not in unwanted)
    return Tried(unwanted, offers, unknown, "no trial showed what they offer" if wanted else "no server may be started")


def keep_approved(file: Path, tried: Tried, *, has_approved: bool, wants_all: bool = False) -> None:
    """Approve what was shown if the person said so, and have relays answer from it. `wants_all`: the person wants all
    servers approved, and is told of those that are not."""
    from host.cli.approving import approve_offers
    from host.cli.common import open_state

    if wants_all and (tried.unknown or not tried.offers):
        what = f"Not approved: {', '.join(tried.unknown)}" if tried.offers else "Nothing is approved"
        names = " ".join(tried.unknown) or "SERVER"
        print(f"{what}; {tried.why}. Once they run: colonnade definitions approve {names}")
    if not tried.offers:
        return
    state = open_state(None)
    if has_approved:
        approve_offers(file, tried.offers, state)
    else:
        names = " ".join(tried.offers)
        print(f"What tools claim counts once you approved it: colonnade definitions approve {names}")
    _remember_first_answers(file, state)


def ask_key() -> str:
    """The key `ask` for a new file, as the person at the terminal wants it; empty for the default."""
    if not sys.stdin.isatty():
        return ""
    keys, comments = [], []
    print(
        "\nSome hosts have forms, by which they could answer confirmations too. Their hooks, and modes that approve by"
    )
    print("themselves, answer such forms as you do, and Colonnade cannot tell them from you.")
    if is_confirmed("May forms of hosts answer confirmations?"):
        keys.append("answers: [console, terminal, client]")
        comments.append("# client: forms of hosts answer confirmations too.\n")
    if is_confirmed("Open the console in your browser when a call waits for you and no page of it is open?"):
        keys.append("notify: [browser]")
        comments.append("# browser: the desktop notifies, and the console opens by itself.\n")
    return f"{''.join(comments)}ask: {{{', '.join(keys)}}}\n\n" if keys else ""


def _startable(config: Config, ids: Iterable[str]) -> list[str]:
    """Those of these servers that are neither disabled nor of a project that no host may start."""
    return [id for id in ids if not config.servers[id].disabled and id not in config.unapproved]


def try_unknown(config: Config, ids: Iterable[str], state: State, *, yes: bool) -> list[Trial]:
    """Try those of these servers that may be started and whose lists are not remembered, if the person says yes, and
    print what comes of it. Returns the outcomes, in this order.

    Args:
        yes: nobody is asked, and the answer is yes.
    """
    wanted = _startable(config, ids)
    if not wanted:
        return []
    if not yes and not sys.stdin.isatty():
        print("Not tried, since nobody can be asked here: --yes starts each server once, to learn what it offers.")
        return []
    trials: list[Trial] = []

    def may_try(unknown: list[str]) -> bool:
        return _is_wanted(config, unknown, yes=yes)

    def tell(trial: Trial) -> None:
        if not trial.is_known:
            _show(trial)
        trials.append(trial)

    if problem := _try_servers(config, state, wanted, may_try, tell):
        print(f"Not tried: {problem}")
    return sorted(trials, key=lambda trial: wanted.index(trial.server))


def _remember_first_answers(file: Path, state: State) -> None:
    """Have relays answer for the next host from what the servers of a file offer and what of it is approved, if the
    lists of all of them are known. No server is started."""
    from config import ConfigError, load

    with suppress(ConfigError):  # with any problem, the first client waits for the start
        _try_servers(load(file, in_background=True), state, [], lambda unknown: False, print)


def _try_servers(
    config: Config,
    state: State,
    ids: list[str],
    may_try: Callable[[list[str]], bool],
    tell: Callable[[Trial], object],
) -> str:
    """Run `try_servers`. Why no host of the configuration could start; empty if it did."""
    import trio

    from host.app import START_ERRORS
    from host.cli.log import open_log
    from host.cli.signals import end_loading
    from host.errors import first_exception
    from host.trial import try_servers

    end_loading()
    problem = ""
    try:
        trio.run(try_servers, config, state, open_log(LeastLevels("error")), ids, may_try, tell, own_folder())
    except* (*START_ERRORS, OSError) as group:
        problem = str(first_exception(group))
    return problem


def _is_wanted(config: Config, unknown: list[str], *, yes: bool) -> bool:
    """Show what would be started, and ask."""
    from host.sanitize import visible
    from host.trial import TRIAL_TIMEOUT

    print("\nTo know the tools before a client asks for them, Colonnade tries each new server once:")
    for id in unknown:
        print(f"  {id:<20} {visible(_target(config, id))}")
    if not yes and not is_confirmed("Try them now?" if len(unknown) > 1 else "Try it now?"):
        print("Not tried.")
        return False
    print(f"Trying {counted(len(unknown), 'server')}, for {TRIAL_TIMEOUT:.0f} s at most:", flush=True)
    return True


def _target(config: Config, id: str) -> str:
    """The part of a server that is tried: its command or URL as the file has it, without what is usually secret."""
    from config.written import shown_change

    section = json.loads(shown_change(None, config.written[id])[1])
    if "url" in section:
        helper = f", with headers from {_words(section['headers_helper'])}" if "headers_helper" in section else ""
        return f"connects to {_clipped(str(section['url']))}{helper}"
    words = _words(section["command"], section.get("args", []))
    return f"starts {words}" + (f" in {own_folder()}" if config.servers[id].takes_client_folder else "")


def _words(command: str | list[object], arguments: Iterable[object] = ()) -> str:
    """A command as the file has it, with its arguments, as one line."""
    words = shlex.join(map(str, command)) if isinstance(command, list) else command
    return _clipped(" ".join([words, *(shlex.quote(str(word)) for word in arguments)]))


def _clipped(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _show(trial: Trial) -> None:
    from host.cli.terminal import Terminal, printable

    terminal = Terminal(sys.stdout)
    before = f"  {trial.server:<20} "
    print(terminal.paragraph(before, printable(trial.offers or trial.problem), indent=len(before)), flush=True)
