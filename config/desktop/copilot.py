"""Copilot CLI: `mcp-config.json` of the user, and `.github/mcp.json` of a project.

Its other settings stand in `settings.json` of the user and of the repository, and in a file of the administrator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from config.desktop.desktop_host import DesktopHost, FileContext, HostFile, at, detect_hooks, has_server, in_repository
from config.desktop.entry import (
    LAUNCH,
    CannotUse,
    ServerEntry,
    call_timeout,
    cannot,
    denied_tools,
    harmless,
    kind,
    listed_tools,
    names,
    off_if,
    same,
    truth,
)
from config.desktop.server_lists import ALLOWED, allows_plugins_only, apply_lists
from config.desktop.variables import dollar_variables
from config.document import Plain

_USER = HostFile("~/.copilot/mcp-config.json", variable="COPILOT_HOME", below="mcp-config.json")
_PROJECT = HostFile(".github/mcp.json", is_project=True)
_HOOKS = ("preToolUse", "PreToolUse", "permissionRequest", "PermissionRequest")
"""Hooks that may deny a call."""
_MANIFESTS = ("", ".plugin", ".github/plugin", ".claude-plugin")
"""The folders of a plugin in which its manifest may be."""
_CALL_RULES = frozenset({"deny", "ask", "allow", "limitTo"})
_NO_OAUTH = "needs OAuth in a way that is unsupported; use a file of Colonnade's own, with oauth"


def _oauth(entry: ServerEntry, key: str, value: object) -> None:
    """The client of a login, which stands in several keys. A secret would be in the keyring of its host."""
    if key == "oauthPublicClient" and not truth(key, value):
        raise CannotUse(f'its key "{key}" {_NO_OAUTH}')
    if key == "oauthGrantType" and value != "authorization_code":
        raise CannotUse(f'its key "{key}" {_NO_OAUTH}')
    ours = {"oauthClientId": "client_id", "oauthScopes": "scopes"}
    client = {name: entry.values[theirs] for theirs, name in ours.items() if theirs in entry.values}
    if client:
        entry.set("oauth", client, key)


def _restrict(context: FileContext, entries: Mapping[str, ServerEntry]) -> None:
    """The settings of the user, the repository and the administrator, and the hooks of all of them."""
    managed = context.system_wide(
        "etc/github-copilot/managed-settings.json", "Library/Application Support/GitHubCopilot/managed-settings.json"
    )
    settings = [*_settings(context), managed]
    detect_hooks("Copilot CLI", _HOOKS, (*settings, *_with_hooks(context)), entries.values())
    are_managed = {"sandbox", "policyHelper"} & managed.keys() or _CALL_RULES & at(managed, "permissions").keys()
    off = {name for root in settings for name in names("disabledMcpServers", root.get("disabledMcpServers", []))}
    needs_approval = context.project is not None and not _is_trusted(context, context.project)
    for name, entry in entries.items():
        entry.needs_approval = needs_approval
        if name in off or allows_plugins_only(managed):
            entry.switch_off()
        if managed.get("allowManagedMcpServersOnly") == "true" and ALLOWED not in managed:
            entry.switch_off()
        if are_managed:
            entry.detect("the settings of the administrator for calls")
        apply_lists(entry, name, managed)
        _fill_names(entry, context.environ)


def _settings(context: FileContext) -> Iterator[dict[str, object]]:
    yield context.sibling(context.users(_USER).with_name("settings.json"))
    if context.project is None:
        yield context.sibling(context.file.with_name("settings.json"))
    else:
        for folder in in_repository(context.project) or [context.project]:
            for name in ("settings.json", "settings.local.json"):
                yield context.sibling(folder / ".github" / "copilot" / name)
                yield context.sibling(folder / ".claude" / name, ("hooks",))


def _with_hooks(context: FileContext) -> Iterator[dict[str, object]]:
    """The files of hooks alone: of the user, the administrator, plugins, and the repository."""
    home = context.users(_USER).parent
    folders = [home / "hooks", context.system_path("etc/github-copilot/policy.d", "etc/github-copilot/policy.d")]
    if context.project is not None:
        folders += [each / ".github" / "hooks" for each in in_repository(context.project) or [context.project]]
    for folder in folders:
        yield from map(context.sibling, context.within(folder, "**/*.json"))
    for market in context.within(home / "installed-plugins", "*"):
        for plugin in context.within(market, "*"):
            for place in _MANIFESTS:
                manifest = context.sibling(plugin / place / "plugin.json", ("hooks",))
                yield manifest
                named = manifest.get("hooks")
                for path in ["hooks.json", "hooks/hooks.json", *(named if isinstance(named, list) else [named])]:
                    if isinstance(path, str):
                        yield context.sibling(plugin / path, ("hooks",))


def _fill_names(entry: ServerEntry, environ: Mapping[str, str]) -> None:
    """In `env`, the name of a variable that is set stands for its value, without a `$`."""
    ours = at(entry.ours, "env")
    for name, text in at(entry.values, "env").items():
        if isinstance(text, str) and text in environ:
            ours[name] = f"${{env:{text}}}"


def _is_trusted(context: FileContext, project: Path) -> bool:
    """Whether the user trusts the folder of the project, or one above it."""
    state = context.sibling(context.users(_USER).with_name("config.json"), ("trustedFolders",), ("trusted_folders",))
    trusted = [folder for key in ("trustedFolders", "trusted_folders") for folder in names(key, state.get(key) or [])]
    return any(project.is_relative_to(folder) for folder in trusted)


COPILOT = DesktopHost(
    name="copilot",
    title="Copilot CLI",
    files=(_USER, _PROJECT),
    servers=("mcpServers",),
    rules={
        "type": kind(remote=("http", "sse"), local=("local", "stdio")),
        **LAUNCH,
        "cwd": same,
        "tools": listed_tools,
        "excludeTools": denied_tools,
        "disabled": off_if("true"),
        "timeout": call_timeout(0.001),
        **dict.fromkeys(("oauthClientId", "oauthScopes", "oauthPublicClient", "oauthGrantType"), _oauth),
        **dict.fromkeys(("auth", "oidc"), cannot(_NO_OAUTH, but=Plain("false"))),
        "filterMapping": cannot("filters what its tools answer, which is not possible here"),
        **dict.fromkeys(("displayName", "safeForTelemetry", "isDefaultServer", "slowConnectionThresholdMs"), harmless),
        **dict.fromkeys(("deferTools", "disableToolCache", "disableSecretMasking", "headersRefreshTtlMs"), harmless),
        **dict.fromkeys(("events", "notifications"), harmless),
    },
    translate=dollar_variables(),
    restrict=_restrict,
    has_marks=lambda root: has_server(root, "mcpServers", lambda each: each.get("type") == "local"),
)
