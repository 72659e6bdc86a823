"""The text of a configuration as its file has it, for a person who compares two readings of the file.

References stay as they are written, so that no value of the environment is shown. Values that are usually secret are
replaced by `***`, also those that stand in the file itself; where two readings differ in such a value, that is said.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from config.references import HIDDEN, Secret

HOST_KEYS = ("ask", "audit", "history", "callers", "views", "default_view")
"""Keys beside `servers` whose changes may wait for a person. So may those of `listen.auth`."""

_SECRET_MAPS = frozenset({"env", "headers", "tokens"})
_DEFAULT = re.compile(r"(\$\{[^}:]*:[^}:]*:-)[^}]*")
_USER_INFO = re.compile(r"(//)[^/?#@]*@")
_WEBHOOK_PATH = re.compile(r"(//(?:[^/?#@]*@)?[^/?#]*/)(?!\$\{).+")
"""The path of many webhooks is the secret."""
_QUERY = re.compile(r"([?&][^=&#]*=)(?!\$\{)[^&#]*")
_SECRET_NAME = r"[\w-]*(?:token|secret|passw|api[-_]?key|credential)[\w-]*"
_SECRET_WORD = re.compile(rf"({_SECRET_NAME}(?:=|\s+))(?!\$\{{)\S+", re.IGNORECASE)
_SECRET_FLAG = re.compile(rf"--?{_SECRET_NAME}", re.IGNORECASE)


def written_sections(root: Mapping[str, object]) -> Mapping[str, Secret]:
    """By id, the section of each server as JSON text; under an empty id, the HOST_KEYS and
    `listen.auth`. `root` is a valid file."""
    servers = root["servers"]
    assert isinstance(servers, dict)
    listen = root.get("listen")
    auth = {"listen": {"auth": listen["auth"]}} if isinstance(listen, dict) and "auth" in listen else {}
    sections = {"": {**auth, **{key: root[key] for key in HOST_KEYS if key in root}}, **servers}
    return MappingProxyType({id: Secret(json.dumps(section)) for id, section in sections.items()})


def shown_change(before: Secret | None, after: Secret) -> tuple[bytes | None, bytes]:
    """Both texts of a section, as JSON that can be shown; None for a section that was not there before."""
    old = None if before is None else json.loads(before.reveal())
    new = json.loads(after.reveal())
    return (None if old is None else _dumped(_conceal("", old, None)), _dumped(_conceal("", new, old)))


def rules_digest(written: Mapping[str, Secret]) -> str:
    """A digest of these sections without their secrets, so that others may see it: equal where servers, rules and views
    are written equally, whatever else is in the file."""
    shown = {id: json.loads(shown_change(None, section)[1]) for id, section in written.items()}
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()


def shown_words(words: Sequence[str]) -> tuple[str, ...]:
    """The words of a command as they are written, without their secrets."""
    shown = _conceal("command", list(words), None)
    assert isinstance(shown, list)
    return tuple(shown)


def _dumped(value: object) -> bytes:
    return json.dumps(value).encode()


def _conceal(key: str, value: object, former: object) -> object:
    """The value without its secrets; `former` stood in its place before."""
    if isinstance(value, dict):
        were = former if isinstance(former, dict) else {}
        return {
            name: _conceal(key if key in _SECRET_MAPS else name, each, were.get(name)) for name, each in value.items()
        }
    if isinstance(value, list):
        were_items = former if isinstance(former, list) else []
        former_items = [*were_items, *[None] * len(value)]
        return [
            _concealed_text("env" if at and _is_secret_flag(value[at - 1]) else key, each, former_items[at])
            if isinstance(each, str)
            else _conceal(key, each, former_items[at])
            for at, each in enumerate(value)
        ]
    return _concealed_text(key, value, former) if isinstance(value, str) else value


def _is_secret_flag(word: object) -> bool:
    return isinstance(word, str) and _SECRET_FLAG.fullmatch(word) is not None


def _concealed_text(key: str, text: str, former: object) -> str:
    shown = _without_secrets(key, text)
    hides_a_change = isinstance(former, str) and former != text and _without_secrets(key, former) == shown
    return f"{shown} (changed)" if hides_a_change else shown


def _without_secrets(key: str, text: str) -> str:
    if key in _SECRET_MAPS and "${" not in text:
        return HIDDEN
    text = _DEFAULT.sub(rf"\g<1>{HIDDEN}", text)
    if key == "webhook":
        text = _WEBHOOK_PATH.sub(rf"\g<1>{HIDDEN}", text)
    if key == "url":
        text = _QUERY.sub(rf"\g<1>{HIDDEN}", _USER_INFO.sub(rf"\g<1>{HIDDEN}@", text))
    return _SECRET_WORD.sub(rf"\g<1>{HIDDEN}", text) if key in ("command", "args") else text
