"""The server of fixed/upstream.py over stdio, whose list of tools changes with each call.

    changing.py ERA stdio TOOLS

It notifies its client of the change before it answers the call.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.bench.fixed import upstream

CHANGED = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n'
LAST = {"name": "last", "inputSchema": {"type": "object"}}


def main() -> None:
    plain = upstream.result_of
    upstream.CAPABILITIES["tools"]["listChanged"] = True

    def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        if method == "tools/call":
            if LAST in upstream.TOOLS:
                upstream.TOOLS.remove(LAST)
            else:
                upstream.TOOLS.append(LAST)
            sys.stdout.buffer.write(CHANGED)
        return plain(method, params)

    upstream.result_of = result_of  # where `answer` finds it
    upstream.serve_stdio()


if __name__ == "__main__":
    main()
