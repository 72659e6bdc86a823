"""The messages of a client to a host that another one must hear when the first one has ended (relay.py).

Like that file, this one imports the standard library alone.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
CHANGED = {
    "tools/list": "notifications/tools/list_changed",
    "prompts/list": "notifications/prompts/list_changed",
    "resources/list": "notifications/resources/list_changed",
    "resources/templates/list": "notifications/resources/list_changed",
}
"""The notification of each list."""
LISTEN = "subscriptions/listen"
NOTED = (*CHANGED, "initialize", "logging/setLevel", "resources/subscribe", "resources/unsubscribe", LISTEN)
"""The methods of requests that are kept: of others, such as calls with megabytes of arguments, only that they wait."""


class Opening:
    """The messages of a client that another host must hear before it can go on as if nothing had happened.

    It is made of the client's own messages. Nothing in it has an effect when it is said twice.

    Attributes:
        initialize: the client's `initialize`; None before.
        result: what it was answered; None before.
    """

    def __init__(self) -> None:
        self.initialize: dict[str, Any] | None = None
        self.result: dict[str, Any] | None = None
        self._initialized: dict[str, Any] | None = None
        self._level: dict[str, Any] | None = None
        self._subscriptions: dict[str, dict[str, Any]] = {}
        self._listens: dict[str, dict[str, Any]] = {}
        self._lists: dict[str, tuple[dict[str, Any], int]] = {}

    def on_answered(self, message: dict[str, Any], result: bytes) -> None:
        """Note a request that was answered with a result, given as JSON text."""
        method, params = message["method"], message.get("params")
        uri = str(params.get("uri")) if isinstance(params, dict) else ""
        if method == "initialize" and self.result is None:
            self.initialize, self.result = message, json.loads(result)
        elif method == "logging/setLevel":
            self._level = message
        elif method == "resources/subscribe":
            self._subscriptions[uri] = message
        elif method == "resources/unsubscribe":
            self._subscriptions.pop(uri, None)
        elif method in CHANGED and not (isinstance(params, dict) and "cursor" in params):
            self._lists[method] = message, hash(result)

    def on_notification(self, message: dict[str, Any]) -> None:
        if message["method"] == "notifications/initialized":
            self._initialized = message

    def take_initialized(self) -> list[dict[str, Any]]:
        """The client's `notifications/initialized`, if there was one, which is forgotten."""
        said, self._initialized = self._initialized, None
        return [] if said is None else [said]

    def on_listening(self, id: str, message: dict[str, Any] | None) -> None:
        """Note that a `subscriptions/listen` was sent, or with None that it has ended."""
        if message is None:
            self._listens.pop(id, None)
        else:
            self._listens[id] = message

    def replay(self) -> list[dict[str, Any]]:
        """The messages after `initialize`, in order. Requests are as the client has sent them: their answers are not
        for the client, but for those to `subscriptions/listen`."""
        is_told = self.initialize is not None or self._listens
        lists = [message for message, _ in self._lists.values()] if is_told else []
        said = [each for each in (self._initialized, self._level) if each is not None]
        return [*said, *self._subscriptions.values(), *self._listens.values(), *lists]

    def offers_less(self, result: dict[str, Any]) -> bool:
        """Whether another answer to `initialize` offers less than the client was told."""
        assert self.result is not None
        told, now = self.result.get("capabilities"), result.get("capabilities")
        return result.get("protocolVersion") != self.result.get("protocolVersion") or not _contains(now, told)

    def changes(self, method: str, result: bytes) -> list[dict[str, Any]]:
        """The notifications for a client whose list is another one now."""
        message, digest = self._lists[method]
        if digest == hash(result):
            return []
        self._lists[method] = message, hash(result)
        return self._notices(CHANGED[method])

    def updates(self) -> list[dict[str, Any]]:
        """A notification for each watched resource: it may have changed while nobody looked."""
        told: list[dict[str, Any]] = [{"uri": uri} for uri in self._subscriptions]
        for listen in self._listens.values():
            try:
                uris = list(listen["params"]["notifications"].get("resourceSubscriptions") or ())
            except (LookupError, TypeError, AttributeError):  # the host says what is wrong with it
                continue
            told += [{"_meta": {SUBSCRIPTION_ID: listen["id"]}, "uri": uri} for uri in uris]
        return [{"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": params} for params in told]

    def _notices(self, method: str) -> list[dict[str, Any]]:
        notice = {"jsonrpc": "2.0", "method": method}
        # A stateless client gets it for each subscription (2026-07-28, "Subscriptions").
        marks = [{"_meta": {SUBSCRIPTION_ID: each["id"]}} for each in self._listens.values()]
        if self._initialized is None:
            return [{**notice, "params": mark} for mark in marks]
        return [notice]


def _contains(now: object, told: object) -> bool:
    if isinstance(told, dict):
        return isinstance(now, dict) and all(name in now and _contains(now[name], told[name]) for name in told)
    return not told or bool(now)
