"""Telling people that calls wait for them: on their desktop, by a program, or by a webhook (`ask.notify`).

What is told is the server, the tool, and the client that asks: no arguments, no URI, no link. All that comes at once is
one notice. The queue of confirmations waits for nothing here; it learns only whether people can be told at all.
"""

from __future__ import annotations

import html
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import trio

from config import Channel, Notice
from host.journal import InternalError, Journal, NoticeFailed
from host.policy.confirmations import ConfirmationQueue, PendingConfirmation
from host.protocol.methods import Kind
from host.sanitize import visible
from host.url import Url
from host.version import VERSION
from host.wire.descent import examine_process, refusal_reason
from host.wire.http_pool import Headers
from host.wire.link import LinkLost
from host.wire.pipe import LineWriter, PipeStalled
from host.wire.process import Keeper, SpawnError, child_environment

TIMEOUT = 10.0
"""Seconds for a program, and for a webhook."""
PAUSE = 5.0
"""Seconds between two notices of one program or webhook; what comes meanwhile is one notice."""
DESKTOP_PAUSE = 1.0
RETRY = 60.0
"""Seconds after which a way that failed counts again as one by which people can be told."""
PAGE_LIFE = 30.0
"""Seconds in which a browser must have opened the page that a press asked for."""
_MAX_NAME = 80
_GRACE = 0.5
_KINDS = {"sampling": "the client's model", "form": "a form", "url": "a page to visit", "roots": "the client's roots"}


class NotTold(Exception):
    """A notice could not be delivered. The text repeats no URL and no output."""


def session_bus(environ: Mapping[str, str]) -> str:
    """The address of the session bus; empty if there is none. A host in the background may lack the variables."""
    if address := environ.get("DBUS_SESSION_BUS_ADDRESS"):
        return address
    path = Path(environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}", "bus")
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"unix:path={path}" if stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid() else ""


