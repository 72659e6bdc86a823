"""The launches of confined servers with what is installed for them. Installations are in test_installing.py."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from config import HttpServer, StdioServer
from config.references import Secret
from config.sandbox import Sandbox
from host.journal import Journal
from host.sandbox.installed import Installed, record_bytes, record_path, wanted_text
from host.sandbox.packages import wanted_by
from host.storage.directory import open_state
from host.upstream.confinement import packages_of
from host.upstream.installations import Installations
from host.wire.process import open_keeper


async def test_launches(tmp_path: Path) -> None:
    directory = open_state(tmp_path / "state").for_config(tmp_path / "c.yaml")
    words = ("npx", "no-such-package")
    spec = StdioServer(id="a", command=tuple(map(Secret, words)), cwd=tmp_path, sandbox=Sandbox())
    async with open_keeper() as keeper:
        installations = Installations(directory, keeper, Journal())
        waits = installations.launch(spec)
        assert (waits.installs, waits.installed) == ("no-such-package from registry.npmjs.org by npm", "")
        wanted = wanted_by(words)
        assert wanted is not None
        record = Installed(wanted_text(replace(wanted, builds=False)), "p", words[1], "1.2", "", "sha256:1", "sha256:2")
        script = packages_of(spec, directory) / "p" / "npm" / "node_modules" / ".bin" / words[1]
        script.parent.mkdir(parents=True)
        script.touch(0o755)
        manifest = script.parent.parent / words[1] / "package.json"
        manifest.parent.mkdir()
        manifest.write_text('{"bin": "x.js"}')
        record_path(packages_of(spec, directory)).write_bytes(record_bytes(record))
        launch = installations.launch(spec)
        assert (launch.installs, launch.installed) == ("", "no-such-package 1.2 (sha256:1)")
        assert launch.declared == waits.declared
        assert str(tmp_path / "state") not in launch.sandbox, "where packages are is no part of it: it changes"
        free = StdioServer(id="a", command=spec.command, cwd=tmp_path)
        for other in (free, HttpServer(id="a", url=Secret("http://a.test/"))):
            launch = installations.launch(other)
            assert (launch.installs, launch.installed) == ("", "")
