"""A file with `mcpServers` at a place that no host uses: the keys of all hosts that write such files."""

from __future__ import annotations

import re

from config.document import Plain
from config.hosts.desktop_host import DesktopHost, FileContext
from config.hosts.entry import (
    ServerEntry,
    approved_tools,
    approves_all,
    denied_tools,
    env_file,
    harmless,
    headers_helper,
    kind,
    oauth_client,
    off_if,
    only_tools,
    program,
    renamed,
    same,
)

TOP_KEY = "mcpServers"
_BARE = re.compile(r"(\$\$\{)|\$\{([A-Za-z_][A-Za-z0-9_]*)(:-[^}]*)?\}")


OWN_KEYS = (
    *("consent", "limits", "isolation", "max_instances", "idle_timeout"),
    *("start", "idle", "protocol", "eras", "client", "start_timeout"),
)
"""Keys of ours that may stand in a server's entry. In a host's own file, another could raise its own trust by them."""
_OAUTH_KEYS = (
    *("client_id", "client_secret", "private_key", "scopes"),
    *("client_metadata_url", "redirect_port", "grant"),
)


def bare_names(text: str, context: FileContext) -> str:
    """`${NAME}` and `${NAME:-default}` beside our own forms."""
    last = text.rfind("}") + 1  # behind it nothing closes, and looking for the end of each takes quadratic time
    return _BARE.sub(lambda match: match[1] or f"${{env:{match[2]}{match[3] or ''}}}", text[:last]) + text[last:]


def _trust(entry: ServerEntry, key: str, value: object) -> None:
    """Our own level of trust, or the switch of some hosts by which they ask nothing any more."""
    rule = approves_all if isinstance(value, Plain) and value in ("true", "false") else same
    rule(entry, key, value)


GENERIC = DesktopHost(
    name="generic",
    title=TOP_KEY,
    files=(),
    servers=(TOP_KEY,),
    rules={
        **dict.fromkeys(OWN_KEYS, same),
        "command": program,
        "args": same,
        "env": same,
        "cwd": same,
        "url": same,
        "serverUrl": renamed("url"),
        "httpUrl": renamed("url"),
        "headers": same,
        "headersHelper": headers_helper,
        "headers_helper": same,
        "envFile": env_file,
        "type": kind(),
        "transport": kind(),
        "disabled": off_if("true"),
        "enabled": off_if("false"),
        "trust": _trust,
        "includeTools": only_tools,
        "excludeTools": denied_tools,
        "disabledTools": denied_tools,
        "autoApprove": approved_tools,
        "alwaysAllow": approved_tools,
        "timeout": harmless,  # hosts count it in different units
        "description": harmless,
        "name": harmless,
        "title": harmless,
        "oauth": oauth_client(clientId="client_id", callbackPort="redirect_port", **{key: key for key in _OAUTH_KEYS}),
        "auth": oauth_client(CLIENT_ID="client_id", CLIENT_SECRET="client_secret", scopes="scopes"),
    },
    translate=bare_names,
    has_shape=lambda root: TOP_KEY in root,
    has_own_keys=True,
)
