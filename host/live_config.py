"""The configuration in effect, and what replaces it while a host runs: a person who has the file read again, a saved
file, a person who leaves a server out or takes one in, and a client that has a variable which servers lack."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Container, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import trio

from config import AuditDetail, Config, ConfigError, HistoryDetail, Secret, StdioServer, Unconfined, load
from config.diff import difference, have_equal_order, listen_in_effect
from config.environment import differing, new_values
from host.audit.contents import Contents
from host.client_process import ClientProcess
from host.journal import ConfigReloaded
from host.memory import Budget
from host.policy.confinement import settled
from host.policy.decision_log import DecisionLog
from host.policy.rows import ChangeRow
from host.policy.widening import changes_as_data, widenings, without_widenings
from host.storage.store import StateError
from host.upstream.own_command import starts_colonnade
from host.upstream.runtime import Runtime
from host.upstream.server_secrets import secrets_of
from host.upstream.upstreams import Upstreams
from host.wire.certificate import Certificate, CertificateError


class LiveConfig:
    """Implements `host.admin.schema.HostControl`.

    Args:
        config: the configuration that the host starts with.
        certificate: the certificate and key with which the endpoint serves TLS.
        stdio: the host serves one client on its standard input and output.

    Attributes:
        config: the configuration in effect.
        files: the files that were looked at when the configuration was read last, each with its state.
        file_problem: why the configuration file, as it was read last, is not applied; empty if it is valid.
        waiting_changes: the changes of the configuration file that wait for a person.
    """

    def __init__(
        self,
        config: Config,
        runtime: Runtime,
        upstreams: Upstreams,
        memory: Budget,
        *,
        certificate: Certificate | None = None,
        stdio: bool = False,
    ) -> None:
        self.config = config
        self.files: Mapping[Path, str] = config.files
        self.file_problem = ""
        self.waiting_changes: list[ChangeRow] = []
        self._initial = config
        self._runtime = runtime
        self._upstreams = upstreams
        self._memory = memory
        self._certificate = certificate
        self._stdio = stdio
        self._config_readers: list[Callable[[Config], None]] = []
        self._readers: list[tuple[Callable[[], None], Callable[[], None]]] = []
        """See `subscribe`."""
        self._reading = trio.Lock()
        """Held while the configuration is read: an older reading of the file must not replace a newer one."""
        self._was_rejected = False
        """Whether the file could not be taken over when it was read last."""
        self._clients: list[ClientProcess] = []
        """The clients that handed over an environment and are served, in the order in which they came."""
        self._waiting = ("", config)
        """The id under which the changes that wait for a person are shown, and the configuration that has them."""

    def follow(self, reader: Callable[[Config], None]) -> None:
        """`reader` is called with the configuration in effect, now and with each later one; it must not wait."""
        self._config_readers.append(reader)
        reader(self.config)

    def subscribe(self, on_waiting_changes: Callable[[], None], on_file_problem: Callable[[], None]) -> None:
        self._readers.append((on_waiting_changes, on_file_problem))

    def restart(self, server: str) -> None:
        """Restart one server. Its calls in progress have DRAIN_TIMEOUT seconds to end."""
        self._upstreams.apply(self.config.servers, {server})

    def restart_links(self) -> None:
        """Restart the servers that are Colonnade, so that they are told anew which configurations lead to them."""
        links = {
            id
            for id, spec in self.config.servers.items()
            if isinstance(spec, StdioServer) and starts_colonnade([word.reveal() for word in spec.command])
        }
        self._upstreams.apply(self.config.servers, links)

    def set_disabled(self, server: str, *, disabled: bool) -> None:
        """Leave a server out, or take it in again, until a person has the configuration read again. A saved file ends
        only the latter, since taking a server in widens."""
        servers = {**self.config.servers, server: replace(self.config.servers[server], disabled=disabled)}
        self._apply(replace(self.config, servers=MappingProxyType(servers)), {server})

    def for_next_host(self) -> Config | None:
        """The configuration in effect, if the next host would read it too, but for servers that a person has left
        out here."""
        _, read = self._waiting
        enabled = {id for id, spec in self.config.servers.items() if not spec.disabled}
        are_read = all(id in read.servers and not read.servers[id].disabled for id in enabled)
        if self.file_problem or self.waiting_changes or not are_read:
            return None
        return replace(self.config, files=self.files)

    @asynccontextmanager
    async def adopt_environment(self, client: ClientProcess) -> AsyncIterator[None]:
        """Serve a client of this environment for the block. Its values of variables that servers lack fill them in, and
        these servers are started, or started again if they had a default. The first value holds for as long as a client
        has it, and after that until another one comes. A client that has another value than a server is refused by that
        server (`ClientProcess.refused`)."""
        async with self._reading:
            await self._adopt(client)
            if not client.is_command:
                client.refused = differing(self.config.servers, client.environment)
            self._clients.append(client)
        try:
            yield
        finally:
            self._clients = [each for each in self._clients if each is not client]

    async def reload(self, *, by_person: bool = True, shown: str | None = None) -> ConfigReloaded:
        """Read the configuration again. An invalid one changes nothing; a valid one takes effect at once, and only
        servers whose own configuration changed are restarted.

        Args:
            by_person: a person wants all of it. Otherwise what widens waits for a person (`host.policy.widening`).
            shown: the id of the changes that the person has seen. If the file has others by now, nothing changes.
        """
        async with self._reading:
            config = await self._read()
            if isinstance(config, ConfigReloaded):
                return config
            if shown is not None and not (self._is_waiting(config) and self._waiting[0] == shown):
                await self._let_wait(config)
                why = "the file is not the one whose changes were shown; look at them again"
                return ConfigReloaded(why, accepted=False)
            outcome = await self._take(config, by_person=by_person)
            for client in self._clients:  # it may name other variables now
                await self._adopt(client)
            return outcome

    async def settle(self) -> None:
        """Put into effect what a person chose about the sandboxes of untrusted programs, here or elsewhere."""
        async with self._reading:
            config = self._settled(self.config)
            if config.servers != self.config.servers or _choices(config) != _choices(self.config):
                self._apply(config, difference(self.config, config).restart)
            if self.waiting_changes:
                id, read = self._waiting
                self._waiting = (id, self._settled(read))

    async def compare(self) -> ConfigReloaded | None:
        """Read the configuration, and show what in it waits for a person. Nothing takes effect. The outcome if the
        configuration is invalid."""
        async with self._reading:
            config = await self._read()
            if isinstance(config, ConfigReloaded):
                return config
            await self._let_wait(config)
            return None

    async def _read(self) -> Config | ConfigReloaded:
        """The configuration in the file, or the outcome if it is invalid."""
        try:
            config = await trio.to_thread.run_sync(self._load, self.config.handed_over)
        except ConfigError as problem:
            first, *more = problem.problems
            why = f"{first}" + (f" (and {len(more)} more: colonnade check)" if more else "")
            self._runtime.gate.decision_log.record_configuration("config_rejected", self.config.source)
            outcome, self._was_rejected = ConfigReloaded(why, accepted=False), True
            self._set_file_problem(why)
            self._runtime.journal.note(outcome)
            return outcome
        self.files = config.files
        self._set_file_problem("")
        return config

    def _load(self, handed_over: Mapping[str, Secret]) -> Config:
        """Read the file with these values of clients. It blocks."""
        present = self.config
        config = load(
            present.source,
            answers=present.answers,
            in_background=present.in_background,
            handed_over=MappingProxyType(dict(handed_over)),
            given_address=present.given_address,
        )
        return self._settled(config)

    def _settled(self, config: Config) -> Config:
        return settled(config, self._runtime.gate.definitions.pins)

    async def _adopt(self, client: ClientProcess) -> None:
        """Fill in what servers lack and this client has. The file is read with the values and without: only a server
        that is in effect as the file has it now gets them, and nothing else that was changed in the file does."""
        handed_over = self.config.handed_over
        left = {
            name
            for name, value in handed_over.items()
            if not any(each.environment.get(name) == value.reveal() for each in self._clients)
        }
        given = {
            name: value
            for name, value in new_values(self.config.servers, client.environment, left).items()
            if (name in left or name not in handed_over) and value != handed_over.get(name)
        }
        if not given:
            return
        try:
            before, after = await trio.to_thread.run_sync(self._load_both, given)
        except ConfigError:  # a reload says so, and tries again
            return
        if before.files != after.files:  # saved at this moment, and read again soon
            return
        filled_in = _filled_in(self.config, before, after)
        self._apply(filled_in, difference(self.config, filled_in).restart)
        if self.waiting_changes:
            await self._let_wait(after)

    def _load_both(self, given: Mapping[str, Secret]) -> tuple[Config, Config]:
        """Read the file without the given values and with those that it can be used with. It blocks.

        Raises:
            ConfigError: the file is invalid.
        """
        usable = self.config.handed_over
        before = self._load(usable)
        if (after := self._load_more(before, given, usable)) is not None:
            return before, after
        after = before
        for name, value in given.items():
            if (found := self._load_more(after, {name: value}, usable)) is not None:
                after, usable = found, found.handed_over
        return before, after

    def _load_more(self, before: Config, given: Mapping[str, Secret], former: Mapping[str, Secret]) -> Config | None:
        """The file with more values; None if it is invalid then, or one of its servers, which it was not `before`."""
        try:
            config = self._load({**former, **given})
        except ConfigError:
            return None
        wrong = _wrong_servers(config)
        return config if wrong <= _wrong_servers(before) else None

    def _set_file_problem(self, problem: str) -> None:
        if problem != self.file_problem:
            self.file_problem = problem
            for _, on_file_problem in self._readers:
                on_file_problem()

    async def _take(self, read: Config, *, by_person: bool) -> ConfigReloaded:
        """Put a configuration into effect, without what waits for a person."""
        may_be_known = not by_person and not self._was_rejected
        if may_be_known and read.digest == self.config.digest:  # a person was faster
            return ConfigReloaded("nothing has changed", accepted=True)
        taken = self._takeable(read)
        wider = {} if by_person else widenings(self.config, taken)
        waiting = tuple(f"{server}: {each}" if server else each for server, found in wider.items() for each in found)
        id, read_before = self._waiting
        if may_be_known and read == read_before and have_equal_order(read, read_before):
            self._waiting = (id, read)  # with another comment, for instance
            outcome = ConfigReloaded("nothing has changed", accepted=True, waiting=waiting)
            self._runtime.journal.note(outcome)
            return outcome
        self._was_rejected = False
        # A change that waits leaves a launch as it was, and so it may leave it unconfined.
        config = self._settled(without_widenings(self.config, taken)) if wider else taken
        diff, since_start = difference(self.config, config), difference(self._initial, read)
        # Records come first, and taking away holds before it is stored (docs/design.md, "Decisions").
        self._runtime.gate.decision_log.record_configuration("config", config.source)
        self._apply(config, diff.restart)
        with suppress(StateError):  # a problem of the grants, which the status shows; storing is repeated
            await self._runtime.gate.authorizer.grants.store_revocations()
        about_certificate, is_usable = await self._renew_certificate()
        changes = [
            *(f"{server} added" for server in diff.added),
            *(f"{server} removed" for server in diff.removed),
            *(f"{server} restarts" for server in diff.restart),
            *(f"{server} has new rules or limits" for server in diff.policy_changed if server not in diff.restart),
            *diff.applied,
            *since_start.deferred,
            *about_certificate,
        ]
        said = "; ".join(changes) or ("nothing takes effect yet" if waiting else "nothing has changed")
        if by_person and not self._stdio:
            said = "; ".join((said, *config.read_once))
        await self._let_wait(read)
        outcome = ConfigReloaded(said, accepted=True, waiting=waiting, complete=is_usable)
        self._runtime.journal.note(outcome)
        return outcome

    def _takeable(self, read: Config) -> Config:
        """A configuration without the changes of the endpoint that are for the next start."""
        return replace(read, listen=listen_in_effect(self.config.listen, read.listen))

    async def _renew_certificate(self) -> tuple[list[str], bool]:
        """Read the certificate again. Returns a sentence if it is another one now or cannot be used, and whether it
        can be used."""
        tls = self.config.listen.tls
        if self._certificate is None or tls is None:
            return [], True
        try:
            renewed = await trio.to_thread.run_sync(self._certificate.read, tls.cert, tls.key)
        except CertificateError as problem:
            return [f"listen.tls: {problem}; the former certificate stays"], False
        if not renewed:
            return [], True
        notice = f": {self._certificate.notice}" if self._certificate.notice else ""
        return [f"listen.tls: new connections get the new certificate{notice}"], True

    def _is_waiting(self, read: Config) -> bool:
        """Whether this is the configuration whose changes are shown: the same text, and the same values of its
        references."""
        _, waiting = self._waiting
        return waiting == read and waiting.digest == read.digest

    async def _let_wait(self, read: Config) -> None:
        """Show what of this configuration waits for a person. What has been shown already keeps its id."""
        if not self._is_waiting(read):
            self._waiting = (secrets.token_hex(8), read)
        id, _ = self._waiting
        taken = self._takeable(read)
        self.waiting_changes = await trio.to_thread.run_sync(changes_as_data, self.config, taken, id)
        for on_waiting_changes, _ in self._readers:
            on_waiting_changes()

    def _apply(self, config: Config, restarted: Container[str]) -> None:
        """Put a configuration into effect. There is no checkpoint: no request may see half of it."""
        self.config = config
        for reader in self._config_readers:
            reader(config)
        views = self._runtime.gate.policies.views
        views.replace(config)
        self._runtime.catalog.set_servers([id for id, spec in config.servers.items() if not spec.disabled])
        self._runtime.catalog.set_views(views, views.audiences())
        self._runtime.gate.authorizer.confirmations.spec = config.ask
        self._memory.total = config.message_memory(self._initial.capacity)
        record_contents(self._runtime.gate.decision_log, config)
        self._runtime.gate.replace(config.servers, config.callers)
        if self._runtime.logins is not None:
            self._runtime.logins.keep_only(config.servers)
        self._upstreams.apply(config.servers, restarted)
        for client in self._clients:
            client.refused = differing(config.servers, client.environment)


def record_contents(decision_log: DecisionLog, config: Config) -> None:
    """Have records hold of arguments and results what this configuration says."""
    decision_log.full_arguments = config.audit.arguments is AuditDetail.FULL
    kept = None if config.history is None or not decision_log.has_files else config.history.arguments
    decision_log.contents = (
        None if kept is None else Contents(None if kept is HistoryDetail.FULL else secrets_of(config))
    )


def _choices(config: Config) -> list[Unconfined | None]:
    return [spec.unconfined for spec in config.servers.values()]


def _wrong_servers(config: Config) -> set[str]:
    """The servers that cannot be used, whatever variables come."""
    return {id for id, spec in config.servers.items() if spec.problem and not spec.waits_for}


def _filled_in(present: Config, before: Config, after: Config) -> Config:
    """The present configuration with the values that `after` has and `before` lacks, both read from one file. Servers
    stay as they are in which the file differs otherwise."""
    as_present = {
        id: replace(spec, disabled=present.servers[id].disabled) if id in present.servers else spec
        for id, spec in before.servers.items()
    }
    unequal = difference(present, replace(before, servers=MappingProxyType(as_present)))
    kept = {*unequal.restart, *unequal.policy_changed, *unequal.removed}
    servers = {
        id: spec if id in kept else replace(after.servers[id], disabled=spec.disabled)
        for id, spec in present.servers.items()
    }
    return replace(present, servers=MappingProxyType(servers), handed_over=after.handed_over)
