"""Lists of servers that a host permits or refuses by their names. Items for commands and URLs are only detected."""

from __future__ import annotations

from collections.abc import Mapping

from config.desktop.entry import ServerEntry

PLUGINS_ONLY = "strictPluginOnlyCustomization"
DENIED, ALLOWED = "deniedMcpServers", "allowedMcpServers"


def allows_plugins_only(settings: Mapping[str, object]) -> bool:
    """Whether settings permit no servers but those of plugins."""
    value = settings.get(PLUGINS_ONLY)
    return value == "true" or (isinstance(value, list) and "mcp" in value)


def apply_lists(
    entry: ServerEntry, name: str, settings: Mapping[str, object], denied: str = DENIED, allowed: str = ALLOWED
) -> None:
    """Switch the server off if the list `denied` has its name, or the list `allowed` has names alone and not its."""
    for key, permits in ((denied, False), (allowed, True)):
        if key not in settings:
            continue
        items = settings[key]
        listed = items if isinstance(items, list) else [None]
        has_name, has_names_alone = {"serverName": name} in listed, all(map(_is_name, listed))
        if not has_names_alone:
            entry.detect(f"a list of servers of its host ({key})")
        if has_name is not permits and (has_name or has_names_alone):
            entry.switch_off()


def _is_name(item: object) -> bool:
    return isinstance(item, dict) and item.keys() == {"serverName"} and isinstance(item["serverName"], str)
