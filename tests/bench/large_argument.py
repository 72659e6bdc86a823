"""The load generator of fixed/load.py, whose calls have one more argument: `more`, of so many bytes.

    large_argument.py BYTES URL ERA CONNECTIONS [OPTION VALUE]...

The server does not look at the argument, so its answer is a small one.
"""

from __future__ import annotations

import sys
from typing import Any

import trio

from tests.bench.fixed import load


def main() -> None:
    more = "y" * int(sys.argv.pop(1))

    class Client(load.Client):
        async def post(self, message: Any, headers: dict[str, str], to_its_end: bool = True) -> load.Response:
            if message["method"] == "tools/call":
                message["params"]["arguments"]["more"] = more
            return await super().post(message, headers, to_its_end)

    load.Client = Client  # type: ignore[misc]  # the clients that its `main` makes
    trio.run(load.main)


if __name__ == "__main__":
    main()
