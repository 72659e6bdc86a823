"""This process as a member of its fleet: its lease, its inner listener, and the way to the others.

Opened before the host serves, so that no token names a home that nobody can find; left after it has served.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from config import Config, Fleet, Inner
from config.written import rules_digest
from host.admin.schema import FleetStatus, MemberRow
from host.admin.state import POLL_INTERVAL
from host.downstream.drain import Stage
from host.downstream.http.request import HttpRequest
from host.fleet.absence import Absence
from host.fleet.confirmations import SharedConfirmations
from host.fleet.directory import PostgresDirectory
from host.fleet.forwarding import MESSAGES, Forwarding
from host.fleet.inner import MemberConnection, inner_app
from host.fleet.members import DirectoryAway, FleetMember, Membership, open_members
from host.fleet.rates import Rates
from host.fleet.tokens import HomedSeal, Homes
from host.policy.confirmations import ConfirmationQueue
from host.policy.gate import Gate
from host.policy.policies import Policies
from host.seal import Seal
from host.storage.postgres import GRACE, PostgresStore
from host.storage.sql import Store
from host.storage.store import Revisions, StateError, uptime
from host.version import VERSION
from host.wire.acceptor import ListenerLimits
from host.wire.asgi import ASGIApp
from host.wire.certificate import Certificate, CertificateError
from host.wire.listener import serve_http
from host.wire.port import bind
from host.wire.request_head import SharedHeads

RENEWAL_INTERVAL = 60.0
"""Seconds between two looks whether the files of the certificate were renewed."""

_log = logging.getLogger("colonnade.fleet")


class FleetProcess:
    """See `open_process`.

    Attributes:
        seal: names this process in what it seals.
        stage, is_attended: said to the other members.
        on_unknown: takes each forwarded request whose outcome nobody knows, and the id of its home.
    """

    def __init__(
        self,
        members: Membership,
        directory: PostgresDirectory,
        homes: Homes,
        seal: Seal,
        certificate: Certificate,
        config: Config,
        fleet: Fleet,
        bound: socket.socket,
    ) -> None:
        self.stage: Callable[[], str] = lambda: Stage.STARTING
        self.rules_digest = rules_digest(config.written)
        self.is_attended: Callable[[], bool] = lambda: False
        self.on_unknown: Callable[[HttpRequest, str], None] = lambda http_request, home: None
        self.members = members
        self.rates = Rates(directory, homes.boot, lambda: members.place, uptime)
        self._name = fleet.name
        self.seal = HomedSeal(seal, homes, members.has)
        self.forwarding = Forwarding(
            homes,
            members,
            certificate,
            config.listen.path,
            lambda http_request, home: self.on_unknown(http_request, home),
        )
        self._definitions = -1
        """The revision before the last look."""
        self._stored = trio.lowlevel.ParkingLot()
        """Tasks that wait for a change of the store."""
        self._boot = homes.boot
        self._inner_seal = seal
        self._certificate = certificate
        self._paths = (config.listen.path, MESSAGES)
        self._bound = bound

    def follow(self, config: Config) -> None:
        """Say of this process that it has this configuration now."""
        self.rules_digest = rules_digest(config.written)

    def status(self) -> FleetStatus:
        """The fleet, for people: the members as of the last list, in the order of their addresses."""
        own = self.members.own()
        rows: list[MemberRow] = [
            {
                "boot": each.boot,
                "address": each.address,
                "version": each.version,
                "status": each.status,
                "lease": round(each.left, 1),
                "equal_rules": each.rules_digest == own.rules_digest,
                "behind": (each.definitions, each.grants) < (own.definitions, own.grants),
            }
            for each in sorted(self.members.present, key=lambda member: member.address)
        ]
        return {"name": self._name, "boot": own.boot, "is_current": self.members.is_current, "members": rows}

    async def spread_grants(self) -> str:
        """Wait until a grant that was revoked here holds at no process; where that is so, as the end of a sentence."""
        return self._where(await self.members.wait_taken_over(grants=self.members.own().grants), "")

    async def spread_definitions(self, store: Store) -> str:
        """The same with a definition that was rejected, or held back."""
        revision = store.poll().definitions
        behind = await self.members.wait_taken_over(definitions=revision, outlives_lease=GRACE)
        return self._where(behind, f"; one without the database holds it back after {GRACE:g} s at the latest")

    def _where(self, behind: Sequence[FleetMember], until: str) -> str:
        if behind:
            return f" here; these have not heard of it yet: {', '.join(each.address for each in behind)}{until}"
        return " everywhere" if self.members.is_current else " here; the other processes are not known at the moment"

    async def wait_for_decisions(self, store: Store) -> None:
        """Wait until others may have stored something of the definitions, for POLL_INTERVAL at most."""
        self.members.wake()  # what was there before is taken over by now
        with trio.move_on_after(POLL_INTERVAL):
            while store.poll().definitions == self._definitions:
                await self._stored.park()
        # Whatever comes of the look: one that fails is made again after the whole time.
        self._definitions = store.poll().definitions

    async def follow_absences(self, gate: Gate, reload: Callable[[], Awaitable[object]]) -> None:
        """Let nothing pass after an absence of this process until `reload` has taken over what others have decided,
        until cancelled."""

        async def catch_up() -> None:
            for _ in range(2):  # the first question may go to a connection that has ended meanwhile
                await reload()

        gate.absence = absence = Absence(catch_up, uptime)
        await absence.run()

    async def share_limits(self, policies: Policies) -> None:
        """Lease what is used of limits, until cancelled. `Policies.share` comes first."""
        self.rates.on_leased = policies.admit_waiting
        await self.rates.run()

    async def share_confirmations(self, queue: ConfirmationQueue, store: Store) -> None:
        """Share the confirmations of this process with the others, until cancelled. From now on grants that are stored
        hold only as long as the others take this process for there, since they wait for no other one (`spread_grants`).
        """
        members, boot = self.members, self._boot
        assert isinstance(store, PostgresStore)
        store.has_lease = lambda: members.is_current
        store.subscribe(self._stored.unpark_all)
        store.subscribe(members.wake)

        def attended_elsewhere() -> bool:
            return any(each.attended for each in members.present if each.boot != boot)

        queue.fleet = shared = SharedConfirmations(queue, store, self._inner_seal, members.has, attended_elsewhere)
        self.is_attended = queue.is_attended
        await shared.run()

    async def serve(
        self,
        app: ASGIApp,
        *,
        leaving: trio.Event,
        stop: trio.Event,
        grace: Callable[[], float],
        limits: ListenerLimits,
    ) -> None:
        """Serve what other members forward to the app of the endpoint, as `serve_http` does."""
        inner = inner_app(app, self._boot, self._paths)
        await serve_http(
            inner,
            self._bound,
            certificate=self._certificate,
            leaving=leaving,
            stop=stop,
            grace=grace,
            limits=limits,
            heads=SharedHeads(),
            connection=MemberConnection,
        )


@asynccontextmanager
async def open_process(
    config: Config, fleet: Fleet, inner: Inner, seal: Seal, revisions: Callable[[], Revisions]
) -> AsyncIterator[FleetProcess]:
    """Be a member of the fleet for the block, in which `FleetProcess.serve` is to run.

    Raises:
        StateError: the directory does not answer, or the inner listener cannot be opened.
    """
    try:
        certificate = Certificate(inner.cert, inner.key, inner.ca, name=seal.boot)
        if certificate.notice:
            _log.warning("fleet.inner: %s", certificate.notice)
        bound = bind(inner.listen.host, inner.listen.port)
    except CertificateError as problem:
        raise StateError(f"fleet.inner: {problem}") from None
    except OSError as problem:
        raise StateError(f"fleet.inner.listen: {problem.strerror}; choose another port") from None
    host, port = inner.address.host, inner.address.port
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    made: list[FleetProcess] = []

    def own() -> FleetMember:
        attended = bool(made) and made[0].is_attended()
        known, status = revisions(), made[0].stage() if made else Stage.STARTING
        digest = made[0].rules_digest if made else rules_digest(config.written)
        return FleetMember(seal.boot, address, known.definitions, known.grants, digest, VERSION, status, attended)

    directory = PostgresDirectory(fleet)
    with bound:
        try:
            async with open_members(directory, own, uptime) as members, trio.open_nursery() as nursery:
                process = FleetProcess(
                    members, directory, Homes(seal, seal.boot), seal, certificate, config, fleet, bound
                )
                made.append(process)
                nursery.start_soon(process.forwarding.run)
                nursery.start_soon(_keep_certificate, certificate)
                yield process
                nursery.cancel_scope.cancel()
        except DirectoryAway:
            raise StateError("the fleet's database does not answer; this process cannot join its fleet") from None
        finally:
            with trio.CancelScope(shield=True):
                await directory.aclose()


async def _keep_certificate(certificate: Certificate) -> None:
    """Take over a renewed certificate, until cancelled: those of pods live for hours."""
    while True:
        await trio.sleep(RENEWAL_INTERVAL)
        try:
            await trio.to_thread.run_sync(certificate.read)
        except CertificateError as problem:
            _log.warning("fleet.inner: %s; the former certificate stays", problem)
