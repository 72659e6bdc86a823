"""Synchronisation of a server's lists with the catalog: all lists are read at the start, and a list again when it may
have changed.

Marking a list as changed is synchronous; several marks cause one reading. A list whose changes the server does not
announce gets old, and is then read again for the next client that lists or calls. All pages are read, within limits.
Entries beyond them, and entries that cannot be exported, are left out and named in the journal.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import trio
from msgspec import Raw
from msgspec.structs import replace

from host.catalog import Definition, FreshnessHint, SourceEntries, param_headers_in
from host.journal import EntryOmitted, ListsSlowed, excerpt, slow_reading
from host.jsonrpc.messages import METHOD_NOT_FOUND
from host.jsonrpc.raw import encode_object, members, one_line, pick, string
from host.jsonrpc.readable import why_unreadable, why_unreadable_result
from host.jsonrpc.strict import has_more_tokens, is_heavy
from host.memory import Holding, OverBudget, Use, server_owner
from host.peer.outstanding import BrokenAnswer, PeerError
from host.policy.definitions import PreparedListing
from host.protocol.definitions import describe_unfit
from host.protocol.known_members import why_ambiguous
from host.protocol.meta import unknown_members
from host.protocol.methods import LIST_MEMBERS, LIST_METHODS, Kind, ListMethod
from host.protocol.negotiated import MAX_BESIDE
from host.protocol.stateless import STALE, Freshness, common_freshness
from host.protocol.tasks import Support, task_support
from host.protocol.versions import Era
from host.slices import Charge, charged, in_worker, pause
from host.source import Source
from host.upstream.backoff import MIN_SPACING, ReadingBudget
from host.upstream.client import Client
from host.upstream.pages import read_list
from host.upstream.remembered_lists import ListOwner
from host.upstream.runtime import Runtime
from host.wire.http_errors import AuthNeeded
from host.wire.link import LinkLost

MAX_DEFINITION = 1024 * 1024
MAX_DEFINITION_TOKENS = 50_000
"""Structural characters outside strings of one definition, which is decoded in the event loop."""
MAX_NAMED = 20
"""Entries of one list that are named in the log because they are left out; others are counted."""
READ_TIMEOUT = 30.0
INITIAL_RETRY_DELAY = 2.0
MAX_RETRY_DELAY = 60.0
"""First and longest delay, in seconds, before a list that could not be read is tried again."""
RECEIVING = 20e-9
"""Processor seconds that receiving and splitting a page takes for each byte, here and in a worker process."""
MIN_PAUSE = 0.05
"""Seconds between an announcement and the reading, in which more may come."""
SLOW_AFTER = 2.0
"""Seconds that a changed list may wait for its reading until that is told."""
SLOW_READING = 5.0
"""Seconds since a reading began after which clients that ask for a list do not wait for it."""
READ_SHARE = 4.0
"""After a reading of old lists, the next one waits so many times as long as the reading took."""
MAX_AGE = 5.0
"""Seconds after which a list whose changes are not announced is old, and that lie between two readings of old lists."""


class NothingListed(LinkLost):
    """A server declares lists, and none of them could be read."""

    remedy = "its own log says more"


class _Published(NamedTuple):
    """A list as it was published."""

    digest: bytes
    """Digest of the definitions that were read."""
    epoch: int
    """Epoch of the policy then."""
    is_whole: bool
    """No definition was left out, so that the other members of the list may be passed on."""


class CatalogSync:
    """Keeps the visible lists of one connected server in the catalog.

    Args:
        budget: shared by all connections of the server.
        on_published: called with the kind after each list that was read.
    """

    def __init__(
        self,
        client: Client,
        source: Source,
        runtime: Runtime,
        budget: ReadingBudget,
        owner: ListOwner,
        on_published: Callable[[Kind], object],
    ) -> None:
        self._client = client
        self._source = source
        self._runtime = runtime
        self._owner = owner
        self._on_published = on_published
        self._gate = runtime.gate
        self._server = client.server
        self._negotiated = client.negotiated
        self._catalog = runtime.catalog
        self._journal = runtime.journal
        self._marked: set[Kind] = set()
        self._failed: set[Kind] = set()
        self._reads_started, self._reads_finished = Counter(dict.fromkeys(Kind, 0)), Counter(dict.fromkeys(Kind, 0))
        """Numbers of readings of marked lists that were started, and that have ended."""
        self._is_closed = False
        self._wake = trio.Event()
        self._read_now = trio.Event()
        self._read_waiters = trio.lowlevel.ParkingLot()
        self._budget = budget
        self._began = -math.inf
        """Time at which the last reading of marked lists began."""
        self._is_slow = False
        """Announced changes wait for the budget."""
        self.now = trio.lowlevel.current_clock().current_time  # in fewer steps than trio.current_time
        self.old_at = math.inf
        """Time from which on a list is old whose changes the server does not announce, and may be read."""
        self._fresh_until: dict[Kind, float] = {}
        """Times at which lists get old, unless their changes are announced."""
        self._missed: set[Kind] = set()
        """Lists in which a name was missing since the last reading of old lists."""
        self._rereading: trio.Event | None = None
        """Set at the end of the reading of old lists that was requested or is in progress."""
        self._next_rereading = -math.inf
        self._reread = trio.Event()
        self._locks = {kind: trio.Lock() for kind in Kind}
        self._published: dict[Kind, _Published] = {}
        self._unreadable: dict[Kind, list[str]] = {}
        """Descriptions, with the reason, of the definitions that are not published: clients could not parse them, or
        not all alike."""
        self._unfit: dict[Kind, list[str]] = {}
        """Those of the definitions that are, and that clients of an era are not shown."""
        self._unusable: dict[Kind, Sequence[str]] = {}
        """Sentences about definitions that are not published for any other reason."""
        self._problems: dict[Kind, Sequence[str]] = {}
        """Sentences about the last reading of each list: why it failed, or what is wrong with its pages."""
        self._serves = False
        self._answered: set[Kind] = set()
        """Lists that the server has returned over this connection."""

    @property
    def _is_stateless(self) -> bool:
        return self._source.era is Era.STATELESS

    @property
    def problems(self) -> list[str]:
        """Sentences about lists that could not be read, have something wrong with their pages or their entries, or are
        not read at each change."""
        found = [each for kind in Kind for some in (self._problems, self._unusable) for each in some.get(kind, ())]
        if self._is_slow and not self._is_calm(self.now()):
            found.append(slow_reading(self._budget.interval))
        return found

    @property
    def left_out(self) -> list[str]:
        """Descriptions of the definitions that clients could not read, or not all alike, with the reason."""
        return [each for kind in Kind for found in (self._unreadable, self._unfit) for each in found.get(kind, ())]

    def check_any_listed(self) -> None:
        """Check that the server has returned some list, or that entries of it are known.

        Raises:
            NothingListed: it declares lists, and refused all of them.
        """
        declared = [kind for kind in Kind if self._negotiated.has_capability(kind)]
        is_known = any(self._catalog.listed(self._source, kind) for kind in declared)
        is_waiting = bool(self._marked)  # for the budget: see `read_all`
        if declared and not self._answered and not is_known and not is_waiting:
            why = "; ".join(self.problems) or "it has no method for any of them"
            raise NothingListed(f"its lists cannot be read: {why}")

    def begin_serving(self) -> None:
        """Note that requests will be sent over this connection. From now on, its clients see no list of another source
        in place of one that could not be read."""
        self._serves = True
        for kind in self._failed:
            self._mark_unlisted(kind)

    def _mark_unlisted(self, kind: Kind) -> None:
        if self._owner.may_publish() and not self._client.peer.ended.is_set():
            self._catalog.mark_unlisted(self._source, kind, alone=self._owner.is_alone())

    def mark_changed(self, kinds: Iterable[Kind]) -> None:
        """Mark lists that may have changed, so that they are read again soon."""
        self._mark({kind for kind in kinds if self._negotiated.has_capability(kind)})

    def _mark(self, marked: set[Kind]) -> None:
        self._marked |= marked
        for kind in marked:  # before clients are notified or use the list: its caching hint does not hold any more
            self._catalog.expire_hint(self._source, kind)
        if self._marked:
            self._wake.set()

    def are_read(self, kinds: Iterable[Kind]) -> bool:
        """Whether `wait_until_read` would return at once."""
        for kind in kinds:  # no generator: every call asks
            if self._reads_finished[kind] < self._reads_started[kind] + (kind in self._marked):
                return self._is_closed
        return True

    async def wait_until_read(self, kinds: Iterable[Kind]) -> None:
        """Wait until the lists that are marked now have been read: no request may be evaluated with an outdated
        definition.
        Makes them be read sooner. A list that could not be read stays as it was."""
        for kind in kinds:
            needed = self._reads_started[kind] + (kind in self._marked)
            while self._reads_finished[kind] < needed and not self._is_closed:
                if kind in self._marked:
                    self._read_now.set()
                await self._read_waiters.park()

    async def wait_for_changes(self, kinds: Iterable[Kind], at_most: float) -> None:
        """Wait for readings of these lists that are in progress, or begin within `at_most` seconds because a change was
        announced. Makes none begin sooner. Does not wait while readings take longer than SLOW_READING: a server that
        does not answer would delay each list of each client."""
        if self._reads_started != self._reads_finished and self.now() > self._began + SLOW_READING:
            return
        for kind in kinds:
            now = self.now()
            is_due = kind in self._marked and self._reading_due_at(now) <= now + at_most
            needed = self._reads_started[kind] + is_due
            while self._reads_finished[kind] < needed and not self._is_closed:
                await self._read_waiters.park()

    def read_if_old(self, missed: Iterable[Kind] = ()) -> trio.Event | None:
        """Have the old lists read, and those in `missed`, in which a client looked for a name that is not there. There
        is one such reading at a time, and at most one in MAX_AGE seconds; a server that takes long to list is read less
        often.

        Returns an event that is set at the end of the reading in progress; None if there is none.
        """
        self._missed.update(kind for kind in missed if self._negotiated.has_capability(kind))
        if self._rereading is None and not self._is_closed:
            now = trio.current_time()
            if now >= self._next_rereading and (self._missed - self._failed or now >= self.old_at):
                self._rereading = trio.Event()
                self._reread.set()
        return self._rereading

    async def _read_old(self) -> None:
        """Read lists as `read_if_old` requests, until cancelled."""
        try:
            while True:
                await self._reread.wait()
                self._reread = trio.Event()
                began = trio.current_time()
                self._budget.begin(began)
                # Also those that will be old before the next reading may begin.
                old = {kind for kind, until in self._aging().items() if until < began + MAX_AGE}
                due, self._missed = (old | self._missed) - self._failed, set()
                async with trio.open_nursery() as nursery:
                    for kind in due:
                        nursery.start_soon(self.read, kind)
                if due & self._failed:
                    self._wake.set()
                now = trio.current_time()
                self._next_rereading = max(began + max(MAX_AGE, (now - began) * READ_SHARE), self._budget.free_at(now))
                self._end_rereading()
        finally:
            self._end_rereading()

    def _end_rereading(self) -> None:
        ended, self._rereading = self._rereading, None
        self.update_old_at()
        if ended is not None:
            ended.set()

    def update_old_at(self) -> None:
        """Compute when lists get old; to be called when other changes are announced than before."""
        self.old_at = max(min(self._aging().values(), default=math.inf), self._next_rereading)

    def _aging(self) -> dict[Kind, float]:
        """The times at which those lists get old whose changes are not announced. The others are retried if they could
        not be read. Without a standalone stream, or a request that listens, an announcement would not arrive."""
        return {
            kind: until
            for kind, until in self._fresh_until.items()
            if kind not in self._failed and not self._is_announced(LIST_METHODS[kind])
        }

    def _is_announced(self, listing: ListMethod) -> bool:
        if listing.capability not in self._negotiated.list_changed:
            return False
        heard_of = listing.list_changed in self._client.heard_lists
        return heard_of if self._is_stateless else self._client.peer.hears_unasked

    async def read_all(self) -> None:
        """Read all lists once, concurrently. If the budget is used up, because they were read often, they are only
        marked, and read when it permits: the entries of the former connection stay, and `wait_until_read` waits for the
        reading."""
        now = trio.current_time()
        if self._budget.free_at(now) > now:
            self._mark(set(Kind))  # also kinds that the server does not offer any more
            return
        self._budget.begin(now)
        try:
            async with trio.open_nursery() as nursery:
                for kind in Kind:
                    nursery.start_soon(self.read, kind)
        finally:  # also if the connection ended meanwhile: the lists that were read by then are published
            self._budget.end(trio.current_time())

    async def run(self) -> None:
        """Read lists again, until cancelled: those that are marked, are old, or could not be read."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_old)
            await self._read_marked()

    async def _read_marked(self) -> None:
        """Read marked lists, and lists that could not be read, until cancelled."""
        retry_delay = INITIAL_RETRY_DELAY
        try:
            while True:
                with trio.move_on_after(retry_delay if self._failed else math.inf):
                    await self._wake.wait()
                await self._wait_until_due()
                self._wake, self._read_now = trio.Event(), trio.Event()
                had_failed, due = bool(self._failed), self._marked | self._failed
                self._marked, self._failed = set(), set()
                self._reads_started.update(due)
                self._began = trio.current_time()
                self._budget.begin(self._began)
                for kind in sorted(due, key=lambda kind: kind.value):
                    await self.read(kind)
                    self._reads_finished[kind] += 1
                    self._read_waiters.unpark_all()
                retry_delay = (
                    min(2 * retry_delay, MAX_RETRY_DELAY) if had_failed and self._failed else INITIAL_RETRY_DELAY
                )
        finally:  # the connection ends: no list will be read any more
            self._is_closed = True
            self._read_waiters.unpark_all()

    async def _wait_until_due(self) -> None:
        """Wait until marked lists may be read: MIN_PAUSE, in which other announcements may come, and as long as the
        budget says."""
        now = trio.current_time()
        earliest = now + MIN_PAUSE
        self._note_speed(now, self._reading_due_at(now))
        while True:
            now, awaited = trio.current_time(), self._read_now.is_set()
            at = max(earliest, self._reading_due_at(now, awaited=awaited))
            if at <= now:
                return
            with trio.move_on_at(at):
                if awaited:
                    await trio.sleep_forever()
                await self._read_now.wait()

    def _reading_due_at(self, now: float, *, awaited: bool = False) -> float:
        """The time from which on the budget permits the next reading of marked lists. `awaited`: a call waits."""
        return max(self._began + MIN_SPACING, self._budget.free_at(now, awaited=awaited))

    def _note_speed(self, now: float, due_at: float) -> None:
        """Tell when changes begin to wait for the budget. A server that was calm for a while begins anew."""
        if due_at > now + SLOW_AFTER and not self._is_slow:
            self._is_slow = True
            self._journal.note(ListsSlowed(self._server, self._budget.interval))
        elif self._is_calm(now):
            self._is_slow = False

    def _is_calm(self, now: float) -> bool:
        return now > self._began + 2 * self._budget.interval

    def _charge(self, seconds: float) -> None:
        self._budget.charge(self.now(), seconds)

    async def read(self, kind: Kind) -> None:
        """Read one list and publish it. If it cannot be read, the former entries stay, and the reading is tried
        again."""
        async with self._locks[kind]:  # otherwise the older of two lists might be published last
            await pause()  # all servers read at once after a start, and the answers come as the requests went
            is_read = await self._read(kind)
        if not is_read:
            self._failed.add(kind)
            self._catalog.expire_hint(self._source, kind)
            if self._serves:
                self._mark_unlisted(kind)
        self.update_old_at()

    async def _read(self, kind: Kind) -> bool:
        """Read one list and publish it. Returns False if it could not be read or there is no memory for it."""
        listing = LIST_METHODS[kind]
        problems = list[str]()
        if not self._negotiated.has_capability(kind):
            return await self._publish(kind, [], None)
        raw_definitions, hints, rest = list[Raw](), list[Freshness](), None
        began = trio.current_time()
        reading = trio.CancelScope()
        holding = self._catalog.memory.hold(server_owner(self._server), Use.LISTS, drop=lambda: _drop(holding, reading))
        failure = ""

        def take(size: int) -> None:
            self._charge(size * RECEIVING)
            holding.grow(size)

        try:
            with trio.fail_after(READ_TIMEOUT), holding, reading:
                rest = await read_list(
                    self._client.internal_request,
                    listing,
                    raw_definitions,
                    hints,
                    problems.append,
                    take,
                    cursors_may_be_empty=self._is_stateless,
                )
            self._answered.add(kind)
        except OverBudget:
            self._answered.add(kind)
            reading.cancel()
        except PeerError as refusal:
            if refusal.error.code != METHOD_NOT_FOUND:  # many servers declare more than they have
                failure = f"{listing.method} failed: {excerpt(refusal.error.message)}"
        except (BrokenAnswer, ValueError) as problem:
            failure = f"{listing.method} returned no valid list: {problem}"
        except trio.TooSlowError:
            too_slow = (
                f"{listing.method} took longer than {READ_TIMEOUT:.0f} s; {len(raw_definitions)} entries were read"
            )
            if raw_definitions:
                problems.append(too_slow)
                hints.append(STALE)  # the server's caching hints are for the whole list, not for a part of it
            else:
                failure = too_slow
        except LinkLost as lost:
            if isinstance(lost, AuthNeeded) and lost.ends_connection:
                self._client.peer.connection_lost(lost)  # the server lets anybody connect, and shows nothing
            if self._client.peer.ended.is_set():  # otherwise, over HTTP, a single exchange broke
                return False
            failure = f"{listing.method} failed: {lost}"
        self._report_new(self._problems, kind, list(map(self._client.redact, problems)))
        is_listed = self._catalog.listed(self._source, kind) is not None
        if failure:
            if raw_definitions and not is_listed:  # better than nothing, until the next attempt
                await self._publish_if_changed(listing, raw_definitions, FreshnessHint(STALE, began))
                failure = f"{failure}; the {len(raw_definitions)} entries before that are listed"
            self._report_problem(failure, of=kind)
            return False
        if not reading.cancel_called:
            freshness = common_freshness(hints) if self._is_stateless else STALE
            hint = FreshnessHint(freshness, began, _members_beside(listing, rest))
            if await self._publish_if_changed(listing, raw_definitions, hint):
                self._fresh_until[kind] = began + max(hint.freshness.ttl_ms / 1000, MAX_AGE)
                return True
        listed = "the former entries stay" if is_listed else "none of its entries is listed"
        self._report_problem(f"{listing.method} needs more memory than there is (memory); {listed}", of=kind)
        return False

    async def _publish_if_changed(self, listing: ListMethod, raw_definitions: list[Raw], hint: FreshnessHint) -> bool:
        """Publish a list that was read. One that is the same as before, under the same policy, only gets its hint.
        Returns False if there is no memory for it."""
        kind, policies = listing.kind, self._gate.policies
        digest = await charged(self._charge, _digest(raw_definitions))
        former = self._published.get(kind)
        if (
            former is not None
            and (former.digest, former.epoch) == (digest, policies.epoch)
            and self._catalog.renew_hint(self._source, kind, _fit_hint(hint, former.is_whole))
        ):
            return True
        definitions = await charged(self._charge, self._usable_definitions(listing, raw_definitions))
        is_whole = len(definitions) == len(raw_definitions)
        is_published = await self._publish(kind, definitions, _fit_hint(hint, is_whole))
        if is_published:
            self._published[kind] = _Published(digest, policies.epoch, is_whole)
        return is_published

    async def _publish(self, kind: Kind, definitions: list[Definition], hint: FreshnessHint | None) -> bool:
        on_displaced = partial(self._on_displaced, kind)
        is_published = await publish_list(
            self._runtime, self._source, kind, definitions, hint, on_displaced, self._owner, self._charge
        )
        if is_published and self._owner.may_publish():
            self._on_published(kind)
            await charged(self._charge, self._name_unfit(kind))
        return is_published

    async def _name_unfit(self, kind: Kind) -> None:
        """Name the published entries that clients of an era are not shown."""
        unfit: list[str] = []
        for entry in self._catalog.unfit(self._source, kind):
            await pause()
            if entry.misfit is not None:
                label = f"the {kind.value} {excerpt(entry.ref.name)!r}"
                unfit.append(self._client.redact(describe_unfit(label, entry.misfit)))
        self._report_left_out(self._unfit, kind, "clients would refuse the whole list", unfit)

    def _report_new(self, kept: dict[Kind, Sequence[str]], kind: Kind, sentences: Sequence[str]) -> None:
        """Keep these sentences about a list, and log those that were not kept before: it may be read every few
        seconds."""
        former, kept[kind] = kept.get(kind, ()), sentences
        for what in sentences:
            if what not in former:
                self._report_problem(what)

    def _report_left_out(self, kept: dict[Kind, list[str]], kind: Kind, why: str, left_out: list[str]) -> None:
        """Keep these descriptions of what is left out of a list, and log them if they are other ones than before: it is
        published again when the policy changes."""
        former, kept[kind] = kept.get(kind), left_out
        if left_out and left_out != former:
            more = f", and {len(left_out) - MAX_NAMED} more" if len(left_out) > MAX_NAMED else ""
            text = f"left out because {why}: {', '.join(left_out[:MAX_NAMED])}{more}"
            self._journal.note(EntryOmitted(self._server, text, f"{why} {kind.value}"))

    def _on_displaced(self, kind: Kind) -> None:
        """Handle the loss of this list, whose memory other servers need: it has to be read again."""
        method = LIST_METHODS[kind].method
        self._report_problem(
            f"{method}: its entries need more memory than other servers leave (memory); none of them is listed until "
            f"there is room",
            of=kind,
        )
        self.mark_changed((kind,))

    async def _usable_definitions(self, listing: ListMethod, raw_definitions: list[Raw]) -> list[Definition]:
        kind, problems = listing.kind, list[str]()
        unreadable: list[str] = []
        definitions: list[Definition] = []
        for raw in raw_definitions:
            await pause()
            if len(raw) > MAX_DEFINITION:
                problems.append(f"a {kind.value} of {len(raw)} bytes is left out: the limit is {MAX_DEFINITION}")
                continue
            problem = await _why_unusable(kind, bytes(raw))
            name = _definition_name(raw, listing.key)
            if name is None and problem is None:
                problems.append(f"a {kind.value} without a {listing.key} is left out: {excerpt(bytes(raw))}")
                continue
            label = f"a {kind.value} without a readable {listing.key}"
            if name is not None:
                label = f"the {kind.value} {excerpt(name)!r}"
            if problem is not None:
                unreadable.append(self._client.redact(f"{label} ({problem})"))
                continue
            if not name:
                problems.append(f"{label} is left out: it has no name")
                continue
            if self._gate.policies.sanitize_text(self._server, name) != name:
                problems.append(f"{label} is left out: its name has invisible characters")
                continue
            if kind is Kind.TOOL and self._is_stateless and (why := _bad_param_headers(raw)) is not None:
                problems.append(f"{label} is left out: {why}")
                continue
            definitions.append(Definition(name, one_line(bytes(raw)), self._may_be_task(kind, raw)))
        why = "clients could not parse it, or not all alike"
        self._report_left_out(self._unreadable, kind, why, unreadable)
        name_counts = Counter(definition.name for definition in definitions)
        for name, count in name_counts.items():
            await pause()
            if count > 1:
                problems.append(f"{count} entries are called {excerpt(name)!r}; all of them are left out")
        self._report_new(self._unusable, kind, _shortened(problems))
        return [definition for definition in definitions if name_counts[definition.name] == 1]

    def _may_be_task(self, kind: Kind, raw: Raw) -> bool:
        """Whether a call of the tool may become a task. A stateless server decides that at each call."""
        if kind is not Kind.TOOL or not self._negotiated.runs_tasks:
            return False
        return self._is_stateless or task_support(raw) is not Support.FORBIDDEN

    def _report_problem(self, what: str, of: Kind | None = None) -> None:
        """Log a problem. With `of`, it is one of this whole list, and shown until the next reading."""
        what = self._client.redact(what)
        if of is not None:
            self._problems[of] = [*self._problems.get(of, ()), what]
        self._journal.note(EntryOmitted(self._server, what))


