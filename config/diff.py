"""The difference between two readings of a file: servers to restart, and servers with another policy.

Consent and limits, except for the limit of a message, are looked up with every request, and overrides are applied to
the lists that the host has, so a change of them needs no restart. All other keys of a server were used to start its
process or session. A change of any of them restarts the server, even if it is only the title or the timeout.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from config.model import ENTRY_RULES, Config, Listen, ServerSpec

_POLICY_FIELDS = frozenset({"consent", "server requests", "trust", "limits"})
_NO_RESTART_FIELDS = frozenset(
    {"consent", "limits", "overrides"}
)  # what trust says of texts and instructions, a connection is made with
_RESTART_KEYS = ("start_grace", "watch", "console", "capacity", "fleet", "metrics", "traces")
# They hold as soon as the file is read.
_LIVE_KEYS = ("daemon", "drain", "ask", "audit", "history", "memory", "callers", "views", "default_view")


@dataclass(frozen=True)
class Difference:
    """The ids of servers, in the order of the file they are in, and what cannot change while the host runs.

    `added` and `removed` are in one file only. Of those in both, `restart` must begin anew, and `policy_changed` have
    another consent, trust or limits; one server may be both. `applied` and `deferred` are sentences for whoever changed
    the file: what else holds now, and what does not.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    policy_changed: tuple[str, ...] = ()
    applied: tuple[str, ...] = ()
    deferred: tuple[str, ...] = ()


def difference(old: Config, new: Config) -> Difference:
    """The changes to make when `new` replaces `old`. Enabling or disabling a server restarts it."""
    both = {
        server: _changed(old.servers[server], spec) for server, spec in new.servers.items() if server in old.servers
    }
    listen = listen_in_effect(old.listen, new.listen)
    return Difference(
        added=tuple(server for server in new.servers if server not in old.servers),
        removed=tuple(server for server in old.servers if server not in new.servers),
        restart=tuple(server for server, keys in both.items() if keys - _NO_RESTART_FIELDS),
        policy_changed=tuple(server for server, keys in both.items() if keys & _POLICY_FIELDS),
        applied=(
            *_token_changes(old.listen, listen),
            *(f"{server} has other overrides" for server, keys in both.items() if "overrides" in keys),
            *(
                f"{key} has changed"
                for key in _LIVE_KEYS
                if getattr(old, key) != getattr(new, key) or (key == "views" and not have_equal_order(old, new))
            ),
        ),
        deferred=tuple(
            f"{key} has changed: that takes effect with the next start"
            for key, changed in (
                ("listen", listen != new.listen),
                ("audit.to", old.audit.to != new.audit.to),
                *((key, getattr(old, key) != getattr(new, key)) for key in _RESTART_KEYS),
            )
            if changed
        ),
    )


def have_equal_order(old: Config, new: Config) -> bool:
    """Whether two readings have their views in one order: the first that names a caller is the one at the address of
    all servers. The order of all other maps decides nothing, so equal readings may differ in it."""
    return tuple(old.views) == tuple(new.views)


def listen_in_effect(present: Listen, read: Listen) -> Listen:
    """The endpoint when a file that says `read` is taken over while it is open as `present` says. Its tokens change,
    and the files of its certificate. Tokens stay required where other machines reach it."""
    auth = present.auth if read.auth is None and not present.is_local else read.auth
    tls = present.tls if None in (present.tls, read.tls) else read.tls
    return dataclasses.replace(present, auth=auth, tls=tls)


def _token_changes(old: Listen, new: Listen) -> list[str]:
    """Sentences about the access tokens that differ."""
    before, after = old.tokens, new.tokens
    found = [f"token {name} added" for name in after if name not in before]
    found += [f"token {name} withdrawn" for name in before if name not in after]
    found += [f"token {name} has another value" for name in after if name in before and after[name] != before[name]]
    if (old.auth is None) is not (new.auth is None):
        found.append("every request needs one of them" if old.auth is None else "no request needs one")
    return [f"listen.auth: {', '.join(found)}"] if found else []


def _changed(old: ServerSpec, new: ServerSpec) -> frozenset[str]:
    """The fields in which two readings of a server differ, among them those that only one of them has."""
    before, after = (
        {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec) if field.compare}
        for spec in (old, new)
    )
    # In conditions 1 and true are two values, which Python takes for equal. What a consent writes keeps them apart.
    for fields, spec in ((before, old), (after, new)):
        consent = spec.consent
        fields["consent"] = repr([getattr(consent, key) for key in ENTRY_RULES])
        fields["server requests"] = repr((consent.sampling, consent.elicitation, consent.roots))
        fields["message"] = spec.limits.message  # a connection is opened with it
    missing = object()
    return frozenset(name for name in {*before, *after} if before.get(name, missing) != after.get(name, missing))
