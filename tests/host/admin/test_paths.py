"""The places of the admin API."""

from __future__ import annotations

import subprocess
import sys

from host.admin.paths import EVENTS_PATH, PREFIX


def test_an_incompatible_version_would_have_a_path_of_its_own() -> None:
    assert PREFIX == "/api/v1/"
    assert EVENTS_PATH.startswith(PREFIX)


def test_a_command_that_only_asks_a_host_loads_no_event_loop() -> None:
    """Completion in a shell has to answer before the person goes on typing."""
    program = "import sys, host.cli.admin_client, host.storage.directory; print('trio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
