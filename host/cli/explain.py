"""The command `explain`: the decision about a call, with every rule that was tried."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from host.cli.common import Selection, json_object, read_id, selection_options
from host.cli.exit_codes import DONE, VERDICT_ASK, VERDICT_DENY, CommandFailed
from host.cli.names import CALLER, OWN_PROMPT, OWN_RESOURCE, OWN_TEMPLATE, OWN_TOOL, SERVER, TOOL, view_option
from host.cli.terminal import printable

if TYPE_CHECKING:
    from host.cli.targets import DecisionScope, DecisionTarget

_AUTOMATIC = {
    "first sight": "approved when first seen, not by a person",
    "trust": "approved, since the server is trusted",
    "configuration": "approved by the configuration, not by a person",
}
"""The status of a definition that no person approved, by who did."""
_ENTRY_KINDS = ("tool", "resource", "template", "prompt")
EXIT_CODES = {"allow": DONE, "ask": VERDICT_ASK, "deny": VERDICT_DENY}


def _one_name(context: click.Context, parameter: click.Parameter, words: tuple[str, ...]) -> str | None:
    if len(words) > 1:
        from host.cli.suggest import name_of_words

        meant = name_of_words(*words) if len(words) == 2 else ""
        remedy = f"; did you mean {meant}?" if meant else ", and arguments as --args JSON."
        raise click.UsageError(f"Expected one NAME as clients see it{remedy}", context)
    return words[0] if words else None


@click.command()
@click.argument("outward", metavar="[NAME]", nargs=-1, type=TOOL, callback=_one_name)
@click.option("--server", metavar="NAME", type=SERVER, help="The server, as in the configuration.")
@click.option("--tool", metavar="NAME", type=OWN_TOOL, help="A tool, by its own name at the server.")
@click.option("--prompt", metavar="NAME", type=OWN_PROMPT, help="A prompt, by its own name at the server.")
@click.option("--resource", metavar="URI", type=OWN_RESOURCE, help="A resource, by its own URI at the server.")
@click.option("--template", metavar="URI", type=OWN_TEMPLATE, help="A resource template, by its own URI at the server.")
@click.option("--caller", metavar="NAME", type=CALLER, help="Who calls, by its name in callers. Default: you.")
@click.option("--call", "call", metavar="ID", type=read_id, help="A call of the past, as colonnade history shows it.")
@view_option("The view that the call comes in by. Default: the one of the caller.")
@click.option("--args", "arguments", metavar="JSON", help="The arguments: a JSON object.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@selection_options
def explain(
    selection: Selection,
    outward: str | None,
    server: str | None,
    tool: str | None,
    prompt: str | None,
    resource: str | None,
    template: str | None,
    caller: str | None,
    call: str | None,
    view: str,
    arguments: str | None,
    as_json: bool,
) -> int:
    """Explain the decision about a call, or the rules of a server.

    NAME is a tool, prompt or resource as clients see it. Otherwise --server is required, and one of --tool, --prompt,
    --resource and --template; without these, all rules of the server are written out, then the decision about each of
    its entries. With --call: what the rules of today say of a call of the past. Nothing is sent and no person is asked.
    Exit codes: 0 allow, 4 ask, 5 deny or held, 1 if there is no verdict.
    """
    entries = {"tool": tool, "prompt": prompt, "resource": resource, "template": template}
    named = [(kind, name) for kind, name in entries.items() if name is not None]
    if call is not None:
        if outward or server or named or caller or view or arguments:
            raise click.UsageError("--call names all of the call.", click.get_current_context())
        return _explain_past(selection, call, as_json)
    if (outward is not None and (named or server)) or (outward is None and (len(named) > 1 or not server)):
        raise click.UsageError(
            "Expected NAME as clients see it, or --server with one of --tool, --prompt, --resource and --template, or "
            "--server alone.",
            click.get_current_context(),
        )
    if outward is None and not named and arguments is not None:
        raise click.UsageError("Expected a tool or prompt beside --args.", click.get_current_context())
    parsed = None if arguments is None else json_object(arguments)
    if outward is None and not named and view:
        raise click.UsageError("Expected an entry beside --view.", click.get_current_context())
    whose = {} if caller is None else {"caller": caller}
    whose |= {"view": view} if view else {}
    scope = selection.scope()
    from host.cli.targets import only

    targets = scope.all()
    if outward is None and not named:
        target = only(targets, server)
        return _explain_server(target, str(server), whose, as_json)
    if outward is None:
        server, (kind, name) = str(server), named[0]
    else:
        server, kind, name = entry_named(targets, outward, whose)
    target = only(targets, server)
    explanation = target.post("explain", server=server, kind=kind, name=name, arguments=parsed, **whose)
    return _tell(target, server, explanation, as_json)


def _explain_past(selection: Selection, id: str, as_json: bool) -> int:
    """Say what the rules of today decide about a call of the past."""
    from host.cli.history import content_lines, find_call
    from host.history.search import contents_of

    scope = selection.scope()
    row, records = find_call(scope.state, id)
    is_question = row["what"] == "question" and row["kind"] in _ENTRY_KINDS
    if row["what"] == "attempt" or not (row["method"] or is_question):
        what = "a refused attempt" if row["what"] == "attempt" else "a request of a server"
        raise CommandFailed(f"{id} is {what}, not a call; colonnade explain NAME explains an entry")
    if "... sha256:" in row["item"]:
        raise CommandFailed(
            f"the audit has only the beginning of the name of {id}; colonnade explain --server explains it"
        )
    contents = contents_of(records)
    arguments, remark = _kept_arguments(records[0] if records else {}, contents.get("arguments", {}))
    if is_question:
        arguments, remark = None, "as for a call without arguments, since a confirmation keeps none"
    target = _target_of(scope, id, row["config"])
    whose = {} if not row["caller"] else {"caller": _caller_of(target.config, row["caller"])}
    whose |= {"view": row["view"]} if row["view"] else {}
    server, kind, name = row["server"], row["kind"], row["item"]
    explanation = target.post("explain", server=server, kind=kind, name=name, arguments=arguments, **whose)
    past = f"{row['time']}: {row['verdict']} ({row['rule']}), {row['outcome'] or 'no outcome yet'}"
    if as_json:
        past_call = {
            "verdict": row["verdict"],
            "rule": row["rule"],
            "outcome": row["outcome"],
            "remark": remark,
            **contents,
        }
        explanation = {**explanation, "past": past_call}
    else:
        print(f"Then, {printable(past)}")
        for line in content_lines(contents):
            print(f"  {line}")
        if remark:
            print(f"Now, {remark}:")
    return _tell(target, server, explanation, as_json)


def _target_of(scope: DecisionScope, id: str, config: str) -> DecisionTarget:
    """Whose rules a call of the past is explained by: those of the file that is selected, which may have been moved,
    else those of its own one. Other rules would say something of another call.

    Raises:
        CommandFailed: its file is not known, or not there.
    """
    from host.cli.targets import only

    if scope.config is None and config:
        if not os.path.exists(config):
            raise CommandFailed(f"{id} is a call of {printable(config)}, which is not there; name the file by --config")
        scope = replace(scope, config=Path(config))
    return only(scope.all())


def _kept_arguments(record: Mapping[str, Any], kept: Mapping[str, str]) -> tuple[dict[str, Any] | None, str]:
    """The arguments of a call by its record of the audit; and a remark if that does not have them. Redacted ones decide
    nothing: a rule may be about what was replaced."""
    if record.get("args", {}).get("shape") == {}:
        return {}, ""
    try:
        arguments = json.loads(kept["json"])
    except (KeyError, ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict):
        return arguments, ""
    why = "are redacted" if "redacted" in kept else "were left out" if "left_out" in kept else "were not kept"
    keeps = "audit: {arguments: full} keeps those of calls from then on"
    return None, f"as for a call without arguments, since its own {why}; {keeps}"


def _caller_of(file: str, token: str) -> str:
    """The name of a caller by that of its token; empty if the configuration names none.

    Raises:
        CommandFailed: the configuration cannot be read.
    """
    from config import ConfigError, load

    try:
        callers = load(file, in_background=True).callers
    except ConfigError as problem:
        raise CommandFailed(f"the name of its caller is not known, since the file is wrong: {problem}") from problem
    return next((name for name, spec in callers.items() if spec.token == token), "")


def _tell(target: DecisionTarget, server: str, explanation: Mapping[str, Any], as_json: bool) -> int:
    deciding = "" if explanation["verdict"] == "allow" else _deciding_line(target.config, server, explanation)
    if as_json:
        print(json.dumps({**explanation, "to_change": deciding}, indent=2))
    else:
        _show(explanation, deciding)
    return EXIT_CODES[explanation["verdict"]] if explanation["shown"] else VERDICT_DENY


def _deciding_line(config: str, server: str, explanation: Mapping[str, Any]) -> str:
    """The line of the file that has the rule, or in whose section one would stand, and its key. Empty if no key
    decides, or the file cannot be read, or is a desktop host's, which has other keys."""
    from config import ConfigError
    from config.load import place_of, read_file, rules_in, where_of
    from config.model import ENTRY_RULES
    from host.policy.rules import rule_text
    from host.sanitize import visible

    key, _, text = explanation["rule"].partition(": ")
    if key.partition(".")[0] not in {"trust", *ENTRY_RULES}:
        return ""
    section = ("defaults",) if explanation["origin"] else ("servers", server)
    path: tuple[str | int, ...] = (*section, key) if key == "trust" else (*section, "consent", *key.split("."))
    file = place_of(Path(config))
    try:
        document, host = read_file(file)
    except ConfigError:
        return ""
    found: Any = document.root
    for word in path:
        found = found.get(word) if isinstance(found, dict) else None
    rules = rules_in(path, found, file.parent) if isinstance(found, list) else ()
    path = (*path, *(at for at, rule in enumerate(rules) if visible(rule_text(rule)) == text))
    while path not in document.places:
        path = path[:-1]
    place = document.places[path]
    return "" if host else f"{config}:{(place.key or place.value).line}: {where_of(path)}"


