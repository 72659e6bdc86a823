"""The packages of the confined servers of one configuration, and the door to their installation, whose modules are
imported for that alone."""

from __future__ import annotations

from config import ServerSpec, StdioServer
from host.journal import Journal
from host.policy.fingerprint import Launch, launch_of
from host.storage.directory import ConfigDirectory
from host.upstream.confinement import packages_of
from host.wire.process import Keeper


class Installations:
    """The packages of the confined servers of one configuration."""

    def __init__(self, directory: ConfigDirectory, keeper: Keeper, journal: Journal) -> None:
        self._directory = directory
        self._keeper = keeper
        self._journal = journal

    def launch(self, spec: ServerSpec) -> Launch:
        """The launch identity of a server, with what is installed for it."""
        if not isinstance(spec, StdioServer) or spec.sandbox is None or spec.runtime:
            return launch_of(spec)
        return launch_of(spec, packages_of(spec, self._directory))

    async def install(self, spec: StdioServer, *, again: bool = False) -> str:
        """Install the packages of a server; see `install_packages`. Returns the version and digest.

        Raises:
            NotInstalled: they could not be installed.
        """
        from host.upstream.installing import install_packages

        return str(await install_packages(spec, self._directory, self._keeper, self._journal, again=again))
