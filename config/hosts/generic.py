"""A file with `mcpServers` at a place that no host uses: the keys of all hosts that write such files."""

from __future__ import annotations

import re

from config.hosts.desktop_host import DesktopHost, FileContext
from config.hosts.entry import (
    approved_tools,
    cannot,
    denied_tools,
    env_file,
    harmless,
    headers_helper,
    kind,
    off_if,
    only_tools,
    own_trust,
    program,
    renamed,
    same,
)

TOP_KEY = "mcpServers"
_BARE = re.compile(r"(\$\$\{)|\$\{([A-Za-z_][A-Za-z0-9_]*)(:-[^}]*)?\}")


def bare_names(text: str, context: FileContext) -> str:
    """`${NAME}` and `${NAME:-default}` beside our own forms."""
    return _BARE.sub(lambda match: match[1] or f"${{env:{match[2]}{match[3] or ''}}}", text)


GENERIC = DesktopHost(
    name="generic",
    title=TOP_KEY,
    files=(),
    servers=(TOP_KEY,),
    rules={
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
        "trust": own_trust,
        "includeTools": only_tools,
        "excludeTools": denied_tools,
        "disabledTools": denied_tools,
        "autoApprove": approved_tools,
        "alwaysAllow": approved_tools,
        "timeout": harmless,  # hosts count it in different units
        "description": harmless,
        "name": harmless,
        "title": harmless,
        "oauth": cannot("needs OAuth, which is not supported yet; put a token into headers"),
    },
    translate=bare_names,
    has_shape=lambda root: TOP_KEY in root,
    has_own_keys=True,
)