def _explain_server(target: DecisionTarget, server: str, whose: Mapping[str, str], as_json: bool) -> int:
    """Write out the rules of a server, and the decision about each of its entries."""
    found = target.post("definitions/list", server=server, **whose)
    if as_json:
        kept = ("kind", "name", "verdict", "rule", "standing", "by", "counts", "claims", "denied", "fingerprint")
        entries = [{key: row[key] for key in kept} for row in found["definitions"] if row["verdict"]]
        more = {"sandbox": found["sandbox"], "starts": found.get("starts", [])}
        print(json.dumps({"rules": found["rules"], "entries": entries, **more}, indent=2))
        return DONE
    from host.policy.claims import describe_claims

    if found["sandbox"]:  # it is a program
        print(f"Sandbox: {found['sandbox']}")
        for sentence in found.get("starts", ()):  # older hosts say nothing of it
            print(f"  {sentence}")
    print(f"The rules of {server}: deny before ask before allow, then the rest")
    for rule in found["rules"]:
        of_key = rule["rule"].startswith(rule["about"])
        text = rule["rule"] if of_key else f"{rule['about']}: {rule['rule']}"
        print(f"  {rule['verdict']:<6} {text}{_from(rule)}")
    by = f" by {whose['caller']}" if whose else ""
    print(f"Its entries, called{by} without arguments:")
    for row in found["definitions"]:
        if not row["verdict"]:
            continue
        claims = describe_claims(row["claims"])
        claims += "" if row["counts"] else "; not approved by a person, so it does not count"
        held = "" if row["standing"] == "approved" else f"  (held: {row['standing']})"
        print(f"  {row['verdict']:<6} {row['kind']} {row['name']}{held}")
        print(f"           {row['rule']}" + (f"  (it claims: {claims})" if row["claims"] else ""))
    if any(" claims " in rule["rule"] for rule in found["rules"]) and any(
        row["claims"] and not row["counts"] for row in found["definitions"]
    ):
        print(f"Claims count once you have approved the definitions: colonnade definitions approve {server}")
    if not any(row["verdict"] for row in found["definitions"]):
        print("  none is known: the server was never started")
    return DONE


