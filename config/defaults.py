"""The keys under `defaults`, put into each server that lacks them before anything else reads the servers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from config.model import ENTRY_RULES, Consent, Defaults, KindConsent, ServerSpec, Trust, Verdict

DEFAULT_KEYS = tuple(key.name for key in dataclasses.fields(Defaults))


def with_defaults(root: dict[str, Any]) -> tuple[dict[str, Any], Mapping[str, frozenset[str]]]:
    """The values of a file in our form with the defaults in its servers, and by server the keys that are defaults. A
    key of a server replaces that of the defaults as a whole. What has another shape is left for the model to refuse."""
    defaults, servers = root.get("defaults"), root.get("servers")
    if not isinstance(defaults, dict) or not isinstance(servers, dict):
        return root, {}
    known = {key: defaults[key] for key in DEFAULT_KEYS if key in defaults}
    sections = {id: section for id, section in servers.items() if isinstance(section, dict)}
    usable = {  # nothing is started for a URL
        id: {key: value for key, value in known.items() if key != "sandbox" or "url" not in section}
        for id, section in sections.items()
    }
    merged = {**servers, **{id: {**usable[id], **section} for id, section in sections.items()}}
    defaulted = {id: frozenset(usable[id].keys() - section) for id, section in sections.items()}
    return {**root, "servers": merged}, defaulted


def replacements(spec: ServerSpec, defaults: Defaults, root: Mapping[str, Any]) -> tuple[str, ...]:
    """Sentences on what a server lets pass since a key of its own replaces that of the defaults as a whole: where it
    mentions nothing. Keys that are empty are meant so. `root` are the values of the file."""
    found: list[str] = []
    if "consent" not in spec.defaulted and spec.consent != Consent() != defaults.consent:
        own, default = spec.consent, defaults.consent
        opened = [kind for kind in ENTRY_RULES if _is_opened(own, default, kind, spec.trust)]
        written = root["defaults"]["consent"]
        word = f" ({written})" if isinstance(written, str) else ""
        verdict = "asked about" if spec.trust is Trust.UNTRUSTED else "allowed"
        if opened:
            found.append(
                f"its consent replaces defaults.consent{word}: {', '.join(opened)} that no rule names are {verdict}"
            )
    if "limits" not in spec.defaulted and (own_limits := dataclasses.asdict(spec.limits)):
        dropped = [
            key
            for key, limit in dataclasses.asdict(defaults.limits).items()
            if limit is not None and own_limits[key] is None
        ]
        if dropped and any(limit is not None for limit in own_limits.values()):
            found.append(f"its limits replace defaults.limits: there is no limit of {', '.join(dropped)}")
    return tuple(found)


def _is_opened(own: Consent, default: Consent, kind: str, trust: Trust) -> bool:
    """Whether trust decides about what the own consent does not mention, and is laxer than the default there."""
    rules: KindConsent = getattr(own, kind)
    default_rules: KindConsent = getattr(default, kind)
    if rules.default is not None or rules.allow is not None:
        return False
    by_default = default_rules.default or (Verdict.DENY if default_rules.allow is not None else None)
    return by_default is Verdict.DENY or (by_default is Verdict.ASK and trust is not Trust.UNTRUSTED)


def has_defaults(root: Mapping[str, object]) -> bool:
    """Whether the file of another program has our key `defaults`: a map of nothing but keys that may stand there."""
    defaults = root.get("defaults")
    return isinstance(defaults, dict) and bool(defaults) and defaults.keys() <= {*DEFAULT_KEYS}
