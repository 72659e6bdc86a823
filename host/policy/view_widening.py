"""The changes of views, callers and overrides that offer more, or other than what was offered.

What a caller may address is compared for each caller, not key by key: a view that names a caller who had everything is
a narrower offer, though it is a new view. Beside the offer, names, texts and arguments are compared: a host may permit
tools by their names, and a person has approved tools by their texts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from config import ArgumentOverride, CallerSpec, Config, HistoryAccess, Override, Search, ViewServer, ViewSpec
from config.patterns import covered
from host.addresses import Addresses

_EVERYTHING = ViewSpec()
_NO_OVERRIDE = Override()
_NO_OVERRIDES: Mapping[str, Override] = MappingProxyType({})
_NO_ARGUMENT = ArgumentOverride()
_SEEN = {None: 0, HistoryAccess.OWN: 1, HistoryAccess.ALL: 2}
_T = TypeVar("_T")


class Offers(NamedTuple):
    """The keys of the file that say what callers are offered."""

    callers: Mapping[str, CallerSpec]
    views: Mapping[str, ViewSpec]
    default_view: str | None


def offers_of(config: Config) -> Offers:
    return Offers(config.callers, config.views, config.default_view)


def compare_offers(
    old: Offers, new: Offers, tokens: Iterable[str], in_rules: tuple[Collection[str], Collection[str]]
) -> tuple[list[str], Offers]:
    """The changes that widen, as sentences, and the new offers without them.

    Args:
        tokens: the names of the access tokens that are in effect before and after.
        in_rules: the callers that rules name, before and after.
    """
    found, callers = _compare_callers(old.callers, new.callers, in_rules)
    views = dict(new.views)
    for name, view in new.views.items():
        sentences, views[name] = _compare_forms(old.views.get(name), view)
        found += [f"views.{name}: {each}" for each in sentences]
    read, narrow = (Offers(callers, each, new.default_view) for each in (new.views, MappingProxyType(views)))
    # None stands for all who have no token, or that of no caller.
    who = [None, *(name for name in tokens if _caller_of(name, old) or _caller_of(name, read))]
    found += dict.fromkeys(_wider(old, read, who))
    # A view whose overrides wait may be wider for as long.
    if any(_wider(old, narrow, who)):
        narrow = _as_far_as_narrower(old, narrow, who)
    more, callers = _compare_history(old.callers, new.callers, narrow.callers)
    return [*found, *more], narrow._replace(callers=callers)


def compare_overrides(
    old: Mapping[str, Override], new: Mapping[str, Override]
) -> tuple[list[str], Mapping[str, Override]]:
    """The names of those that wait for a person, and the new ones, with the former ones in their places."""
    waiting = [name for name in dict.fromkeys((*old, *new)) if _gives_other(old.get(name), new.get(name))]
    return waiting, _with_former(old, new, waiting) if waiting else new


def _with_former(old: Mapping[str, _T], new: Mapping[str, _T], names: Iterable[str]) -> Mapping[str, _T]:
    for name in names:
        new = _with(new, name, old.get(name))
    return new


def _gives_other(old: Override | None, new: Override | None) -> bool:
    """Whether an override changes a name, a text or what a server gets. To hide an argument, or to show again what the
    server itself says, is none of these."""
    before, after = old or _NO_OVERRIDE, new or _NO_OVERRIDE
    if (old and new and before.kind is not after.kind) or before.name != after.name:
        return True
    if after.title not in (None, before.title) or after.description not in (None, before.description):
        return True
    return any(
        _gives_other_argument(before.arguments.get(name, _NO_ARGUMENT), after.arguments.get(name, _NO_ARGUMENT))
        for name in {*before.arguments, *after.arguments}
    )


def _gives_other_argument(old: ArgumentOverride, new: ArgumentOverride) -> bool:
    if new.hidden:
        return old.value is not None
    is_same = (old.value, old.default, old.hidden) == (new.value, new.default, new.hidden)
    return not is_same or new.description not in (None, old.description)


# Callers.


def _compare_callers(
    old: Mapping[str, CallerSpec], new: Mapping[str, CallerSpec], in_rules: tuple[Collection[str], Collection[str]]
) -> tuple[list[str], Mapping[str, CallerSpec]]:
    """Rules would hold for another token, or for one more, or no longer for one of which they still speak."""
    before, after = in_rules
    changed = [name for name in {**old, **new} if _token_of(name, old) != _token_of(name, new)]
    others = [name for name in changed if name in new and (name in before or (name in old and name in after))]
    gone = [name for name in changed if name not in new and name in after]
    found = [f"callers.{name}: the rules that name it would be those of another token" for name in others]
    kept = new
    for name in (*others, *gone):
        kept = _with_caller(kept, name, old.get(name))
    return found, kept


def _token_of(name: str, callers: Mapping[str, CallerSpec]) -> str | None:
    """The name of the token of this caller; None if there is none."""
    return callers[name].token if name in callers else None


def _compare_history(
    old: Mapping[str, CallerSpec], new: Mapping[str, CallerSpec], kept: Mapping[str, CallerSpec]
) -> tuple[list[str], Mapping[str, CallerSpec]]:
    """Tokens that would show more of the history; and the callers that are kept, each with no more of it than its token
    showed, and the file says of the token and of the caller."""
    before, after = ({each.token: each.history for each in callers.values()} for callers in (old, new))
    found = [
        f"callers.{name}.history: it sees more calls of the past"
        for name, caller in new.items()
        if _SEEN[caller.history] > _SEEN[before.get(caller.token)]
    ]
    read = {name: caller.history for name, caller in new.items()}

    def seen(name: str, token: str) -> HistoryAccess | None:
        return min(before.get(token), after.get(token), read.get(name), key=_SEEN.__getitem__)

    return found, MappingProxyType(
        {name: dataclasses.replace(caller, history=seen(name, caller.token)) for name, caller in kept.items()}
    )


def _with_caller(callers: Mapping[str, CallerSpec], name: str, caller: CallerSpec | None) -> Mapping[str, CallerSpec]:
    """The callers with another one of this name, or without one. No token has two callers."""
    others = {each: spec for each, spec in callers.items() if caller is None or spec.token != caller.token}
    return _with(others, name, caller)


def _caller_of(token: str | None, offers: Offers) -> str:
    """The name of the caller with a token; empty if it has none."""
    return next((name for name, caller in offers.callers.items() if caller.token == token), "")


def _named(token: str | None, offers: Offers) -> str:
    """The name of the caller with a token, if a view names it."""
    caller = _caller_of(token, offers)
    return caller if any(caller in view.callers for view in offers.views.values()) else ""


# Names, texts and arguments in a view.


def _compare_forms(old: ViewSpec | None, new: ViewSpec) -> tuple[list[str], ViewSpec]:
    """The changes of names, texts and arguments in a view that wait, and the new view without them. A view that is new
    is compared with the view of everything, which is what there was."""
    before = old or _EVERYTHING
    found: list[str] = []
    kept: dict[str, Any] = {}
    if new.names.style is not before.names.style:
        found.append(f"names are {new.names.style}: a host may permit tools by their names")
        kept["names"] = dataclasses.replace(new.names, style=before.names.style)
    if new.instructions not in (None, before.instructions):
        found.append("instructions have changed")
        kept["instructions"] = before.instructions
    if _search_from(new) < _search_from(before):
        found.append("a search calls tools that a host then does not see by their names")
        kept |= {"search": before.search, "search_above": before.search_above}
    overrides = dict(new.overrides)
    for server in {**before.overrides, **new.overrides}:
        former = before.overrides.get(server, _NO_OVERRIDES)
        waiting, overrides[server] = compare_overrides(former, new.overrides.get(server, _NO_OVERRIDES))
        found += [f"overrides.{server}.{name} has changed" for name in waiting]
        if waiting:
            kept["overrides"] = overrides
    if "overrides" in kept:
        kept["overrides"] = MappingProxyType({server: each for server, each in overrides.items() if each})
    return found, dataclasses.replace(new, **kept) if kept else new


def _search_from(view: ViewSpec) -> float:
    """The tokens of a list above which there is a search."""
    return {Search.ON: -1, Search.OFF: math.inf}.get(view.search, view.search_above)


# The offer to each caller.


def _addresses(offers: Offers) -> Addresses:
    return Addresses(offers.views, offers.callers, offers.default_view)


def _reached(token: str | None, offers: Offers, addresses: Addresses) -> Mapping[str, ViewSpec] | None:
    """The views that a caller may address; None for all, and everything."""
    reached = addresses.reached(_caller_of(token, offers))
    return None if "" in reached else {name: view for name, view in offers.views.items() if name in reached}


def _wider(old: Offers, new: Offers, tokens: Iterable[str | None]) -> Iterator[str]:
    """Sentences on who would be offered more."""
    addresses, later = _addresses(old), _addresses(new)  # made once: many callers are compared again and again
    for token in tokens:
        before = _reached(token, old, addresses)
        if before is None:
            continue
        whom = _named(token, new) or _named(token, old) or "callers that no view names"
        after = _reached(token, new, later)
        if after is None:
            yield f"views: {whom} would be offered everything"
            continue
        for name, view in after.items():
            if not any(_is_within(view, each) and _takes_out_as(view, each) for each in before.values()):
                yield f"views.{name} would offer more to {whom}"


def _is_within(view: ViewSpec, other: ViewSpec) -> bool:
    """Whether the other view has all that this one has. False for some where that is so."""
    if view.servers is other.servers or other.servers is None:
        return True
    if view.servers is None:
        return False
    return all(
        (whole := other.part(server)) is not None and _is_part(part, whole) for server, part in view.servers.items()
    )


def _takes_out_as(view: ViewSpec, other: ViewSpec) -> bool:
    """Whether the view takes out each argument that the other one does, of what it may have: under another name too, a
    view must not show what was hidden."""
    return all(
        view.overrides.get(server, _NO_OVERRIDES).get(name, _NO_OVERRIDE).arguments.get(argument) == change
        for server, overrides in other.overrides.items()
        if view.part(server) is not None
        for name, override in overrides.items()
        for argument, change in override.arguments.items()
        if change.is_taken_out
    )


def _is_part(part: ViewServer, whole: ViewServer) -> bool:
    # In URIs a star stops at a slash, so that one pattern covers another is certain for the same one alone.
    return (
        all(covered(pattern, whole.tools) for pattern in part.tools)
        and all(covered(pattern, whole.prompts) for pattern in part.prompts)
        and ("**" in whole.resources or set(part.resources) <= set(whole.resources))
    )


def _as_far_as_narrower(old: Offers, new: Offers, tokens: Collection[str | None]) -> Offers:
    """The former offers with every change, taken by itself, by which nobody is offered more than before."""
    present = old

    def take(changed: Offers) -> bool:
        nonlocal present
        if is_narrower := not any(_wider(old, changed, tokens)):
            present = changed
        return is_narrower

    for _ in range(2):  # a change may need another one that comes later
        for name in {**old.views, **new.views}:
            steps = _steps(present.views.get(name), new.views.get(name))
            any(take(present._replace(views=_with(present.views, name, view))) for view in steps)
        for name in {**old.callers, **new.callers}:
            take(present._replace(callers=_with_caller(present.callers, name, new.callers.get(name))))
        take(present._replace(default_view=new.default_view))
    order = [name for name in {**new.views, **present.views} if name in present.views]
    return present._replace(views=MappingProxyType({name: present.views[name] for name in order}))


def _steps(present: ViewSpec | None, new: ViewSpec | None) -> Iterator[ViewSpec | None]:
    """The new view, or else what it offers to the same callers, or the same to other ones."""
    yield new
    if present is not None and new is not None:
        yield dataclasses.replace(new, callers=present.callers)
        yield dataclasses.replace(new, servers=present.servers)


def _with(values: Mapping[str, _T], name: str, value: _T | None) -> Mapping[str, _T]:
    """The values with another one of this name, or without one."""
    others = {key: each for key, each in values.items() if key != name or value is not None}
    return MappingProxyType(others if value is None else {**others, name: value})