def entry_named(
    targets: Sequence[DecisionTarget], outward: str, whose: Mapping[str, str] = MappingProxyType({})
) -> tuple[str, str, str]:
    """The server, kind and own name of an entry that clients see under this name: those in the view of `whose`, or else
    those without a view. Without a running host, or for an entry that it does not know, they are read from the name,
    which is taken for that of a tool or a resource."""
    from host.names import split_name, split_uri

    rows = [row for target in targets for row in _seen(target, whose) if row["outward"] == outward]
    rows = rows or [row for target in targets for row in target.state().get("catalog", ()) if row["outward"] == outward]
    found = list(dict.fromkeys((row["server"], row["kind"], row["name"]) for row in rows))
    if len(found) > 1:
        these = "; ".join(f"--server {server} --{kind} {name}" for server, kind, name in found)
        raise CommandFailed(f"{outward} is the name of several entries: {these}")
    if found:
        return found[0]
    prefixes = {prefix: server for target in targets for server, prefix in target.servers().items()}
    for kind, (prefix, name) in (("tool", split_name(outward)), ("resource", split_uri(outward))):
        if prefix in prefixes:
            return prefixes[prefix], kind, name
    from host.cli.suggest import did_you_mean

    _, sign, own = outward.partition("__")
    names = [row["outward"] for target in targets for row in target.state().get("catalog", ())]
    meant = did_you_mean(outward, names or ([f"{prefix}__{own}" for prefix in prefixes] if sign else []))
    remedy = meant or "colonnade list shows all names"
    raise CommandFailed(f"no server has an entry that clients see as {outward!r}; {remedy}")


