"""A real host, and a server of it that has codes of its console: it opens no session, and a program outside does."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from host.audit.read import records
from tests.kit.servers.opener import own
from tests.real.running import BARE_PYTHON, SERVERS, serving, until, write_config
from tests.real.test_console_host import link

WAYS = ("own", "mapped", "child", "orphan", "hidden", "queued")


def test_a_server_with_a_link_opens_no_console(tmp_path: Path) -> None:
    state, origin, codes, out = (tmp_path / name for name in ("state", "origin", "codes", "out"))
    words = [*BARE_PYTHON, str(SERVERS / "opener.py"), str(origin), str(codes), str(out)]
    file = write_config(tmp_path, {"opener": {"command": words}})
    with serving(file, "opener"):
        links = [urlsplit(link(state)) for _ in WAYS]
        codes.write_text("\n".join(each.fragment for each in links))
        port = links[0].port
        assert port is not None
        (tmp_path / "origin.new").write_text(f"http://127.0.0.1:{port}")
        (tmp_path / "origin.new").rename(origin)
        until(out.exists, "every way was tried")
        said = json.loads(out.read_text())
        assert list(said) == list(WAYS)
        for way, (status, text) in said.items():
            is_found = way != "queued" and (way != "hidden" or os.geteuid() == 0)
            why = "processes that a Colonnade host started" if is_found else "cannot be determined"
            assert status == 403, (way, text)
            assert why in text, way
        assert [own(port, each.fragment)[0] for each in links] == [403] * len(links)  # they are used up
        assert own(port, urlsplit(link(state)).fragment)[0] == 200
        refused: list[Any] = [each["peer"] for each in records(state / "audit", kind="refused")]
        assert len(refused) == len(WAYS)
        assert all("python" in peer["exe"] for peer in refused if peer["pid"])
