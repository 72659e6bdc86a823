"""Issuers that are peculiar in documented ways, with the servers that they protect, in this process, without sockets.

    with network(Peculiar(server="https://notes.example/mcp", issuer="https://login.example")) as net:
        login = await log_in(net, spec, store)

Each request of a login goes to `Network.send` in the place of a socket. It knows every secret that was given out, and
for whom: `Network.strays` are the requests that took one elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

import pytest
import trio

from config import HttpServer
from host.oauth.addresses import check_url
from host.oauth.challenge import Challenge
from host.storage.sqlite import SqliteStore
from host.upstream.login import begin, finish, propose
from host.upstream.vault import Login
from host.url import Url
from host.wire import issuer_http
from host.wire.asgi import Receive, Scope, Send, read_body, respond
from host.wire.issuer_http import Answer, IssuerHttp, IssuerUnreachable
from tests.kit.logins import VAULT

Form = dict[str, str]
JSON = "application/json"
INSERTED, OPENID_INSERTED, OPENID_APPENDED = "inserted", "openid inserted", "openid appended"
EVIL = "https://evil.example"
"""An origin that no login is at."""


@dataclass(frozen=True, kw_only=True)
class Peculiar:
    """An issuer and its server. The defaults are by the letter of the standards."""

    name: str = "plain"
    server: str = "https://notes.example/mcp"
    issuer: str = "https://login.example"
    """As the server's metadata name it; empty: the server has none."""
    metadata_at_root: bool = False
    """Whether the server's metadata are at the root, and not at the place with the path."""
    says: tuple[str, ...] = ()
    """The names that the issuer's metadata give, one after the other, the last one for ever; by default `issuer`."""
    places: tuple[str, ...] = (INSERTED,)
    not_json: tuple[str, ...] = ()
    """Places that answer 200 with a page."""
    endpoints: str = ""
    """The URL below which the endpoints are; by default the issuer's origin."""
    scopes: tuple[str, ...] | None = None
    """Those that the server's metadata name."""
    offered: tuple[str, ...] = ()
    """Those that the issuer's metadata name; others are invalid, if there are any."""
    says_pkce: bool = True
    auth_methods: tuple[str, ...] | None = ("none",)
    registration: Mapping[str, Any] = field(default_factory=dict)
    """Members of the answer to a registration."""
    refuses_registration: tuple[int, bytes] | None = None
    more_redirects: bool = False
    secret_by: tuple[str, ...] = ()
    """The ways in which the client's secret is taken; none: no secret is wanted."""
    client: tuple[str, str | None] | None = None
    """The id and the secret of the client that was registered by hand; None: clients register themselves."""
    redirect: str = ""
    """The only redirect of that client; empty: any port of loopback."""
    refuses_client: tuple[int, bytes] | None = None
    """The answer to a client that has not proved to be one; by default 401 invalid_client."""
    token_status: int = 200
    resource_is: str = "ignored"
    """`ignored`, `required` (in all three requests, as the server's metadata have it) or `refused`."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the login page without which there is no refresh token."""
    refuses_consent: bool = False
    """Whether `prompt=consent` fails."""
    refresh_scope: str = ""
    """The scope without which there is no refresh token."""
    scope_at_refresh: bool = False
    """Whether a refresh without the scope that was requested is invalid_request."""
    iss: str = "no"
    """`no`, `sent` or `announced`."""
    token: Mapping[str, Any] = field(default_factory=lambda: {"token_type": "Bearer", "expires_in": 3600})
    """Members of each answer with a token; None leaves one out."""
    nested: str = ""
    """A member that holds the token of the first answer, but for its refresh token."""
    form_encoded: str = "no"
    """`no`, `always`, or `unless asked` for JSON."""
    scope_between: str = " "
    errors_status: int = 400
    refusal: str = "invalid_grant"
    """The code for a dead refresh token."""
    rotates: bool = True
    grace: bool = False
    """Whether the former refresh token stays good until the new one is used."""
    revokes: bool = True
    revocation_endpoint: str = "/revoke"


class PageRefused(Exception):
    """The issuer's page shows an error, and the browser does not come back."""


@dataclass
class Sent:
    """A request of ours. `form`: the members of its body, or of a page's query."""

    method: str
    url: str
    form: Form
    headers: dict[str, str]


