"""Processes of one fleet for tests: the key `fleet` of their files, and haproxy in front of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.kit.balancer import balancing
from tests.kit.certificates import Authority
from tests.kit.ports import free_port
from tests.kit.postgres import KEY
from tests.real.running import Running, serving


def fleet_keys(folder: Path, store: str, count: int) -> list[dict[str, Any]]:
    """The key `fleet` of each of these processes, with certificates in the folder and one database."""
    authority = Authority(folder / "authority")
    cert, key = authority.sign("member", "acme.internal")
    common = {"cert": f"{cert}", "key": f"{key}", "ca": f"{authority.ca}"}
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(count)]
    inner = [{"listen": each, "address": each, **common} for each in addresses]
    return [{"name": "acme", "store": store, "keys": [KEY.reveal()], "inner": each} for each in inner]


@contextmanager
def serving_replicas(folder: Path, files: Sequence[Path], *ready: str) -> Iterator[tuple[list[Running], str]]:
    """The processes of these files for the block, once their servers are ready, and the base of the URL at which
    haproxy serves them. Those that are left at the end must stop in order."""
    with ExitStack() as stack:
        starting = [serving(file, *ready, stop=False) for file in files]
        with ThreadPoolExecutor(len(files)) as threads:  # each takes some seconds
            replicas = list(threads.map(lambda each: each.__enter__(), starting))
        for each in starting:
            stack.push(each.__exit__)
        base = stack.enter_context(balancing(folder, [httpx.URL(each.url).port or 0 for each in replicas]))
        yield replicas, base
        left = [each for each in replicas if each.process.poll() is None]
        with ThreadPoolExecutor(len(files)) as threads:
            list(threads.map(Running.stop, left))