def _members_beside(listing: ListMethod, rest: bytes | None) -> Mapping[str, Raw]:
    """The members of a list besides its definitions that are passed on with them: none of a list of several pages,
    since clients get other pages."""
    if rest is None or len(rest) > MAX_BESIDE:
        return {}
    found = unknown_members(members(rest), (listing.member, *LIST_MEMBERS))
    return {} if why_unreadable_result(encode_object(found)) is not None else found


def _fit_hint(hint: FreshnessHint, is_whole: bool) -> FreshnessHint:
    """The hint of a list, without the other members of its result if these may name a definition that is left out."""
    return hint if is_whole else replace(hint, beside={})


async def publish_list(
    runtime: Runtime,
    source: Source,
    kind: Kind,
    definitions: list[Definition],
    hint: FreshnessHint | None,
    on_displaced: Callable[[], None],
    owner: ListOwner,
    charge: Charge | None = None,
    *,
    remembered: bool = False,
) -> bool:
    """Publish what a source offers of one kind. Returns False if there is no memory for it. Nothing is published if its
    memory is taken away meanwhile, or the connection may not publish any more.

    Gate and catalog are prepared first and take effect in one step without a checkpoint, so that no client sees an
    entry whose definition the gate does not know. If the policy changes meanwhile, both are prepared again.

    Args:
        on_displaced: called when other servers need the memory of the list, which is not listed any more then.
        charge: see `host.slices.charged`.
        remembered: see `Pins.prepare`.
    """
    policy, catalog = runtime.gate.definitions, runtime.catalog
    if not owner.may_publish():
        return True
    size = sum(len(each.raw) for each in definitions)
    holding = catalog.charge(source, kind, size, on_displaced)
    if holding is None:
        return False

    async def publish() -> None:
        while True:
            prepared, entries = await _prepare(runtime, source, kind, definitions, remembered=remembered)
            if holding.dropped or not owner.may_publish():
                return
            if policy.commit(prepared):
                catalog.publish(kind, entries, hint, alone=owner.is_alone(), remembered=remembered)
                await catalog.free_former()
                return

    await charged(charge, publish())
    return True


