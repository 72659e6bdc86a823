"""Files of which one has a server that serves another, or the same file again."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from config.desktop.cursor import CURSOR
from host.wire.descent import running_hosts

from .running import COLONNADE, recorder, serving, until, write_config


def serves(file: Path, state: Path) -> dict[str, Any]:
    """The entry of a desktop host that starts Colonnade with a file, here by a shell."""
    words = [COLONNADE, "serve", "--stdio", "--own", str(file), "--state", str(state)]
    return {"command": "sh", "args": ["-c", f"{shlex.join(words)}; exit $?"]}


def test_a_chain_of_files_runs_and_a_loop_ends_where_it_closes(tmp_path: Path) -> None:
    """The server that closes the loop fails with a reason; all others run."""
    above = CURSOR.files[0].path(tmp_path, tmp_path, {})
    above.parent.mkdir()
    state = above.parent / "state"
    below = tmp_path / "colonnade.yaml"
    config = {"notes": recorder(tmp_path / "notes.log"), "back": serves(above, state)}
    write_config(tmp_path, config)
    entries = {"colonnade": serves(below, state), "myself": serves(above, state)}
    above.write_text(json.dumps({"mcpServers": entries}))
    with serving(above, "colonnade", options=["--port", "0"]) as host:
        until(lambda: host.state_lines("myself", "failed"), "the loop is found")
        status = host.status()
        assert "serves mcp.json again" in status["myself"]["detail"], status
        assert status["colonnade"]["state"] == "ready"
        assert {Path(each.config) for each in running_hosts(state / "hosts")} == {above, below}
        assert len(running_hosts(state / "hosts")) == 2
