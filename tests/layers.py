"""The layers of `host/`, and their picture in docs/architecture.md.

`python -m tests.layers > docs/pictures/layers.svg` draws the picture again.
"""

from __future__ import annotations

from html import escape

RANKS = [  # a file imports from its own rank and from lower ones
    (
        "host.errors",
        "host.version",
        "host.relay",
        "host.opening",
        "host.relay_start",
        "host.url",
        "host.client_process",
        "host.non_blocking",
        "host.seal",
        "host.worker",
        "host.watched_files",
        "host.slices",
        "host.subject",
        "host.storage",
        "host.systemd",
        "host.sanitize",
        "host.memory",
        "host.heap",
        "host.sandbox",
    ),
    ("host.jsonrpc",),
    ("host.protocol", "host.oauth", "host.source", "host.search"),
    ("host.wire", "host.peer"),
    (
        *("host.attempts", "host.journal", "host.names", "host.overrides", "host.exchange", "host.catalog"),
        *("host.audit", "host.history"),
    ),
    ("host.policy", "host.views", "host.addresses"),
    ("host.upstream",),
    ("host.router",),
    ("host.downstream", "host.admin", "host.notify", "host.fleet", "host.telemetry"),
    ("host.app", "host.live_config", "host.mcp_client", "host.trial"),
    ("host.cli",),
    ("host.__main__",),
]

PICTURE = "docs/pictures/layers.svg"

ROLES = {
    "host.__main__": "python -m host",
    "host.cli": "commands, options, exit codes",
    "host.app": "opens and nests all parts",
    "host.downstream": "clients and people",
    "host.router": "names, lists, the path of a request",
    "host.upstream": "connections to servers",
    "host.policy": "rules, definitions, grants, permits",
    "host.attempts": "what all parts above share",
    "host.wire": "bytes, processes, requests in flight",
    "host.protocol": "revisions of MCP, OAuth",
    "host.jsonrpc": "messages and ids",
    "host.errors": "tools without knowledge of MCP",
}
"""A few words for each layer, under its first module."""

_WIDTH, _ROW, _TOP = 900, 46, 20


def picture() -> str:
    """An SVG with one row for each layer, the highest at the top."""
    rows = [_row(at, names) for at, names in enumerate(reversed(RANKS))]
    height = _TOP + len(RANKS) * _ROW + 34
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif">\n'
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>\n'
        + "".join(rows)
        + f'<text x="20" y="{height - 14}" font-size="13" fill="#555555">'
        "Imports lead down or stay in a row. config/ stands apart: host/ imports it, and it imports nothing of host/."
        "</text>\n</svg>\n"
    )


def _row(at: int, names: tuple[str, ...]) -> str:
    y = _TOP + at * _ROW
    short = " · ".join(name.removeprefix("host.") for name in names)
    size = 15 if len(short) < 60 else 11
    return (
        f'<rect x="20" y="{y}" width="{_WIDTH - 40}" height="{_ROW - 8}" rx="6" fill="#eef3f8" stroke="#8aa4bd"/>\n'
        f'<text x="34" y="{y + 24}" font-size="{size}" fill="#10273c">{escape(short)}</text>\n'
        f'<text x="{_WIDTH - 34}" y="{y + 24}" font-size="13" fill="#3d5870" text-anchor="end">'
        f"{escape(ROLES[names[0]])}</text>\n"
    )


if __name__ == "__main__":
    print(picture(), end="")