async def _prepare(
    runtime: Runtime, source: Source, kind: Kind, definitions: list[Definition], *, remembered: bool
) -> tuple[PreparedListing, SourceEntries]:
    policy = runtime.gate.definitions
    offered = {each.name: each.raw for each in definitions}
    prepared = await policy.prepare(source, kind, offered, remembered=remembered)
    kept, shown = prepared.prepared.offered, list[Definition]()
    for each in definitions:
        await pause()
        # The equal bytes that consent keeps anyway
        raw = kept[each.name] if kept[each.name] == each.raw else each.raw
        raw = await policy.listed_definition(source.server, kind, raw)
        shown.append(Definition(each.name, raw, each.may_be_task))
    is_visible = partial(policy.would_be_visible, prepared)
    return prepared, await runtime.catalog.prepare_entries(source, kind, shown, is_visible)


def _shortened(problems: list[str]) -> list[str]:
    """Sentences about the entries of one list: the first MAX_NAMED one by one, then the number of the others."""
    left = len(problems) - MAX_NAMED
    if left <= 0:
        return problems
    return [*problems[:MAX_NAMED], f"{left} more entries of the same list are left out for similar reasons"]


async def _why_unusable(kind: Kind, definition: bytes) -> str | None:
    """The reason why a definition is refused (too large, unreadable for clients, or with several meanings), or None. A
    heavy definition is checked in another process."""
    if not is_heavy(definition):
        return why_unreadable(definition) or why_ambiguous(definition, kind)
    if await in_worker(has_more_tokens, definition, MAX_DEFINITION_TOKENS):
        return f"it has more than {MAX_DEFINITION_TOKENS} structural characters"
    return await in_worker(why_unreadable, definition) or await in_worker(why_ambiguous, definition, kind)


async def _digest(raw_definitions: Iterable[Raw]) -> bytes:
    digest = hashlib.blake2b()
    for raw in raw_definitions:
        await pause()
        digest.update(b"%d:" % len(raw))
        digest.update(raw)
    return digest.digest()


def _definition_name(definition: Raw, key: str) -> str | None:
    try:
        fields = pick(definition, frozenset({key})) if is_heavy(definition) else members(definition)
        return string(fields[key])
    except (ValueError, KeyError):
        return None


def _drop(holding: Holding, reading: trio.CancelScope) -> None:
    holding.release()
    reading.cancel("its memory is needed elsewhere")


def _bad_param_headers(definition: Raw) -> str | None:
    """The reason why clients could not call the tool over HTTP, or None (2026-07-28, "Custom Headers from Tool
    Parameters")."""
    try:
        param_headers_in(definition)
    except ValueError as problem:
        return str(problem)
    return None
