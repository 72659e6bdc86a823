"""The command `import`: the servers of desktop hosts become a configuration of ours."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from host.cli.approving import Offers, reading, show_offers
from host.cli.common import (
    CONFIG_NAME,
    FILE,
    ask_for_input,
    ask_person,
    counted,
    find_config,
    is_confirmed,
    open_state,
    secrets_option,
    show_path,
    typed_path,
)
from host.cli.exit_codes import DONE, FAILED, WRONG, CommandFailed
from host.cli.servers import Served, offer_reload
from host.cli.trying import Advisable, approve_option, ask_key, keep_approved, no_try_option, show_advice, try_new

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from config import ConsentWord
    from config.desktop.importing.found import FoundFile, FoundServer
    from config.desktop.importing.merge import ImportedServer, Merge
    from host.cli.desktop.own_file import OwnFile
    from host.cli.secret_store import SecretStore


_COLUMN = 48
"""Characters of a command before what it does; a longer one has it right behind."""


def _check_source(text: str) -> str:
    """The name of a desktop host, or a file."""
    from config.desktop.hosts import HOSTS
    from host.cli.desktop.host_file import meant_hosts

    if text not in {host.name for host in HOSTS} and not Path(text).is_file():
        raise click.BadParameter(f"{text!r} is neither a file nor a host that is known; {meant_hosts(text)}")
    return text


def _complete_source(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    from host.cli.desktop.host_file import hosts_beginning_with

    return hosts_beginning_with(incomplete) or [CompletionItem(incomplete, type="file")]


@click.command("import")
@click.argument("sources", metavar="[HOST|FILE]...", nargs=-1, type=_check_source, shell_complete=_complete_source)
@click.option(
    "--output", "-o", metavar="FILE", type=FILE, default=CONFIG_NAME, show_default=True, help="The file to write."
)
@click.option("--merge", is_flag=True, help="Add the servers to the configuration that is there already.")
@click.option("--keep-approvals", is_flag=True, help="Allow calls that the host passes without asking.")
@secrets_option
@click.option("--dry-run", is_flag=True, help="Print the file and write nothing.")
@no_try_option
@approve_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask before servers are started and the file is written.")
def import_servers(
    sources: tuple[str, ...],
    output: str,
    merge: bool,
    keep_approvals: bool,
    secrets: str | None,
    dry_run: bool,
    no_try: bool,
    approve: bool,
    yes: bool,
) -> int:
    """Write a configuration with the servers of desktop hosts.

    Without HOST and FILE: all hosts' files of the user, and those of the current folder's project. The files of the
    hosts are only read. Values of variables and headers, and other secrets, go to the system's keyring, or to files
    beside the configuration. If you agree, each server is started once before, so that its tools are known and mistakes
    are found. Then you say before which calls a person is asked here as well, and approve what was shown.
    """
    from config.desktop.importing.merge import Merge
    from config.desktop.importing.tool_consent import RECOMMENDED
    from config.known_servers import advise
    from config.references import Expander
    from host.cli.desktop.own_file import OwnFile
    from host.cli.secret_store import open_secrets

    file = OwnFile(Path(os.path.abspath(output)))
    found, descriptions, moved = _read(sources, keep_approvals=keep_approvals)
    merged = Merge(Expander(os.environ, file.path.parent), file.servers)
    merged.add(found)
    usable = [server for server in merged.servers if not server.problems]
    for server, id in merged.present:
        print(f"{server.id} is in {output} already, as {id}; it is left as it is.")
    if not usable:
        raise CommandFailed(
            "there is no server to import"
            + (
                " that is not there yet; colonnade connect --move HOST goes on with these"
                if merged.present or moved
                else ""
            )
        )
    can_ask = sys.stdin.isatty() and not yes
    if file.exists and not merge and not can_ask:
        raise CommandFailed(f"{output} is there already; --merge adds to it, --output names another file", WRONG)
    store = open_secrets(file.path, secrets)
    if not dry_run and not yes and not sys.stdin.isatty():
        raise CommandFailed("nothing was written, since nobody can be asked here; confirm with --yes", WRONG)
    _settle(merged, store, descriptions, dry_run=dry_run)
    if all(server.problems for server in merged.servers):
        why = "for which there was no answer" if sys.stdin.isatty() else "which is asked for on a terminal alone"
        raise CommandFailed(f"nothing was written: no server can be used without its input, {why}")
    ids = [server.id for server in merged.servers if not server.problems]
    if not dry_run and not yes:
        _confirm(file, output, len(ids))
    _put(file, merged, RECOMMENDED)
    servers = {each.id: each.ours for each in merged.servers if each.id in ids}
    if dry_run:
        for id, ours in servers.items():
            show_advice(id, advise(ours, file.defaults))
        print(f"\n{output} would be:\n\n{file.text}", end="")
        return DONE
    file.make_folder()
    store.save()

    def put() -> OwnFile:
        changed = OwnFile(file.path)
        _put(changed, merged, RECOMMENDED)
        return changed

    advisable = Advisable(servers, file.defaults, put)
    tried = try_new(file, ids, yes=yes, no_try=no_try, advisable=advisable)
    if tried.unwanted.issuperset(ids):
        raise CommandFailed("nothing was written")
    merged.servers = [server for server in merged.servers if server.id not in tried.unwanted]
    for each in merged.servers:
        each.reading = reading(tried.offers.get(each.id, ()))
    word, has_approved = _answer(merged.servers, tried.offers, yes=yes, approve=approve)
    answers = "" if file.exists or yes else ask_key()
    file = OwnFile(file.path)
    _put(file, merged, word, answers)
    file.write()
    keep_approved(file.path, tried, has_approved=has_approved, wants_all=approve)
    new = [each.id for each in merged.servers if not each.problems]
    served = offer_reload(open_state(None), file.path, new, asks=can_ask)
    _report(merged.servers, store, output, served)
    return DONE


def _answer(
    servers: list[ImportedServer], offers: Offers, *, yes: bool, approve: bool
) -> tuple[ConsentWord | None, bool]:
    """The person's answer to before which calls somebody is asked here, and whether it approves what was shown.
    Without a person: the recommended answer, which approves only if the options say so."""
    from config import ConsentWord
    from config.desktop.importing.tool_consent import NOTHING_PASSED, RECOMMENDED

    if offers:
        print("\nWhat they offer, with what each tool claims about itself:")
        show_offers(offers)
    if yes:
        print("Asked about here: all calls but those of tools that only read, by approved definitions.")
        return RECOMMENDED, approve
    words: dict[str, ConsentWord | None] = {"1": ConsentWord.READ_ONLY, "2": ConsentWord.CAREFUL}
    hiding = list(dict.fromkeys(_hiding(servers)))
    if not hiding:
        words["3"] = None
    _ask(hiding)
    if any(each.passed != NOTHING_PASSED for each in servers if not each.problems):
        print("Whatever you answer, not asked about is what --keep-approvals or a consent in the files lets pass.")
    if offers:
        print("Your answer also approves the definitions above: what they claim counts then, until it changes.")
    while True:
        said = ask_person(f"Answer {', '.join(words)}{' or s (show them in full)' if offers else ''}", " [1]: ")
        if said is None:
            print("No answer: taken is 1, and nothing is approved.")
            return RECOMMENDED, False
        if said.lower() == "s" and offers:
            show_offers(offers, whole=True)
            _ask(hiding)
        elif (said or "1") in words:
            return words[said or "1"], True


def _ask(hiding: list[str]) -> None:
    """Print the question, with the meaning of its answers. `hiding` are the hosts that show no switches of tools."""
    print("\nBefore which calls is a person asked here as well?")
    print("  1  those of tools that may change something (recommended)")
    print("  2  all")
    if hiding:
        print(f"No file shows which tools are switched off in {', '.join(hiding)}, so one of these is needed.")
    else:
        print("  3  none but those that the files of the hosts name")


def _hiding(servers: list[ImportedServer]) -> Iterator[str]:
    """The hosts of which no file shows everything that restricts these servers."""
    from config.desktop.importing.found import title_of

    for found in (each for server in servers if not server.problems for each in server.found):
        if not found.shows_switches:
            yield title_of(found.host)


def _read(sources: tuple[str, ...], *, keep_approvals: bool) -> tuple[list[FoundServer], dict[str, str], int]:
    """Read and show the servers of all files; also the descriptions of the inputs that their hosts ask for, and the
    number of servers that were moved out of the files."""
    from config import ConfigError
    from config.desktop.importing.found import read_servers
    from host.cli.desktop.host_file import known_records
    from host.sanitize import visible

    servers: list[FoundServer] = []
    descriptions: dict[str, str] = {}
    records = {record.file: record for record in known_records()}
    moved = 0
    files = _files(sources)
    for file in files:
        print(f"{file.host.title}: {show_path(file.path)}" if file.host else show_path(file.path))
        try:
            found, inputs = read_servers(file, Path.home(), os.environ, keep_approvals=keep_approvals)
        except ConfigError as problem:
            for each in problem.problems:
                print(f"  cannot be read: {visible(each.text)} ({each.line}:{each.column})")
            continue
        record = records.get(str(file.path))
        if record is not None and (count := len(record.change.moved)):
            moved += count
            config = show_path(Path(record.config))
            print(f"  connected: it serves {config}; moved out of this file: {counted(count, 'server')}")
        elif not found:
            print("  no servers")
        _show(found)
        servers += found
        descriptions |= inputs
    if not files:
        raise CommandFailed("no file of a desktop host is found here; name a FILE", FAILED)
    return servers, descriptions, moved


def _files(sources: tuple[str, ...]) -> list[FoundFile]:
    from config.desktop.hosts import HOSTS
    from config.desktop.importing.found import FoundFile, find_files

    project, home = Path.cwd(), Path.home()
    if not sources:
        return list(find_files(HOSTS, project, home, os.environ))
    found: list[FoundFile] = []
    for source in sources:
        named = [host for host in HOSTS if host.name == source]
        if named and not (files := list(find_files(named, project, home, os.environ))):
            raise CommandFailed(f"no file of {named[0].title} is found here; name a FILE", FAILED)
        found += files if named else [FoundFile(Path(os.path.abspath(source)))]
    return found


def _show(servers: list[FoundServer]) -> None:
    """Show the servers of a file, with their restrictions and with what cannot be taken over."""
    from config.desktop.importing.text import describe_launch, describe_tools
    from host.sanitize import visible

    for remark in dict.fromkeys(each for server in servers if not server.problems for each in server.host_remarks):
        print(f"  {visible(remark)}")
    for server in servers:
        print(f"  {visible(server.id):<20} {visible(describe_launch(server))}")
        lines = [f"Cannot be used: {problem}" for problem in server.problems]
        if not lines:
            lines = [*describe_tools(server.tools), *server.remarks, *_variable_remark(server)]
        for line in lines:
            print(f"  {'':<20} {visible(line)}")


def _variable_remark(server: FoundServer) -> list[str]:
    """The sentence on variables that stay references, which a host in the background has from its clients alone."""
    from config.references import variables_in
    from host.wire.process import child_environment

    names = variables_in(server.ours, with_default=True)
    names -= child_environment({}, dict.fromkeys(names, "")).keys()
    if not names:
        return []
    return [
        f"It gets {', '.join(sorted(names))} from the client that starts Colonnade. Write ${{keyring:NAME}} or "
        "${file:PATH} instead where a client may lack it."
    ]


def _confirm(file: OwnFile, output: str, count: int) -> None:
    """Ask whether to write.

    Raises:
        CommandFailed: the person says no.
    """
    servers = counted(count, "server")
    question = f"Add {servers} to {output}, which is there already?" if file.exists else f"Write {servers} to {output}?"
    if not is_confirmed(question):
        raise CommandFailed("nothing was written")


def _settle(merged: Merge, store: SecretStore, descriptions: dict[str, str], *, dry_run: bool) -> None:
    """Replace inputs and secrets by references."""
    from host.sanitize import visible

    answers: dict[str, str | None] = {}

    def ask(id: str) -> str | None:
        if id not in answers and not sys.stdin.isatty():
            answers[id] = None
        elif id not in answers and dry_run:
            print(f"Without --dry-run, the input {visible(id)} is asked for: {visible(descriptions.get(id, ''))}")
            answers[id] = "?"  # any text: what is written refers to it, and it is not stored
        elif id not in answers:
            answers[id] = ask_for_input(id, descriptions.get(id, "")) or None
        return answers[id]

    for server in merged.servers:
        server.replace_inputs(ask, store.keep)
        server.replace_secrets(store.keep, os.environ)


def _put(file: OwnFile, merged: Merge, word: ConsentWord | None, top: str = "") -> None:
    """Put the servers into the file, with those that cannot be used as comments between them. A comment of an earlier
    import is not written twice, and gives way to its server. `word` is before which calls a person is asked, and `top`
    are keys for the top of a new file."""
    from config import Trust
    from config.desktop.importing.text import comment_of, pieces, server_value, whole_text
    from config.document import Plain

    if not file.exists:
        file.begin(whole_text(merged.servers, show_path, word, top))
        return
    default = file.default("consent")
    if file.default("trust") == Trust.TRUSTED:  # no file of a host says that a person trusts its servers fully
        for server in merged.servers:
            server.ours.setdefault("trust", Plain(Trust.STANDARD))
    former = {server.id: comment_of(server, file.text, show_path) for server in merged.servers}
    servers = [server for server in merged.servers if not (server.problems and former[server.id])]
    for server, text in pieces(servers, show_path, word, default):
        file.take_out(former[server.id])
        file.put(server.id, server_value(server, word, default), f"\n{text}" if file.servers else text)


def _report(servers: list[ImportedServer], store: SecretStore, output: str, served: Served) -> None:
    from host.sanitize import visible

    usable = [server for server in servers if not server.problems]
    print(f"\n{output}: {len(usable)} server{'' if len(usable) == 1 else 's'}")
    if store.names:
        print(f"Secrets are kept in {store}.")
    for server in servers:
        for problem in server.problems:
            print(f"{server.id} is a comment there: {visible(problem)}.")
    print("The files of the hosts are as before, and the hosts start their servers themselves. Next:")
    steps = []
    if served.waiting or served.problem:
        steps.append(("colonnade reload", "has the running Colonnade serve what is new"))
    commands = _connect_commands(usable, output)
    steps += [(command, "puts Colonnade in their place") for command in commands]
    if not commands and not served.runs:
        steps.append((f"colonnade serve {_typed(output)}", "serves them"))
    steps.append(("colonnade ask", "leave it open: you confirm here each call that is asked about"))
    width = min(_COLUMN, max(len(command) for command, _ in steps))
    for command, does in steps:
        print(f"  {command:<{width}}  # {does}")


def _connect_commands(servers: list[ImportedServer], output: str) -> list[str]:
    """The commands that put Colonnade in the place of imported servers, in the files that these are from."""
    from host.cli.desktop.host_file import known_paths

    hosts: dict[str, list[str]] = {}
    for each in (found for server in servers for found in server.found if found.host.files):
        options = f" --file {typed_path(each.file)}"
        for project, option in ((True, " --project"), (False, "")):
            if each.file in known_paths(each.host, project=project):
                options = option
        named = hosts.setdefault(options, [])
        if each.host.name not in named:
            named.append(each.host.name)
    config = "" if _is_found(output) else f" --config {_typed(output)}"
    return [f"colonnade connect {' '.join(names)} --move{options}{config}" for options, names in hosts.items()]


def _is_found(output: str) -> bool:
    """Whether commands find the file by themselves."""
    try:
        return os.path.samefile(find_config(), output)
    except (CommandFailed, OSError):
        return False


def _typed(output: str) -> str:
    return typed_path(Path(output)) if os.path.isabs(output) else shlex.quote(output)
