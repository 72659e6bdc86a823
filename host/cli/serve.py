"""The command `serve`."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from host.cli.common import (
    FILE,
    Selection,
    count_servers,
    load_config,
    log_level_option,
    pass_selection,
    state_option,
)
from host.cli.exit_codes import DONE, WRONG, CommandFailed
from host.non_blocking import NonBlockingStream


@click.command()
@click.argument("file", type=FILE)
@click.option("--stdio", is_flag=True, help="Serve one client on standard input and output.")
@log_level_option("warning")
@state_option
@pass_selection
def serve(selection: Selection, file: str, stdio: bool, log_level: str) -> int:
    """Serve all servers of a configuration behind one endpoint.

    FILE is a configuration (YAML), or the mcpServers file of a desktop host.
    """
    config = load_config(file)
    state = selection.open_state()
    bound = None
    if not stdio:
        from host.wire.port import bind

        try:
            bound = bind(*config.listen.address)
        except OSError as error:
            raise CommandFailed(f"{error.strerror}; another port is set under listen.address", WRONG) from error
    # With --stdio, states and the log both go to standard error.
    out = NonBlockingStream(sys.stderr if bound is None else sys.stdout)
    try:
        url = ""
        if bound is not None:
            from host.version import VERSION

            host = config.listen.address.host
            address = f"[{host}]" if ":" in host else host
            url = f"http://{address}:{bound.getsockname()[1]}{config.listen.path}"
            out.write(f"Colonnade {VERSION} serves {count_servers(config)} at {url}\n")
        # The port listens; the rest of the program is imported only now.
        import trio

        from host import app
        from host.cli.log import StatusLines, open_log
        from host.cli.terminal import Terminal
        from host.errors import first_exception
        from host.heap import spare_collections

        spare_collections()
        journal = open_log(log_level, without=StatusLines.SHOWN_EVENTS if bound is None else ())
        journal.subscribe(StatusLines(Terminal(out)).note)
        say = _to_terminal(out)
        problem = None
        try:
            if bound is None:
                trio.run(app.serve_over_stdio, config, state, journal, say)
            else:
                trio.run(app.serve, config, state, bound, url, journal, say)
        except* app.START_ERRORS as group:
            problem = first_exception(group)
        if problem is not None:
            raise CommandFailed(str(problem), WRONG)
        return DONE
    finally:
        out.close()


def _to_terminal(out: NonBlockingStream) -> Callable[[str], object] | None:
    """Write lines that only the person who started the host may read; None if standard error is no terminal: then it
    may be a file that others read."""
    if not sys.stderr.isatty():
        return None
    if out.isatty():
        return lambda line: out.write(f"{line}\n")
    return lambda line: print(line, file=sys.stderr, flush=True)