def _seen(target: DecisionTarget, whose: Mapping[str, str]) -> list[dict[str, Any]]:
    """What a caller sees in a view of a running host; nothing if no host runs, or if the caller does not reach it,
    which the explanation says."""
    try:
        if whose and "catalog" in target.state():
            entries: list[dict[str, Any]] = target.post("callers/view", **whose)["entries"]
            return entries
    except CommandFailed:
        pass
    return []


def _show(explanation: Mapping[str, Any], deciding: str) -> None:
    print(explanation["sentence"])
    print(f"  decided by:  {explanation['rule']}{_from(explanation)}")
    if deciding:
        print(f"  to change:   {printable(deciding)}")
    print("  tried:")
    for rule in explanation["tried"]:
        print(f"    {'matched' if rule['matched'] else '-':<8} {rule['verdict']:<6} {rule['rule']}  ({rule['why']})")
    fingerprint = f" ({short_fingerprint(explanation['fingerprint'])})" if explanation["fingerprint"] else ""
    standing = explanation["standing"]
    if by := explanation["by"]:
        standing = _AUTOMATIC.get(by, f"approved by a person ({by})")
    print(f"  definition:  {standing}{fingerprint}")
    grant = explanation["grant"]
    print(f"  grant used:  {'none' if grant is None else grant['id'] + ' (' + grant['scope'] + ')'}")
    limits = ", ".join(f"{key} {text}" for key, text in explanation["limits"].items())
    print(f"  limits:      {limits or 'none'}")


def _from(rule: Mapping[str, Any]) -> str:
    return f"  (from {rule['origin']})" if rule["origin"] else ""


def short_fingerprint(fingerprint: str) -> str:
    """The beginning of a fingerprint, by which a person recognises it."""
    return fingerprint.removeprefix("sha256:")[:8]
