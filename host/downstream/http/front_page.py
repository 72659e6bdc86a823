"""The page at `/`, for a person who opens the endpoint's address in a browser: what this is, and how to use it.

Every user of the machine can fetch it, and with access tokens every program that reaches the address. It therefore
contains nothing but what the configuration of a client contains, and no link that opens the console.
"""

from __future__ import annotations

import hashlib
import json
import re
from base64 import b64encode
from html import escape

from config import Listen, is_loopback

_STYLE = """
:root { color-scheme: light dark; --page: #f6f4ef; --ink: #22201c; --soft: #666055; --line: #e0dacd; --link: #1c5a63; }
@media (prefers-color-scheme: dark) {
  :root { --page: #141517; --ink: #ebe8e1; --soft: #a8a297; --line: #313438; --link: #86c9d2; }
}
body { margin: 12vh auto; max-width: 36rem; padding: 0 1.25rem; background: var(--page); color: var(--ink);
  font: 1rem/1.55 -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", system-ui, sans-serif;
  overflow-wrap: anywhere; }
h1 { font: 600 1.75rem/1.2 "Iowan Old Style", Palatino, "Noto Serif", "Liberation Serif", Georgia, serif; }
h2 { font-size: 1rem; margin: 2rem 0 .4rem; }
p { margin: .4rem 0; }
pre { margin: .4rem 0; padding: .8rem 1rem; border: 1px solid var(--line); border-radius: 6px; white-space: pre-wrap; }
pre, code { font: .875rem/1.5 ui-monospace, Menlo, Consolas, "Liberation Mono", monospace; }
.soft { color: var(--soft); font-size: .875rem; }
a { color: var(--link); }
"""
_STYLE_HASH = b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_PORT = re.compile(r":[0-9]+$")
HEADERS = {
    "content-type": "text/html; charset=utf-8",
    "cache-control": "no-store",
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def front_page(listen: Listen, host: str, *, console: str | None) -> bytes:
    """The page.

    Args:
        host: the `Host` header of the request, which was checked.
        console: the path of the console if it is served at this address; empty if it has another address; None if there
            is no console.
    """
    is_here = _is_here(host)  # a proxy in front may speak TLS, so that only for such an address the whole URL is known
    url = f"{listen.scheme}://{host}{listen.path}" if is_here else listen.path
    where = f"<code>{escape(url)}</code>{'' if is_here else ' at this address'}"
    older = " Older clients use <code>/sse</code> (HTTP+SSE)." if listen.sse else ""
    access = (
        "Each request needs one of the access tokens of the configuration (<code>listen.auth.tokens</code>)."
        if listen.auth is not None
        else "It needs no access token."
    )
    server = {"url": url} | ({"headers": {"Authorization": "Bearer <token>"}} if listen.auth is not None else {})
    example = escape(json.dumps({"mcpServers": {"colonnade": server}}, indent=2)) if is_here else ""
    sections = [
        "<h1>Colonnade</h1>",
        "<p>This is a gateway for MCP servers. It is made for MCP clients, not for browsers.</p>",
        f"<h2>The endpoint</h2><p>{where} (Streamable HTTP).{older}</p><p>{access}</p>",
        f"<p>Many clients read it in this form:</p><pre>{example}</pre>" if example else "",
    ]
    if console is not None:
        name = f'<a href="{escape(console)}">the console</a>' if console else "the console"
        sections.append(
            f"<h2>The console</h2><p>On {name}, people confirm calls, approve definitions and see how the servers are. "
            "This command prints a link that opens it once, on the machine where Colonnade runs:</p>"
            "<pre>colonnade console</pre>"
        )
    sections.append('<p class="soft">In a terminal, <code>colonnade list</code> shows the servers and their tools.</p>')
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="robots" content="noindex">\n'
        f"<title>Colonnade</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{chr(10).join(filter(None, sections))}\n"
        "</body>\n</html>\n"
    ).encode()


def _is_here(host: str) -> bool:
    """Whether a `Host` header names a loopback address."""
    name = _PORT.sub("", host).strip("[]").lower()
    try:
        return name == "localhost" or is_loopback(name)
    except ValueError:
        return False
