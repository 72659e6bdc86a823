"""Warnings about a server for the person who runs it, whatever its state."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

from config import HttpServer, Isolation, StdioServer, Unconfined
from config.known_servers import advise
from host.journal import runs_unconfined
from host.sandbox.paths import is_below_any


def warnings_of(
    spec: StdioServer | HttpServer,
    info: Iterable[tuple[str, str]] = (),
    reason: str = "",
    source: Path | None = None,
) -> list[str]:
    """Sentences for that person; none for most servers. `info` are the texts of its `serverInfo`, `reason` is why
    it does not start, and `source` the file of the configuration."""
    warnings: list[str] = []
    if isinstance(spec, StdioServer) and spec.sandbox is not None and source is not None:
        file = os.path.realpath(source)
        if is_below_any(file, map(os.path.realpath, spec.sandbox.files.write)):
            warnings.append(
                "its program may write this configuration, by files.write of its sandbox, and so take its sandbox away "
                "for the next start of the host: name folders beside it"
            )
    if spec.unconfined is Unconfined.OPEN:
        warnings.append(runs_unconfined(spec.id))
    if isinstance(spec, StdioServer) and spec.sandbox is not None and spec.runtime and not spec.sandbox.names_one_image:
        warnings.append(
            f"its image is named without a digest, so another one of that name would be started without a question; "
            f"write the digest: {spec.runtime} image inspect {spec.sandbox.image} shows it"
        )
    if isinstance(spec, StdioServer) and spec.may_use_both_eras:
        warnings.append(
            "with eras: both its program may run twice at once: both processes use the same files, locks and ports, "
            "and each keeps its own memory"
        )
        if spec.isolation is Isolation.SHARED:
            warnings.append(
                "with eras: both and isolation: shared its requests to clients reach a client only while it works on "
                "one call; with isolation: per-client each client has a process of its own"
            )
    if isinstance(spec, HttpServer) and spec.oauth is not None:
        warnings += spec.oauth.warnings
    limits = {key: each for key, each in dataclasses.asdict(spec.limits).items() if each is not None}
    section: dict[str, object] = {"limits": limits}
    if isinstance(spec, StdioServer):
        section["command"] = [word.reveal() for word in spec.command]
    else:
        section["url"] = str(spec.url)
    return [*warnings, *map(str, advise(section, info=dict(info), reason=reason))]
