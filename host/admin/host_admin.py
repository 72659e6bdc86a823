"""The admin API without its doors: what a person can see of a running host and decide, in plain data. Nothing of MCP
leads here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from config import Channel, HttpServer, ServerSpec, StdioServer, Trust
from config.when import WhenError, read_when
from host.addresses import suffix_of
from host.admin.caller_views import CallerViews
from host.admin.decisions import PolicyAdmin, as_admin_errors
from host.admin.login import CODE_LIFETIME
from host.admin.past_calls import PastCalls, reader_of
from host.admin.schema import (
    NO_HOST,
    AdminError,
    CallerView,
    Done,
    HistoryList,
    HistoryReader,
    HistoryRecords,
    HostControl,
    LoginProposal,
    ServerLog,
    ServerTraffic,
)
from host.admin.state import StateReader
from host.client_process import ClientRow
from host.oauth.problem import OAuthProblem
from host.policy.conditions import conditions_hold
from host.policy.confirmations import ConfirmationAnswer, describe_access
from host.policy.rows import Explanation
from host.router.router import Router
from host.sanitize import visible
from host.storage.store import StateError
from host.subject import Item
from host.upstream.confinement import NotInstalled
from host.upstream.connect import why_no_login
from host.upstream.runtime import Runtime
from host.upstream.upstreams import Upstreams


class HostAdmin(PolicyAdmin):
    """Implements `host.admin.schema.AdminApi`.

    Args:
        control: the configuration in effect, and what a person can have done to it.
        stdio, endpoint, clients: see `StateReader`.

    `new_console_url` makes an address that opens the web console once, at a confirmation (its id, or empty), and for so
    many seconds; None if there is no web console.
    """

    def __init__(
        self,
        control: HostControl,
        runtime: Runtime,
        upstreams: Upstreams,
        router: Router,
        *,
        stdio: bool,
        endpoint: str = "",
        clients: Callable[[], list[ClientRow]] = list,
    ) -> None:
        super().__init__(runtime.gate)
        self.new_console_url: Callable[[str, float], str] | None = None
        self._control = control
        self._runtime = runtime
        self._confirmations = runtime.gate.authorizer.confirmations
        self._caller_views = CallerViews(control, router, upstreams, runtime.catalog, runtime.gate)
        self.reader = StateReader(
            control, runtime, upstreams, self._caller_views, stdio=stdio, endpoint=endpoint, clients=clients
        )
        self._of_history = lambda: self.reader.history, lambda: control.config
        self._past_calls = PastCalls(*self._of_history)

    def mark_changed(self, *sections: str) -> None:
        self.reader.mark_changed(*sections)

    def attach(self, channel: Channel) -> AbstractContextManager[object]:
        return self._confirmations.attach(channel)

    def console_url(self) -> str:
        if self.new_console_url is None:
            raise AdminError("this host has no web console (console: off)")
        return self.new_console_url("", CODE_LIFETIME)

    async def answer(
        self, id: str, answer: str, seconds: int | None, arguments: str | dict[str, Any], channel: Channel
    ) -> Done:
        self._check_channel(channel)
        pending = next((confirmation for confirmation in self._confirmations.list_all() if confirmation.id == id), None)
        if pending is None:
            raise AdminError("this confirmation is no longer pending: it was answered, withdrawn, or is void")
        choice = ConfirmationAnswer(answer)
        if choice is ConfirmationAnswer.SESSION and pending.access.subject.session is None:
            raise AdminError("the caller has no session, so it cannot be allowed for a session")
        try:
            when = read_when(arguments) if isinstance(arguments, dict) else ()
        except WhenError as problem:
            raise AdminError(f"these conditions cannot be read: {problem}") from None
        if when and conditions_hold(when, pending.access.arguments) is not True:
            raise AdminError("these conditions do not hold for the arguments of this very call")
        with as_admin_errors():
            answered = await self._confirmations.answer(
                id, choice, channel, seconds=seconds, when=when, exact=arguments == "exact"
            )
        if answered is None:
            raise AdminError("this confirmation is no longer pending")
        if choice is ConfirmationAnswer.DENY:
            return {"done": f"{describe_access(answered.access)}: denied."}
        waits = "it goes on now"
        if answered.refused:
            where = " in this session" if choice is ConfirmationAnswer.SESSION else ""
            anyone = "" if where or answered.access.subject.caller else ", also that of another client"
            waits = f"nothing waits any more; the next call like it{where} passes{anyone}"
        return {"done": f"{describe_access(answered.access)}: allowed ({answer}); {waits}."}

    async def deny_all(self, server: str, ids: list[str], channel: Channel) -> Done:
        self._check_channel(channel)
        wanted = set(ids)
        known = [each for each in self._confirmations.list_all() if each.id in wanted]
        shown = [each for each in known if each.access.subject.item.server == server]
        denied = 0
        for each in shown:
            answered = await self._confirmations.answer(each.id, ConfirmationAnswer.DENY, channel)
            denied += answered is not None
        if not denied:
            raise AdminError("none of these confirmations is pending any more: look again")
        return {"done": f"{denied} confirmation{'' if denied == 1 else 's'} of {server}: denied."}

    async def choose_sandbox(self, server: str, sandbox: str, channel: Channel) -> Done:
        done = await super().choose_sandbox(server, sandbox, channel)
        await self._control.settle()
        return done

    async def control(self, server: str, action: str) -> Done:
        spec = self._spec(server)
        if action == "install":
            done = await self._install(spec)
        elif action == "restart":
            if spec.disabled:
                raise AdminError(f"{server} is disabled; `colonnade enable {server}` takes it in")
            self._control.restart(server)
            done = "it restarts; calls in progress have some seconds to end"
            if any(change["server"] == server for change in self._control.waiting_changes):
                done += ". A change of it in the file waits for you: colonnade reload"
        elif spec.disabled is (action == "disable"):
            raise AdminError(f"{server} is {action}d already")
        else:
            self._control.set_disabled(server, disabled=action == "disable")
            ends = {
                "enable": "the configuration is read again or the host is restarted",
                "disable": "`colonnade enable`, `colonnade reload` or a restart of the host",
            }
            done = f"it is {action}d until {ends[action]}"
        self.mark_changed("servers", "catalog", "held")
        return {"done": f"{server}: {done}."}

    async def _install(self, spec: ServerSpec) -> str:
        """Install the packages of a server again, and restart it if others were installed."""
        server, installations = spec.id, self._runtime.installations
        if spec.disabled:
            raise AdminError(f"{server} is disabled; `colonnade enable {server}` takes it in")
        if installations is None or not isinstance(spec, StdioServer):
            raise AdminError(f"{server} is no program that is started here")
        before = installations.launch(spec)
        if before.installs:
            raise AdminError(
                f"nothing is installed for {server} yet: once a person has approved that (`colonnade definitions`), "
                f"its start installs it, and `colonnade restart {server}` tries at once"
            )
        if not before.installed:
            raise AdminError(
                f"nothing is installed for {server}: its command is not npx or uvx in a sandbox (without an image)"
            )
        try:
            after = await installations.install(spec, again=True)
        except NotInstalled as problem:
            raise AdminError(str(problem)) from problem
        self._control.restart(server)
        if after == before.installed:
            return f"installed again, as it was: {after}; it restarts"
        held = "" if spec.trust is Trust.TRUSTED else "; it is held until you approve that: colonnade definitions"
        return f"installed: {after}; before: {before.installed}{held}"

    async def reload(self, *, apply: bool, shown: str | None) -> Done:
        outcome = await (self._control.reload(shown=shown) if apply else self._control.compare())
        if outcome is not None and outcome.failed:
            raise AdminError(str(outcome))
        if outcome is None:
            count = len(self._control.waiting_changes)
            return {"done": f"changes of the configuration that wait for a person: {count}."}
        return {"done": f"{outcome}."}

    async def login(self, server: str, channel: Channel) -> LoginProposal:
        spec = self._spec(server)
        if spec.disabled:
            raise AdminError(f"{server} is disabled; `colonnade enable {server}` takes it in")
        if why := why_no_login(spec):
            raise AdminError(why)
        assert isinstance(spec, HttpServer)
        opened = await self._connect(spec, channel)
        self.mark_changed("servers")
        return opened

    async def _connect(self, spec: HttpServer, channel: Channel) -> LoginProposal:
        """Open a login, and find out what it will be for. What fails is an AdminError."""
        if self._runtime.logins is None:
            raise AdminError(NO_HOST)
        try:
            login, proposed = await self._runtime.logins.connect(spec, channel.value)
        except OAuthProblem as problem:
            raise AdminError(f"{spec.id}: {problem.told}") from None
        except StateError as problem:
            raise AdminError(f"{spec.id}: {problem}") from None
        return {
            "server": spec.id,
            "issuer": visible(proposed.issuer.id),
            "page": visible(proposed.page_elsewhere),
            "resource": visible(proposed.resource),
            "scopes": [visible(scope) for scope in proposed.scopes],
            "redirect": proposed.redirect_uri,
            "former_issuer": visible(proposed.former_issuer) if proposed.is_other_issuer else "",
            "link": login.callback.start_url,
            "until": login.until,
        }

    async def explain(
        self, item: Item, arguments: dict[str, Any] | None, caller: str | None = None, view: str = ""
    ) -> Explanation:
        explanation = await super().explain(item, arguments, caller, view)
        why = self._caller_views.why_left_out(item, self.endpoint_of(caller, view)) if explanation["shown"] else ""
        if why:
            where = f" of the view {explanation['view']}" if explanation["view"] else ""
            explanation["sentence"] = f"The {item.kind} {item.name} of {item.server} is left out{where}: {why}."
            explanation["shown"] = False
        return explanation

    async def caller_view(self, caller: str | None, view: str) -> CallerView:
        suffix = None if caller is None else suffix_of(view)
        return await self._caller_views.see(self.endpoint_of(caller, view), suffix)

    async def server_log(self, server: str, after: int) -> ServerLog:
        self._spec(server)
        lines = self._runtime.journal.output(server, after)
        return {"lines": [{"n": each.number, "t": each.t, "line": each.line, "stream": each.stream} for each in lines]}

    async def server_traffic(self, server: str) -> ServerTraffic:
        self._spec(server)
        return self.reader.traffic(server)

    async def past_calls(self, since: float | None, wanted: Mapping[str, Any]) -> HistoryList:
        return await self._past_calls.past_calls(since, wanted)

    async def past_call(self, id: str, place: int | None) -> HistoryRecords:
        return await self._past_calls.past_call(id, place)

    def history_reader(self, token: bytes) -> HistoryReader | None:
        return reader_of(token, *self._of_history)

    def _means(self, server: str) -> str:
        return self._runtime.journal.means.get(server, "")

    def _check_channel(self, channel: Channel) -> None:
        if channel not in self._confirmations.spec.answers:
            raise AdminError(f"the configuration does not let the {channel.value} answer (ask.answers)")

    def _spec(self, server: str) -> ServerSpec:
        """The configuration of a server; raises AdminError if there is none."""
        self._check_server(server)
        return self._control.config.servers[server]
