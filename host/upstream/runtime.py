"""The parts that everything in one host shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from host.catalog import Catalog
from host.journal import Journal
from host.policy.gate import Gate
from host.upstream.log_levels import LogLevels


@final
@dataclass(frozen=True, slots=True)
class Runtime:
    """What servers offer, what may be reached of it, what people watch, and what callers want of the servers' logs."""

    catalog: Catalog
    gate: Gate
    journal: Journal
    log_levels: LogLevels = field(default_factory=LogLevels)
