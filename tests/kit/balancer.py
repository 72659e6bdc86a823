"""haproxy in front of several processes, by the file of examples/deploy, but with a look at them each 200 ms: two
requests of one connection go to two of them. Where it is not installed, tests that need it are skipped."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.ports import answers_at, free_port
from tests.real.running import until

needs_haproxy = pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")

_EXAMPLE = Path(__file__).parents[2] / "examples" / "deploy" / "haproxy.cfg"
_SERVER = re.compile("^  server .*\n", re.MULTILINE)
_READY = re.compile("^  (?:option httpchk|http-check .*)\n", re.MULTILINE)


@contextmanager
def balancing(folder: Path, ports: Sequence[int], *, ready: bool = False) -> Iterator[str]:
    """haproxy for the block; the URL of what it serves. A process that does not answer is left out for a moment.

    Args:
        ready: a process whose `/readyz` says that it is not ready is left out too.
    """
    port = free_port()
    text = _SERVER.sub("", _EXAMPLE.read_text() if ready else _READY.sub("", _EXAMPLE.read_text()))
    text = text.replace(":8800\n", f":{port}\n").replace("inter 2s", "inter 200ms")
    lines = [f"  server r{n} 127.0.0.1:{each}\n" for n, each in enumerate(ports)]
    file = folder / "haproxy.cfg"
    file.write_text("".join(["global\n  nbthread 1\n", text, *lines]))
    with (folder / "haproxy.log").open("w") as log:
        process = subprocess.Popen(
            ["haproxy", "-db", "-f", str(file)], stdin=subprocess.DEVNULL, stderr=log, stdout=log
        )
    with process:
        try:
            until(lambda: answers_at(port), "haproxy listens")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
