"""Reading all pages of a list, within limits, from any peer that has lists.

Servers make every mistake with cursors: the same one for ever, a circle, pages that begin again. A cursor is opaque, so
it ends nothing by itself while pages bring something new. An entry that came before, byte for byte, counts once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Raw

from host.jsonrpc.raw import encode, members
from host.jsonrpc.strict import is_heavy
from host.protocol.methods import ListMethod
from host.protocol.stateless import Freshness, freshness_of
from host.upstream.results import split_page
from host.worker import run_in_worker

MAX_PAGES = 100
MAX_REPEATED_PAGES = 10
"""Pages in a row of nothing but entries that came before: a server that ignores cursors may give a new one for ever."""
MAX_ENTRIES = 10_000
MAX_BYTES = 16 * 1024 * 1024
"""Bytes of all pages of one list: with its copies, the share of one server in the default memory budget."""

SendRequest = Callable[[str, Raw | None], Awaitable[Raw]]
"""Sends a request with its params and returns the result."""


async def read_list(
    send_request: SendRequest,
    listing: ListMethod,
    raw_definitions: list[Raw],
    hints: list[Freshness],
    report_problem: Callable[[str], None],
    charge: Callable[[int], None] = lambda size: None,
    *,
    cursors_may_be_empty: bool = False,
) -> bytes | None:
    """Read all pages of a list. Appends to the arguments, so that the caller has a part of the list after a failure.
    Returns an object of the other members of the page, if one page is the whole list; otherwise None.

    Args:
        raw_definitions: gets the definitions, equal ones once.
        hints: gets the caching hints of each page.
        report_problem: called with what is wrong with the pages, at most once with each text.
        charge: called with the number of bytes of each page.
        cursors_may_be_empty: an empty cursor is a cursor; from a handshake server it means the end.

    Raises:
        ValueError: a page is not a valid result of the method.
        OverBudget: raised by `charge`.
    """
    size = repeated = repeated_pages = 0
    known, cursors = set[bytes](), set[bytes]()
    lacks_member = False
    params: Raw | None = None
    end_cursors = (b"null",) if cursors_may_be_empty else (b"null", b'""')
    for _ in range(MAX_PAGES):
        result = await send_request(listing.method, params)
        size += len(result)
        charge(len(result))
        if size > MAX_BYTES:
            break
        room = MAX_ENTRIES + 1 - len(raw_definitions)
        if is_heavy(result):
            entries, rest = await run_in_worker(split_page, result, listing.member, room)
        else:
            entries, rest = split_page(result, listing.member, room)
        if entries is None:
            if not lacks_member:
                report_problem(f"{listing.method} returned a page without {listing.member!r}, which counts as empty")
            entries, lacks_member = [], True
        new = dict.fromkeys(entry for entry in entries if entry not in known)
        known.update(new)
        raw_definitions.extend(map(Raw, new))
        hints.append(freshness_of(Raw(rest)))
        if len(entries) == room:
            break
        repeated += len(entries) - len(new)
        repeated_pages = repeated_pages + 1 if entries and not new else 0
        cursor = bytes(members(rest).get("nextCursor", b"null"))
        if cursor in end_cursors:
            if repeated:
                report_problem(f"{listing.method} has {repeated} entries more than once, which count once")
            return None if cursors else rest
        if cursor in cursors and not new:
            report_problem(f"{listing.method} returned the same cursor twice, and nothing new; reading stopped there")
            return None
        if repeated_pages == MAX_REPEATED_PAGES:
            report_problem(f"{listing.method} returned nothing new on {repeated_pages} pages; reading stopped there")
            return None
        cursors.add(cursor)
        params = encode({"cursor": Raw(cursor)})
    report_problem(
        f"{listing.method} has more than {MAX_PAGES} pages, {MAX_ENTRIES} entries or {MAX_BYTES >> 20} MiB; "
        f"the rest is left out"
    )
    del raw_definitions[MAX_ENTRIES:]
    return None
