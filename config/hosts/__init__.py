"""The files of desktop hosts: one module for each host, and the way to find out whose a file is."""

import os
from collections.abc import Mapping
from pathlib import Path

from config.hosts.amp import AMP
from config.hosts.claude_code import CLAUDE_CODE
from config.hosts.claude_desktop import CLAUDE_DESKTOP
from config.hosts.cline import CLINE
from config.hosts.codex import CODEX
from config.hosts.continue_dev import CONTINUE
from config.hosts.cursor import CURSOR
from config.hosts.desktop_file import OWN_TOP_KEYS
from config.hosts.desktop_host import DesktopHost
from config.hosts.gemini import GEMINI
from config.hosts.generic import GENERIC
from config.hosts.goose import GOOSE
from config.hosts.lm_studio import LM_STUDIO
from config.hosts.opencode import OPENCODE
from config.hosts.roo import ROO
from config.hosts.vscode import VSCODE
from config.hosts.windsurf import WINDSURF
from config.hosts.zed import ZED

HOSTS: tuple[DesktopHost, ...] = (
    CLAUDE_DESKTOP,
    CLAUDE_CODE,
    CURSOR,
    VSCODE,
    WINDSURF,
    CLINE,
    ROO,
    GEMINI,
    LM_STUDIO,
    CODEX,
    ZED,
    CONTINUE,
    OPENCODE,
    AMP,
    GOOSE,
)
"""All hosts, in the order in which a file is compared with their shapes."""


def recognize(path: Path, root: Mapping[str, object]) -> DesktopHost | None:
    """The host whose file this is, by its place or else by its shape; None for a file in our form."""
    for host in HOSTS:
        if any(file.matches(path) for file in host.files):
            return host
    if GENERIC.has_shape(root) and not OWN_TOP_KEYS.isdisjoint(root):
        return GENERIC  # a host would not know those keys, and leave the endpoint without tokens, for instance
    for host in (*HOSTS, GENERIC):
        if host.has_shape(root):
            return host
    return None


def place_of(path: Path) -> Path:
    """The path by which a file is read: its own, or that behind its links where only that is at the place of a host."""
    real = Path(os.path.realpath(path))
    return real if not _is_at_a_host(path) and _is_at_a_host(real) else path


def _is_at_a_host(path: Path) -> bool:
    return any(file.matches(path) for host in HOSTS for file in host.files)


__all__ = ["GENERIC", "HOSTS", "DesktopHost", "place_of", "recognize"]
