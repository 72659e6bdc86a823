"""The step that the tests of peculiar issuers share."""

from __future__ import annotations

import trio

from config import HttpServer
from host.upstream.credentials import LoginUnavailable
from tests.kit.logins import Process


async def use(process: Process, server: HttpServer, *, may_fail: bool = False) -> str:
    """The token of a request after the present one has expired, a minute after the last one. Empty if a person has
    to log in, and, if it may fail, if none can be had now."""
    await process.credentials.reload()
    credential = process.credentials.of(server)
    assert credential.login is not None
    process.clock.time = max(process.clock.time + 60, (credential.login.expires or 0) + 1)
    with trio.fail_after(30):
        try:
            header = await credential.renew(credential.current())
        except LoginUnavailable:
            if not may_fail:
                raise
            return ""
    return "" if header is None else header[1].decode().removeprefix("Bearer ")