class Notifier:
    """Tells people of the confirmations of a host.

    Args:
        hosts: the folder of the host records.
        run: a folder of the user alone, for pages that a browser is to open.
        new_link: makes an address of the console that shows the confirmation of this id, and opens once within so many
            seconds; None if there is no console.
        session_bus: gives the address of the session bus; empty if there is none.
    """

    def __init__(
        self,
        confirmations: ConfirmationQueue,
        keeper: Keeper,
        journal: Journal,
        hosts: Path,
        run: Path,
        new_link: Callable[[str, float], str | None],
        session_bus: Callable[[], str],
    ) -> None:
        self._confirmations = confirmations
        self._keeper = keeper
        self._journal = journal
        self._hosts = hosts
        self._run = run
        self._new_link = new_link
        self._session_bus = session_bus
        self._changed = trio.Event()
        self._told: dict[Notice, set[str]] = {}
        """By way, the confirmations that it was told of and that wait still."""
        self._busy: set[Notice] = set()
        self._failed: dict[Notice, float] = {}
        """The ways that failed, with the time at which they count again."""
        confirmations.subscribe(self._on_change)
        confirmations.can_notify = self.can_notify

    def can_notify(self) -> bool:
        """Whether there is a way that did not fail just now."""
        now = trio.current_time()
        return any(
            self._failed.get(notice, now) <= now and (not notice.is_desktop or self._session_bus() != "")
            for notice in self._confirmations.spec.notify
        )

    def _on_change(self) -> None:
        self._changed.set()

    async def run(self) -> None:
        """Tell of what waits, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._changed.wait()
                self._changed = trio.Event()
                waiting = {each.id for each in self._waiting()}
                ways = self._confirmations.spec.notify if self._confirmations.spec.reaches_people else ()
                self._told = {way: self._told.get(way, set()) & waiting for way in ways}
                for way in ways:
                    if self._fresh(way) and way not in self._busy and self._failed.get(way, 0) <= trio.current_time():
                        self._busy.add(way)
                        nursery.start_soon(self._tell, way)

    def _waiting(self) -> list[PendingConfirmation]:
        return [each for each in self._confirmations.list_all() if not each.refused]

    def _fresh(self, way: Notice) -> list[PendingConfirmation]:
        """The confirmations of which people were not told this way."""
        told = self._told.get(way, set())
        return [each for each in self._waiting() if each.id not in told]

    async def _tell(self, way: Notice) -> None:
        """Tell of all that waits one way, until there is nothing new. What fails is told to nobody else."""
        try:
            if way.is_desktop:
                await self._show_on_desktop(way)
            else:
                await self._send_all(way)
            self._failed.pop(way, None)
        except Exception as problem:  # noqa: BLE001 - neither a desktop nor a program or a webhook may end the host
            is_first = way not in self._failed
            self._failed[way] = trio.current_time() + RETRY
            if isinstance(problem, NotTold) and is_first:
                self._journal.note(NoticeFailed(self._place(way), str(problem)))
            elif not isinstance(problem, NotTold) and not way.is_desktop:
                self._journal.note(InternalError("telling people what waits", problem))
            self._confirmations.refuse_unattended()
        finally:
            self._busy.discard(way)
            self._changed.set()  # something may have come in the last moment

    def _place(self, way: Notice) -> str:
        notify = self._confirmations.spec.notify
        return f"ask.notify[{notify.index(way)}]" if way in notify else "ask.notify"

    # A program, or a webhook

    async def _send_all(self, way: Notice) -> None:
        send = self._start if way.command is not None else self._post
        while fresh := self._fresh(way):
            self._told.setdefault(way, set()).update(each.id for each in fresh)
            data = json.dumps(as_data(fresh)).encode()
            try:
                with trio.fail_after(TIMEOUT):
                    await send(way, data)
            except trio.TooSlowError:
                raise NotTold(f"it took longer than {TIMEOUT:.0f} s") from None
            await trio.sleep(PAUSE)

    async def _start(self, way: Notice, data: bytes) -> None:
        assert way.command is not None
        argv = [word.reveal() for word in way.command]
        try:
            async with self._keeper.open_child(
                argv, env=child_environment({}), cwd=str(way.folder), grace=_GRACE
            ) as child:
                async with trio.open_nursery() as nursery:
                    for output in (child.stdout, child.stderr):
                        nursery.start_soon(_discard, output)
                    with suppress(PipeStalled):  # it need not read
                        LineWriter(child.stdin_fd).write_line(data)
                    child.close_stdin()
                    status = await child.wait()
                    nursery.cancel_scope.cancel("it has ended")
        except SpawnError as problem:
            raise NotTold(f"the program could not be started: {problem}") from problem
        if status != 0:
            raise NotTold(f"the program exited with status {status}")

    async def _post(self, way: Notice, data: bytes) -> None:
        # Most hosts have no webhook, and importing httpx takes 45 ms.
        from host.wire.single_request import send

        assert way.webhook is not None
        headers: Headers = [(name.encode(), value.reveal().encode()) for name, value in way.headers.items()]
        common: Headers = [(b"Content-Type", b"application/json"), (b"User-Agent", f"colonnade/{VERSION}".encode())]
        try:
            answer = await send("POST", Url.parse(way.webhook.reveal()), [*common, *headers], data)
        except LinkLost as problem:
            raise NotTold(f"the webhook gave no answer: {problem}") from None
        if not 200 <= answer.status < 300:
            raise NotTold(f"the webhook answered with HTTP {answer.status}")

    # The desktop

    async def _show_on_desktop(self, way: Notice) -> None:
        # Most hosts never ask, and jeepney takes 20 ms to import.
        from host.notify.desktop import NoDesktop, open_desktop

        def why_not(pid: int) -> str | None:
            return refusal_reason(examine_process(pid), self._hosts)

        async def open_page(link: str) -> None:
            try:
                with self._page(link) as path:
                    await desktop.open_page(path)
                    await trio.sleep(PAGE_LIFE)
            except (NoDesktop, OSError) as problem:
                self._journal.note(NoticeFailed(self._place(way), f"the page cannot be opened: {problem}"))

        def lead_to(waiting: Sequence[PendingConfirmation]) -> None:
            link = self._new_link(waiting[0].id, PAGE_LIFE) if waiting else None
            if link is not None:
                pages.start_soon(open_page, link)

        async def follow_presses() -> None:
            async for _ in desktop.presses():
                lead_to(self._waiting())

        async with open_desktop(self._session_bus(), why_not) as desktop, trio.open_nursery() as pages:
            pages.start_soon(follow_presses)
            shown: tuple[str, str] | None = None
            while True:
                changed = self._changed
                if not (waiting := self._waiting()):
                    break
                text = as_text(waiting)
                if self._fresh(way) or (desktop.is_shown and text != shown):  # one that was closed stays closed
                    self._told.setdefault(way, set()).update(each.id for each in waiting)
                    await desktop.show(*text, has_page=self._confirmations.has_console)
                    if shown is None and way.opens_page and not self._confirmations.is_attached(Channel.CONSOLE):
                        lead_to(waiting)
                    shown = text
                await trio.sleep(DESKTOP_PAUSE)
                await changed.wait()
            await desktop.close()
            pages.cancel_scope.cancel("nothing waits any more")

    @contextmanager
    def _page(self, link: str) -> Iterator[Path]:
        """A file that leads a browser to a link, for the block: other users would see a link on a command line."""
        path = self._run / f"open-{secrets.token_hex(8)}.html"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(page_to(link))
            yield path
        finally:
            path.unlink(missing_ok=True)


def page_to(link: str) -> str:
    """A page that leads a browser to a link at once."""
    return _PAGE.format(link=html.escape(link))


_PAGE = (
    '<!doctype html>\n<meta charset="utf-8"><meta name="referrer" content="no-referrer">'
    '<meta http-equiv="refresh" content="0;url={link}">\n<title>Colonnade</title>\n'
)


async def _discard(stream: trio.abc.ReceiveStream) -> None:
    with suppress(trio.BrokenResourceError):
        while await stream.receive_some():
            pass


# What is told


def as_text(waiting: Sequence[PendingConfirmation]) -> tuple[str, str]:
    """A title and a line."""
    rows = [_row(each) for each in waiting]
    if len(rows) == 1:
        return "A call waits for you", f"{rows[0]['name']} of {rows[0]['server']}, for {rows[0]['client']}"
    servers = ", ".join(dict.fromkeys(row["server"] for row in rows))
    return f"{len(rows)} calls wait for you", f"of {servers}"


def as_data(waiting: Sequence[PendingConfirmation]) -> dict[str, object]:
    """The JSON object for programs and webhooks. `text` is a sentence; many webhooks show it and nothing else."""
    title, line = as_text(waiting)
    return {"text": f"{title}: {line}", "waiting": [_row(each) for each in waiting]}


def _row(confirmation: PendingConfirmation) -> dict[str, str]:
    subject, process = confirmation.access.subject, confirmation.context.process
    item = subject.item
    # The name of a resource or a page is a URI, which may hold what arguments hold.
    named = item.name if item.kind in (Kind.TOOL, Kind.PROMPT) else _KINDS.get(item.kind, "a resource")
    client = process.program if process is not None and process.program else subject.caller
    return {
        "server": item.server,
        "kind": item.kind,
        "name": _clipped(named),
        "client": _clipped(client or "a client without a name"),
    }


def _clipped(text: str) -> str:
    shown = visible(text)
    return shown if len(shown) <= _MAX_NAME else f"{shown[:_MAX_NAME]}…"