@dataclass
class Issuer:
    """A peculiar issuer at work. `outage`: the status of each answer at the token endpoint while it is down; `loses`:
    answers that get lost after it has done its part; `lives`: whether the person's grant does."""

    of: Peculiar
    outage: int = 0
    says_only: Answer | None = None
    """The answer of the token endpoint to everything, if it is there."""
    loses: int = 0
    lives: bool = True
    clients: dict[str, dict[str, Any]] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    """Each secret, which nobody else may see, and its kind."""
    tokens: set[str] = field(default_factory=set)
    """Access tokens that the server takes."""
    refresh: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Refresh tokens that are good, with their client and the scope that was requested."""
    given: str = ""
    """The refresh token that came to us last."""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    asked: list[Sent] = field(default_factory=list)
    read: int = 0
    count: int = 0

    def __post_init__(self) -> None:
        if self.of.client is not None:
            id, secret = self.of.client
            self.clients[id] = {"secret": secret, "redirect": self.of.redirect}
            if secret is not None:
                self.secrets[secret] = "client secret"

    @property
    def origin(self) -> str:
        named = urlsplit(self.of.issuer or self.of.server)
        return f"{named.scheme}://{named.netloc}"

    @property
    def base(self) -> str:
        return self.of.endpoints or self.origin

    def new(self, what: str) -> str:
        self.count += 1
        secret = f"{what.replace(' ', '-')}-{self.count}-{hashlib.sha256(self.of.name.encode()).hexdigest()[:12]}"
        self.secrets[secret] = what
        return secret

    # Documents

    def documents(self) -> dict[str, Callable[[], Answer]]:
        """The documents by their URLs."""
        of, server = self.of, urlsplit(self.of.server)
        found: dict[str, Callable[[], Answer]] = {}
        if of.issuer:
            base = f"{server.scheme}://{server.netloc}/.well-known/oauth-protected-resource"
            found[base if of.metadata_at_root else base + server.path] = self._resource_document
        named = urlsplit(of.issuer or self.origin)
        path = named.path.rstrip("/")
        forms = {
            INSERTED: f"{self.origin}/.well-known/oauth-authorization-server{path}",
            OPENID_INSERTED: f"{self.origin}/.well-known/openid-configuration{path}",
            OPENID_APPENDED: f"{self.origin}{path}/.well-known/openid-configuration",
        }
        found |= {forms[place]: lambda: Answer(200, b"<!doctype html><title>Notes</title>") for place in of.not_json}
        found |= {forms[place]: self._issuer_document for place in of.places}
        return {str(Url.parse(url)): document for url, document in found.items()}

    def _resource_document(self) -> Answer:
        members: dict[str, Any] = {"resource": self.of.server, "authorization_servers": [self.of.issuer]}
        if self.of.scopes is not None:
            members["scopes_supported"] = self.of.scopes
        return _json(200, members)

    def _issuer_document(self) -> Answer:
        of = self.of
        names = of.says or (of.issuer or self.origin,)
        members: dict[str, Any] = {
            "issuer": names[min(self.read, len(names) - 1)],
            "authorization_endpoint": f"{self.base}/authorize",
            "token_endpoint": f"{self.base}/token",
        }
        self.read += 1
        if of.client is None:
            members["registration_endpoint"] = f"{self.base}/register"
        if of.revokes:
            members["revocation_endpoint"] = self.base + of.revocation_endpoint
        if of.says_pkce:
            members["code_challenge_methods_supported"] = ["plain", "S256"]
        if of.auth_methods is not None:
            members["token_endpoint_auth_methods_supported"] = of.auth_methods
        if of.offered:
            members["scopes_supported"] = of.offered
        if of.iss == "announced":
            members["authorization_response_iss_parameter_supported"] = True
        return _json(200, members)

    # Endpoints

    def register(self, body: bytes) -> Answer:
        if self.of.refuses_registration is not None:
            return Answer(*self.of.refuses_registration)
        wanted = json.loads(body)
        id = f"client-{len(self.clients) + 1}"
        secret = self.new("client secret") if self.of.secret_by else None
        (redirect,) = wanted["redirect_uris"]
        self.clients[id] = {"secret": secret, "redirect": redirect}
        answer = {**wanted, "client_id": id, **({"client_secret": secret} if secret else {}), **self.of.registration}
        if self.of.more_redirects:
            answer["redirect_uris"] = [redirect.replace("127.0.0.1", "localhost"), redirect]
        return _json(201, answer)

    def authorize(self, url: str) -> str:
        """The query with which the browser of a person who agrees comes back from the page.

        Raises:
            PageRefused: it shows an error.
        """
        of, form = self.of, dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
        self.asked.append(Sent("PAGE", url, form, {}))
        if not url.startswith(f"{self.base}/authorize?"):
            raise PageRefused("not this issuer's page")
        client = self.clients.get(form["client_id"])
        if client is None:
            raise PageRefused("unknown client")
        if client["redirect"] and client["redirect"] != form["redirect_uri"]:
            raise PageRefused("unknown redirect")
        assert form["code_challenge_method"] == "S256"
        problem = ""
        scopes = form.get("scope", "").split()
        if of.offered and not {*scopes} <= {*of.offered}:
            problem = "invalid_scope"
        elif (problem := self._wrong_resource(form)) == "" and of.refuses_consent and form.get("prompt") == "consent":
            problem = "access_denied"
        answer = {"state": form["state"], **({} if of.iss == "no" else {"iss": self._name})}
        if problem:
            return urlencode({**answer, "error": problem})
        code = self.new("code")
        offline = all(form.get(name) == value for name, value in of.parameters.items())
        offline = offline and (not of.refresh_scope or of.refresh_scope in scopes)
        self.codes[code] = {**form, "offline": "yes" if offline else ""}
        return urlencode({**answer, "code": code})

    @property
    def _name(self) -> str:
        return (self.of.says or (self.of.issuer or self.origin,))[-1]

    def _wrong_resource(self, form: Mapping[str, str]) -> str:
        if self.of.resource_is == "required" and form.get("resource") != self.of.server:
            return "invalid_target"
        return "invalid_request" if self.of.resource_is == "refused" and "resource" in form else ""

    def _client(self, form: Form, headers: Mapping[str, str]) -> str | None:
        """The client that has proved to be one; None if it has not."""
        basic = headers.get("authorization", "").removeprefix("Basic ")
        id, _, given = base64.b64decode(basic).decode().partition(":") if basic else (form.get("client_id", ""), "", "")
        id, given, by = unquote_plus(id), unquote_plus(given), "client_secret_basic"
        if not basic:
            given, by = form.get("client_secret", ""), "client_secret_post"
        client = self.clients.get(id)
        if client is None or (self.of.secret_by and (by not in self.of.secret_by or given != client["secret"])):
            return None
        return id

    def answer_token(self, form: Form, headers: Mapping[str, str]) -> Answer:
        if self.says_only is not None:
            return self.says_only
        if self.outage:
            return Answer(self.outage, b"<h1>Sorry</h1>")
        client = self._client(form, headers)
        if client is None:
            if self.of.refuses_client is not None:
                return Answer(*self.of.refuses_client)
            return self._refuse("invalid_client", headers, 401)
        kind = form["grant_type"]
        if problem := self._wrong_resource(form):
            return self._refuse(problem, headers)
        if kind == "authorization_code":
            begun = self.codes.pop(form["code"], None)
            if begun is None or begun["client_id"] != client or begun["redirect_uri"] != form["redirect_uri"]:
                return self._refuse("invalid_grant", headers)
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == begun["code_challenge"]
            return self._grant(client, begun.get("scope", ""), headers, has_refresh=bool(begun["offline"]), first=True)
        given = form["refresh_token"]
        found = self.refresh.get(given)
        if found is None or found[0] != client or not self.lives:
            return self._refuse(self.of.refusal, headers)
        if self.of.scope_at_refresh and form.get("scope", "") != found[1]:
            return self._refuse("invalid_request", headers)
        if self.of.rotates:
            for old in [each for each in self.refresh if each != given or not self.of.grace]:
                del self.refresh[old]
        return self._grant(client, found[1], headers, has_refresh=self.of.rotates)

    def _grant(
        self, client: str, scope: str, headers: Mapping[str, str], *, has_refresh: bool, first: bool = False
    ) -> Answer:
        access = self.new("access token")
        self.tokens = {access}
        answer: dict[str, Any] = {"access_token": access, "scope": scope.replace(" ", self.of.scope_between)}
        answer |= self.of.token
        answer = {name: each for name, each in answer.items() if each is not None}
        if first and self.of.nested:
            answer = {"ok": True, self.of.nested: answer}
        if has_refresh:
            token = answer["refresh_token"] = self.new("refresh token")
            self.refresh[token] = client, scope
        if self.loses:
            self.loses -= 1
            raise IssuerUnreachable("the issuer gave no answer: the connection was lost")
        self.given = answer.get("refresh_token", self.given)
        return self._encode(self.of.token_status, answer, headers)

    def _refuse(self, code: str, headers: Mapping[str, str], status: int = 400) -> Answer:
        status = status if self.of.errors_status == 400 else self.of.errors_status
        return self._encode(status, {"error": code, "error_description": "ask your administrator"}, headers)

    def _encode(self, status: int, answer: dict[str, Any], headers: Mapping[str, str]) -> Answer:
        wants_json = JSON in headers.get("accept", "")
        if self.of.form_encoded == "always" or (self.of.form_encoded == "unless asked" and not wants_json):
            return Answer(status, urlencode(answer).encode())
        return _json(status, answer)

    def revoke(self, form: Form) -> Answer:
        self.refresh.pop(form["token"], None)
        self.tokens.discard(form["token"])
        return Answer(200, b"")


class Network:
    """All issuers that can be reached, and what was sent."""

    def __init__(self, *kinds: Peculiar) -> None:
        self.issuers = [Issuer(each) for each in kinds]
        self.sent: list[Sent] = []

    @property
    def issuer(self) -> Issuer:
        return self.issuers[0]

    async def send(self, method: str, url: Url, headers: list[tuple[bytes, bytes]], body: bytes | None) -> Answer:
        await trio.lowlevel.checkpoint()
        text, fields = str(url), {name.decode().lower(): each.decode() for name, each in headers}
        is_form = fields.get("content-type") == "application/x-www-form-urlencoded"
        form = dict(parse_qsl((body or b"").decode(), keep_blank_values=True)) if is_form else {}
        sent = Sent(method, text, form, fields)
        self.sent.append(sent)
        for issuer in self.issuers:
            if method == "GET" and (document := issuer.documents().get(text)) is not None:
                return document()
            if method == "POST" and text.startswith(f"{issuer.base}/"):
                issuer.asked.append(sent)
                path = text.removeprefix(issuer.base)
                if path == "/register":
                    return issuer.register(body or b"")
                if path == issuer.of.revocation_endpoint and "token" in form:
                    return issuer.revoke(form)
                if path == "/token":
                    return issuer.answer_token(form, fields)
        return Answer(404, b"not found")

    @property
    def strays(self) -> list[str]:
        """The secrets that were sent to a place that is not their issuer's token or revocation endpoint."""
        found = []
        for issuer in self.issuers:
            places = {f"{issuer.base}/token", issuer.base + issuer.of.revocation_endpoint}
            for each in self.sent:
                basic = base64.b64decode(each.headers.get("authorization", "").removeprefix("Basic ")).decode()
                texts = [*each.form.values(), *map(unquote_plus, basic.split(":")), each.url]
                for secret, what in issuer.secrets.items():
                    if any(secret in text for text in texts) and each.url not in places:
                        found.append(f"{what} to {each.url}")
                if "code_verifier" in each.form and not any(each.url == f"{one.base}/token" for one in self.issuers):
                    found.append(f"verifier to {each.url}")
        return found

    def forms(self, kind: str) -> list[Form]:
        """The forms of this grant type that were sent, oldest first."""
        return [each.form for each in self.sent if each.form.get("grant_type") == kind]


