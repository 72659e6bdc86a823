"""All desktop hosts whose files are read, and the way to find out whose a file is."""

from collections.abc import Mapping
from pathlib import Path

from config.defaults import has_defaults
from config.desktop.amp import AMP
from config.desktop.claude_code import CLAUDE_CODE
from config.desktop.claude_desktop import CLAUDE_DESKTOP
from config.desktop.cline import CLINE
from config.desktop.codex import CODEX
from config.desktop.continue_dev import CONTINUE
from config.desktop.copilot import COPILOT
from config.desktop.cursor import CURSOR
from config.desktop.desktop_file import OWN_TOP_KEYS
from config.desktop.desktop_host import DesktopHost
from config.desktop.gemini import GEMINI
from config.desktop.generic import FORMS, GENERIC, MCPPROXY
from config.desktop.goose import GOOSE
from config.desktop.lm_studio import LM_STUDIO
from config.desktop.opencode import OPENCODE
from config.desktop.qwen import QWEN
from config.desktop.roo import ROO
from config.desktop.vscode import VSCODE
from config.desktop.windsurf import WINDSURF
from config.desktop.zed import ZED
from config.own_form import has_own_servers

HOSTS: tuple[DesktopHost, ...] = (
    CLAUDE_DESKTOP,
    CLAUDE_CODE,
    CURSOR,
    VSCODE,
    WINDSURF,
    CLINE,
    ROO,
    QWEN,
    GEMINI,
    COPILOT,
    LM_STUDIO,
    CODEX,
    ZED,
    CONTINUE,
    OPENCODE,
    AMP,
    GOOSE,
)
"""All hosts, in the order in which a file is compared with their shapes."""


_SYNTAXES = {".toml": "TOML", ".yaml": "YAML", ".yml": "YAML"}


def recognize(path: Path, root: Mapping[str, object]) -> DesktopHost | None:
    """The host whose file this is, by its place or else by its form as a whole; None for a file in our form."""
    for host in HOSTS:
        if any(file.matches(path) for file in host.files):
            return host
    syntax = _SYNTAXES.get(path.suffix, "JSON")
    if has_own_servers(root):
        return VSCODE if VSCODE.syntax == syntax and VSCODE.fits(root) else None
    has_own_keys = has_defaults(root) or not OWN_TOP_KEYS.isdisjoint(root)
    if GENERIC.has_shape(root) and has_own_keys and not MCPPROXY.has_shape(root):
        return GENERIC  # a host would not know those keys, and leave the endpoint without tokens, for instance
    for host in HOSTS:
        if host.syntax == syntax and host.fits(root):
            return host
    return next((form for form in FORMS if form.has_shape(root)), None)


def is_at_a_host(path: Path) -> bool:
    """Whether a path is at the place of a file of a host."""
    return any(file.matches(path) for host in HOSTS for file in host.files)
