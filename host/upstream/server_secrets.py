"""The secrets of one server: those that its configuration gives to it, and those that were learned since.

Servers repeat what they were given. In lines for people, every one of them is redacted. In messages, those that nothing
may repeat are withheld: the tokens of the login, values of files and of the keyring, and an authorization header. Other
values are not, because servers print them rightly, such as a folder in the environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain

from msgspec import Raw

from config import Config, HttpServer, Secret, ServerSpec
from config.references import HIDDEN
from host.jsonrpc.strict import LIGHT_BYTES
from host.jsonrpc.withheld import Withheld
from host.worker import WorkerTimeout, run_in_worker

MIN_SECRET_LENGTH = 6
"""Characters of a value that is redacted. Shorter values are words like `UTC` and `true`, which occur in any text."""
MIN_WITHHELD_LENGTH = 16
"""Characters of a configured value that is withheld. Shorter values occur in texts that have nothing to do with it."""

MAX_LEARNED = 16
"""Learned secrets of a server, present and former ones, that are known."""

_ONE_PARAMETER = re.compile(r'[A-Za-z][\w-]*="?([^",\s=]+)"?')


class ServerSecrets:
    """The secrets of one server; the `Censor` of its connections.

    Args:
        learned: returns the secrets that were learned since the start, the former ones included: they are followed.
        on_withheld: called with what the secret was in.
    """

    def __init__(
        self,
        spec: ServerSpec,
        learned: Callable[[], list[Secret]] | None = None,
        on_withheld: Callable[[str], object] = lambda where: None,
    ) -> None:
        self._spec = spec
        self._learned = learned or partial(_learned_of, spec)
        self._learns = learned is not None or isinstance(spec, HttpServer)
        """Whether more can be learned: this is asked for each message."""
        self._on_withheld = on_withheld
        self._configured = [text for text in _kept_in(spec) if len(text) >= MIN_WITHHELD_LENGTH]
        self._known: list[Secret] | None = None
        """The learned secrets that are among those below."""
        self._redacted: list[str] = []
        self._withheld = Withheld(())
        self._follow()

    def _follow(self) -> None:
        """Take over what was learned meanwhile."""
        learned = self._learned()
        if learned == self._known:
            return
        self._known = list(learned)
        tokens = [text for each in learned for text in each.kept if len(text) >= MIN_SECRET_LENGTH]
        self._withheld = Withheld([*self._configured, *tokens])
        known = {each for each in _secrets(self._spec, learned) if len(each) >= MIN_SECRET_LENGTH}
        self._redacted = sorted(known, key=len, reverse=True)

    @property
    def withheld(self) -> Withheld | None:
        """The texts that its messages must not repeat; None if there are none."""
        self._follow()
        return self._withheld if self._withheld.texts else None

    @property
    def texts(self) -> list[str]:
        """The secrets that are redacted, the longest first."""
        self._follow()
        return self._redacted

    def redact(self, text: str) -> str:
        """A line for people without any of the secrets."""
        for secret in self.texts:
            text = text.replace(secret, HIDDEN)
        return text

    # Censor

    @property
    def knows_any(self) -> bool:
        if self._learns and self._learned() != self._known:
            self._follow()
        return bool(self._withheld.texts)

    def clean_text(self, text: str, where: str) -> str:
        withheld = self.withheld
        cleaned = text if withheld is None else withheld.replaced_in_text(text)
        if cleaned != text:
            self._on_withheld(where)
        return cleaned

    def clean(self, raw: Raw, where: str) -> Raw:
        withheld, data = self.withheld, bytes(raw)
        if withheld is None or not withheld.may_be_in(data):
            return raw
        if len(data) > LIGHT_BYTES:
            raise ValueError(f"longer than {LIGHT_BYTES} bytes, and may repeat a secret of the server")
        return self._noted(raw, withheld.replaced(data), where)

    async def clean_result(self, raw: Raw, where: str) -> Raw:
        withheld, data = self.withheld, bytes(raw)
        if withheld is None or not withheld.may_be_in(data):
            return raw
        if len(data) <= LIGHT_BYTES:
            return self._noted(raw, withheld.replaced(data), where)
        try:
            return self._noted(raw, await run_in_worker(withheld.replaced, data), where)
        except WorkerTimeout:
            raise ValueError("looking for secrets in it took too long") from None

    def _noted(self, raw: Raw, cleaned: bytes, where: str) -> Raw:
        if cleaned == bytes(raw):
            return raw
        self._on_withheld(where)
        return Raw(cleaned)


def secrets_of(config: Config) -> Callable[[], list[str]]:
    """The secrets of a configuration, the longest first, whenever they are asked for: those of all servers, the secrets
    of their clients, and access tokens."""
    servers = [ServerSecrets(spec) for spec in config.servers.values()]
    clients = [spec.oauth for spec in config.servers.values() if isinstance(spec, HttpServer) and spec.oauth]
    keys = [key for client in clients for key in (client.client_secret, client.private_key) if key is not None]
    texts = [each.reveal() for each in (*config.listen.tokens.values(), *keys)]
    own = {text for text in texts if len(text) >= MIN_SECRET_LENGTH}

    return lambda: sorted({*own, *chain.from_iterable(each.texts for each in servers)}, key=len, reverse=True)


def kept_secret(text: str) -> Secret:
    """A secret that was learned and that nothing may repeat."""
    return Secret(text, kept=(text,))


def learn_headers(spec: HttpServer, printed: Mapping[str, Secret]) -> None:
    """Learn the headers that the server's helper has printed for a connection; those of earlier ones stay known."""
    learned: list[Secret] = []
    for name, value in printed.items():
        found = _credentials_in(value.reveal()) if _is_authorization(name) else iter(())
        kept = tuple(text for text in found if len(text) >= MIN_WITHHELD_LENGTH)
        learned.append(Secret(value.reveal(), kept=kept))
    learn(spec, learned)