async def serve(net: Network, scope: Scope, receive: Receive, send: Send) -> None:
    """The network as one origin of HTTP: an app for a listener."""
    url = Url.parse(net.issuer.origin).join(scope["raw_path"].decode() or scope["path"])
    body = await read_body(receive, 1 << 20)
    answer = await net.send(scope["method"], url, scope["headers"], body)
    await respond(send, answer.status, {"content-type": JSON}, answer.body)


def _json(status: int, members: Mapping[str, Any]) -> Answer:
    return Answer(status, json.dumps(members).encode())


@contextmanager
def network(*kinds: Peculiar) -> Iterator[Network]:
    """These issuers are all that a login reaches, for the block. Each name leads to a public address."""
    net = Network(*kinds)

    async def look_up(url: Url) -> list[str]:
        await trio.lowlevel.checkpoint()
        return ["1.1.1.1"]

    async def request(http: IssuerHttp, method: str, url: Url, headers: Any, body: bytes | None, _: float) -> Answer:
        check_url(url, http.home)
        return await net.send(method, url, headers, body)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(issuer_http, "_look_up", look_up)
        patch.setattr(IssuerHttp, "_request", request)
        yield net


class _Port:
    """The part of a listening socket that `propose` uses."""

    def __init__(self, port: int) -> None:
        self._port = port

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port


async def log_in(
    net: Network,
    spec: HttpServer,
    store: SqliteStore,
    *,
    answer: Callable[[str], str] | None = None,
    accepts_other: bool = True,
) -> Login:
    """A person logs in with a browser, at the first issuer's page.

    Args:
        answer: changes the query with which the browser comes back.
        accepts_other: whether the person goes on at another issuer than at the last login.

    Raises:
        OAuthProblem: there is no login.
        PageRefused: the issuer's page shows an error.
    """
    port = (spec.oauth.redirect_port if spec.oauth is not None else None) or 41873
    proposed = await propose(spec, store, VAULT, cast(socket.socket, _Port(port)), Challenge())
    if proposed.is_other_issuer and not accepts_other:
        raise PageRefused("the person did not accept another issuer")
    pending = await begin(proposed)
    query = net.issuer.authorize(pending.request.url)
    code = pending.request.read_answer(query if answer is None else answer(query))
    return await finish(pending, code, store, VAULT)
