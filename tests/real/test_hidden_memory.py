"""What a server can read of the processes around it, as a user that is not root: nothing that holds a secret."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.real.running import ADDRESS, BARE_PYTHON, ROOT, SERVERS, recorder, until

NOBODY = 65534
COUNT = 4
SALT = os.urandom(8).hex()
SECRETS = [hashlib.sha256(f"{SALT}-{at}".encode()).hexdigest() for at in range(COUNT)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of the user that the host runs as; pytest's own belongs to root alone."""
    path = Path(tempfile.mkdtemp(prefix="colonnade-memory-"))
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    yield path
    shutil.rmtree(path)


def seen_by_a_server(folder: Path, **environment: str) -> dict[str, Any]:
    """Run a host whose environment, configuration and another server's order hold a secret each, with a server that
    looks for them; what that one found.

    The host is started as its console script does it, which pip makes executable for its owner only.
    """
    out = folder / "found.json"
    other = {**recorder(folder / "log"), "env": {"TOKEN": SECRETS[1], "PASSED": "${env:PLANTED}"}}
    spy = {
        "command": [*BARE_PYTHON, str(SERVERS / "spy.py"), str(out), SALT, str(COUNT)],
        "env": {"KEY": SECRETS[3]},  # in its own subreaper's memory, and its own anyway
    }
    listen = {"address": "127.0.0.1:0", "auth": {"tokens": {"laptop": SECRETS[2]}}}
    file = folder / "colonnade.yaml"
    file.write_text(json.dumps({"listen": listen, "servers": {"other": other, "spy": spy}}))
    # The interpreter may lie in root's home. This capability opens it there, and no other process.
    caps = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    as_nobody = ["setpriv", *user, *caps] if os.geteuid() == 0 else []
    with (folder / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [*as_nobody, sys.executable, "-c", "from host.__main__ import main; main()", "serve", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PLANTED": SECRETS[0], "COLONNADE_STATE": str(folder / "state"), **environment},
        )
    with process:
        assert process.stdout is not None
        try:
            address = ADDRESS.search(process.stdout.readline())
            assert address, (folder / "stderr").read_text()
            until(lambda: out.exists() or process.poll() is not None, "the server has looked everywhere")
            assert out.exists(), (folder / "stderr").read_text()
            found: dict[str, Any] = json.loads(out.read_text())
            request = urllib.request.Request(address[0].rpartition("/")[0] + "/status")
            request.add_header("Authorization", f"Bearer {SECRETS[2]}")
            with urllib.request.urlopen(request, timeout=20) as answer:
                found["usage"] = json.load(answer)["process"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
            return found
        finally:
            process.kill()


def test_a_server_reads_no_secret_of_its_host_its_keeper_or_its_subreaper(folder: Path) -> None:
    found = seen_by_a_server(folder)
    assert found.pop("uid") != 0
    usage = found.pop("usage")  # the host itself can still read what it uses
    assert usage["max_descriptors"] > usage["descriptors"] > 3
    assert usage["memory_peak"] >= usage["memory"] > 2**20
    hidden = {"environ": "EACCES", "cmdline": [], "mem": "EACCES", "fd": "EACCES", "ptrace": "EPERM"}
    assert found == {"host": hidden, "keeper": hidden, "subreaper": hidden}


def test_a_host_that_is_to_be_debugged_can_be_read(folder: Path) -> None:
    """Which shows as well that the server finds what there is to find."""
    found = seen_by_a_server(folder, COLONNADE_DEBUGGABLE="1")
    assert found["host"]["environ"] == [0]
    assert {0, 1, 2} <= set(found["host"]["mem"])
    assert found["keeper"]["environ"] == found["subreaper"]["environ"] == "EACCES"