def learn(spec: HttpServer, secrets: Iterable[Secret]) -> None:
    """Learn secrets, the newest of which are the MAX_LEARNED that are known."""
    spec.learned_secrets[:] = list(dict.fromkeys((*secrets, *spec.learned_secrets)))[:MAX_LEARNED]


def _credentials_in(header: str) -> Iterator[str]:
    """The credentials in the value of an authorization header: without a scheme such as `Bearer`, and of
    `token="…"` also what is between the quotes."""
    credentials = header.partition(" ")[2].strip() or header
    yield credentials
    if (parameter := _ONE_PARAMETER.fullmatch(credentials)) is not None:
        yield parameter[1]


def _learned_of(spec: ServerSpec) -> list[Secret]:
    return spec.learned_secrets if isinstance(spec, HttpServer) else []


def _kept_in(spec: ServerSpec) -> Iterator[str]:
    """The configured texts that nothing may repeat."""
    if isinstance(spec, HttpServer):
        values = [spec.url, *spec.headers.values()]
        for name, value in spec.headers.items():
            if _is_authorization(name):
                yield from _credentials_in(value.reveal())
    else:
        values = [*spec.command, *spec.env.values()]
    yield from (text.strip() for value in values for text in value.kept)


def _is_authorization(header: str) -> bool:
    return header.lower().endswith("authorization")


def _secrets(spec: ServerSpec, learned: list[Secret]) -> Iterator[str]:
    """The values of `headers` or `env`, and all that references gave, except paths in a command."""
    if isinstance(spec, HttpServer):
        values = [*spec.headers.values(), *learned]
        yield from spec.url.filled
        for value in values:
            yield from _credentials_in(value.reveal())
    else:
        values = list(spec.env.values())
        yield from (text for word in spec.command for text in word.filled if not text.startswith("/"))
    for value in values:
        for text in (value.reveal(), *value.filled):
            yield text
            yield from map(str.strip, text.splitlines())  # a key of several lines is written line by line
