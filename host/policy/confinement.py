"""Untrusted programs without the key `sandbox`: whether they are confined.

They are, by their trust. A program that was approved before that was so runs as before until a person chooses: the
database knows which ones were (`StoredDefinitions.unconfined`). Its launch must still be the approved one; with another
command it is a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from config import Config, ServerSpec, StdioServer, Unconfined
from config.sandbox import Sandbox
from host.policy.fingerprint import unconfined_launch
from host.policy.pins import Pins

STRICT = Sandbox()
NO_FOLDER = (
    "it is not trusted, so its program is confined, and a confined one cannot work in folders of clients: write "
    "another cwd, or sandbox: off"
)
"""The problem of a server that runs in folders of clients."""


def settled(config: Config, pins: Pins) -> Config:
    """The configuration with the sandbox of each server as it is started. Settling it again, after a choice, takes that
    over."""
    return replace(config, servers=settled_servers(config.servers, pins))


def settled_servers(servers: Mapping[str, ServerSpec], pins: Pins) -> Mapping[str, ServerSpec]:
    """`settled` for the servers alone."""
    return MappingProxyType({id: _settled(spec, pins) for id, spec in servers.items()})


def _settled(spec: ServerSpec, pins: Pins) -> ServerSpec:
    if not (isinstance(spec, StdioServer) and spec.confined_by_trust):
        return spec
    is_kept = pins.is_kept_unconfined(spec.id, unconfined_launch(spec))
    why = None if is_kept is None else Unconfined.CHOSEN if is_kept else Unconfined.OPEN
    if why is not None:
        return replace(spec, sandbox=None, unconfined=why)
    problem = spec.problem or (NO_FOLDER if spec.takes_client_folder else "")
    return replace(spec, sandbox=STRICT, unconfined=None, problem=problem)
