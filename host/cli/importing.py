"""The command `import`: the servers of desktop hosts become a configuration of ours."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from host.cli.common import CONFIG_NAME, FILE, ask_for_input, counted, is_confirmed, secrets_option, show_path
from host.cli.exit_codes import DONE, FAILED, WRONG, CommandFailed

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from config.importing.found import FoundFile, FoundServer
    from config.importing.merge import ImportedServer, Merge
    from host.cli.own_file import OwnFile
    from host.cli.secret_store import SecretStore


class _Source(click.ParamType[str]):
    """The name of a desktop host, or a file."""

    name = "source"

    def convert(self, value: str, parameter: click.Parameter | None, context: click.Context | None) -> str:
        from config.hosts import HOSTS
        from host.cli.suggest import meant_hosts

        if value not in {host.name for host in HOSTS} and not Path(value).is_file():
            problem = f"{value!r} is neither a file nor a host that is known; {meant_hosts(value, HOSTS)}"
            self.fail(problem, parameter, context)
        return value

    def shell_complete(
        self, context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from config.hosts import HOSTS

        found = [CompletionItem(host.name, help=host.title) for host in HOSTS if host.name.startswith(incomplete)]
        return found or [CompletionItem(incomplete, type="file")]


@click.command("import")
@click.argument("sources", metavar="[HOST|FILE]...", nargs=-1, type=_Source())
@click.option(
    "--output", "-o", metavar="FILE", type=FILE, default=CONFIG_NAME, show_default=True, help="The file to write."
)
@click.option("--merge", is_flag=True, help="Add the servers to the configuration that is there already.")
@click.option("--keep-approvals", is_flag=True, help="Allow calls that the host passes without asking.")
@secrets_option
@click.option("--dry-run", is_flag=True, help="Print the file and write nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before writing.")
def import_servers(
    sources: tuple[str, ...],
    output: str,
    merge: bool,
    keep_approvals: bool,
    secrets: str | None,
    dry_run: bool,
    yes: bool,
) -> int:
    """Write a configuration with the servers of desktop hosts.

    Without HOST and FILE: all hosts' files of the user, and those of the current folder's project. The files of the
    hosts are only read. Literal secrets go to the system's keyring, or to files beside the configuration.
    """
    from config.importing.merge import Merge
    from config.references import Expander
    from host.cli.own_file import OwnFile
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
            "there is no server to import" + (" that is not there yet" if merged.present or moved else "")
        )
    can_ask = sys.stdin.isatty() and not yes
    if file.exists and not merge and not can_ask:
        raise CommandFailed(f"{output} is there already; --merge adds to it, --output names another file", WRONG)
    if not dry_run and not yes:
        _confirm(file, output, len(usable))
    store = open_secrets(file.path, secrets)
    _settle(merged, store, descriptions, dry_run=dry_run)
    if all(server.problems for server in merged.servers):
        why = "for which there was no answer" if sys.stdin.isatty() else "which is asked for on a terminal alone"
        raise CommandFailed(f"nothing was written: no server can be used without its input, {why}")
    _put(file, merged)
    if dry_run:
        print(f"\n{output} would be:\n\n{file.text}", end="")
        return DONE
    store.save()
    file.write()
    _report(merged.servers, store, output)
    return DONE


def _read(sources: tuple[str, ...], *, keep_approvals: bool) -> tuple[list[FoundServer], dict[str, str], int]:
    """Read and show the servers of all files; also the descriptions of the inputs that their hosts ask for, and the
    number of servers that were moved out of the files."""
    from config import ConfigError
    from config.importing.found import read_servers
    from host.cli.connected_files import known_records
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
    from config.hosts import HOSTS
    from config.importing.found import FoundFile, find_files

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
    from config.importing.text import describe_launch, describe_tools
    from host.sanitize import visible

    for remark in dict.fromkeys(each for server in servers if not server.problems for each in server.host_remarks):
        print(f"  {visible(remark)}")
    for server in servers:
        print(f"  {visible(server.id):<20} {visible(describe_launch(server))}")
        lines = [f"Cannot be used: {problem}" for problem in server.problems]
        if not lines:
            lines = [*describe_tools(server.tools), *server.remarks]
        for line in lines:
            print(f"  {'':<20} {visible(line)}")


def _confirm(file: OwnFile, output: str, count: int) -> None:
    """Ask whether to write.

    Raises:
        CommandFailed: the person says no, or nobody can be asked.
    """
    if not sys.stdin.isatty():
        raise CommandFailed("nothing was written, since nobody can be asked here; confirm with --yes", WRONG)
    servers = counted(count, "server")
    question = f"Add {servers} to {output}, which is there already?" if file.exists else f"Write {servers} to {output}?"
    if not is_confirmed(question):
        raise CommandFailed("nothing was written")


def _settle(merged: Merge, store: SecretStore, descriptions: dict[str, str], *, dry_run: bool) -> None:
    """Replace inputs and secrets by references."""
    from config.importing.secrets import replace_inputs, replace_secrets
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
        replace_inputs(server, ask, store.keep)
        replace_secrets(server, store.keep, os.environ)


def _put(file: OwnFile, merged: Merge) -> None:
    """Put the servers into the file, with those that cannot be used as comments between them. A comment of an earlier
    import is not written twice, and gives way to its server."""
    from config.importing.text import comment_of, pieces, server_value, whole_text

    if not file.exists:
        file.begin(whole_text(merged.servers, show_path))
        return
    former = {server.id: comment_of(server, file.text, show_path) for server in merged.servers}
    servers = [server for server in merged.servers if not (server.problems and former[server.id])]
    for server, text in reversed(pieces(servers, show_path)):  # each goes to the front
        file.take_out(former[server.id])
        file.put(server.id, server_value(server), f"{text}\n" if file.servers else text)


def _report(servers: list[ImportedServer], store: SecretStore, output: str) -> None:
    from host.sanitize import visible

    usable = [server for server in servers if not server.problems]
    print(f"\n{output}: {len(usable)} server{'' if len(usable) == 1 else 's'}")
    if store.names:
        print(f"Secrets are kept in {store.place}: {', '.join(map(visible, store.names))}.")
    for server in servers:
        for problem in server.problems:
            print(f"{server.id} is a comment there: {visible(problem)}.")
    print("The files of the hosts are as before, and the hosts start their servers themselves.")
    if commands := _connect_commands(usable, output):
        print("To put Colonnade in their place:")
        for command in commands:
            print(f"  {command}")
    print(f"Now: colonnade check {output}")
    print("Calls that need your confirmation wait for you in `colonnade ask`, or on the page of `colonnade console`.")


def _connect_commands(servers: list[ImportedServer], output: str) -> list[str]:
    """The commands that put Colonnade in the place of imported servers, in the files that these are from."""
    from config.hosts import GENERIC
    from host.cli.connected_files import known_paths
    from host.sanitize import visible

    hosts: dict[str, list[str]] = {}
    for each in (found for server in servers for found in server.found if found.host is not GENERIC):
        options = f" --file {visible(shlex.quote(str(each.file)))}"
        for project, option in ((True, " --project"), (False, "")):
            if each.file in known_paths(each.host, project=project):
                options = option
        named = hosts.setdefault(options, [])
        if each.host.name not in named:
            named.append(each.host.name)
    config = "" if output == CONFIG_NAME else f" --config {shlex.quote(output)}"
    return [f"colonnade connect --move{config} {' '.join(names)}{options}" for options, names in hosts.items()]
