"""The command `explain`: the decision about a call, with every rule that was tried."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from host.cli.common import Selection, config_option, json_object, pass_selection, state_option
from host.cli.exit_codes import DONE, VERDICT_ASK, VERDICT_DENY, CommandFailed
from host.cli.names import OWN_PROMPT, OWN_RESOURCE, OWN_TEMPLATE, OWN_TOOL, SERVER, TOOL
from host.cli.signals import allow_interrupts

if TYPE_CHECKING:
    from host.cli.targets import DecisionTarget

EXIT_CODES = {"allow": DONE, "ask": VERDICT_ASK, "deny": VERDICT_DENY}


@click.command()
@click.argument("outward", metavar="[NAME]", required=False, type=TOOL)
@click.option("--server", metavar="NAME", type=SERVER, help="The server, as in the configuration.")
@click.option("--tool", metavar="NAME", type=OWN_TOOL, help="A tool, by its own name at the server.")
@click.option("--prompt", metavar="NAME", type=OWN_PROMPT, help="A prompt, by its own name at the server.")
@click.option("--resource", metavar="URI", type=OWN_RESOURCE, help="A resource, by its own URI at the server.")
@click.option("--template", metavar="URI", type=OWN_TEMPLATE, help="A resource template, by its own URI at the server.")
@click.option("--args", "arguments", metavar="JSON", help="The arguments: a JSON object.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@config_option
@state_option
@pass_selection
def explain(
    selection: Selection,
    outward: str | None,
    server: str | None,
    tool: str | None,
    prompt: str | None,
    resource: str | None,
    template: str | None,
    arguments: str | None,
    as_json: bool,
) -> int:
    """Explain the decision about a call.

    NAME is a tool, prompt or resource as clients see it. Otherwise --server is required, and one of --tool, --prompt,
    --resource and --template. Nothing is sent and no person is asked.
    Exit codes: 0 allow, 4 ask, 5 deny or held, 1 if there is no verdict.
    """
    entries = {"tool": tool, "prompt": prompt, "resource": resource, "template": template}
    named = [(kind, name) for kind, name in entries.items() if name is not None]
    if (outward is not None and (named or server)) or (outward is None and (len(named) != 1 or not server)):
        raise click.UsageError(
            "Expected NAME as clients see it, or --server with one of --tool, --prompt, --resource and --template.",
            click.get_current_context(),
        )
    parsed = None if arguments is None else json_object(arguments)
    scope = selection.scope()
    from host.cli.targets import only

    allow_interrupts()
    targets = scope.all()
    if outward is None:
        server, (kind, name) = str(server), named[0]
    else:
        server, kind, name = entry_named(targets, outward)
    targets = [target for target in targets if server in target.servers()] or targets
    explanation = only(targets).post("explain", server=server, kind=kind, name=name, arguments=parsed)
    if as_json:
        print(json.dumps(explanation, indent=2))
    else:
        _show(explanation)
    return EXIT_CODES[explanation["verdict"]] if explanation["shown"] else VERDICT_DENY


def entry_named(targets: Sequence[DecisionTarget], outward: str) -> tuple[str, str, str]:
    """The server, kind and own name of an entry that clients see under this name. Without a running host, or for an
    entry that it does not know, they are read from the name, which is taken for that of a tool or a resource."""
    rows = [row for target in targets for row in target.state().get("catalog", ()) if row["outward"] == outward]
    found = list(dict.fromkeys((row["server"], row["kind"], row["name"]) for row in rows))
    if len(found) > 1:
        these = "; ".join(f"--server {server} --{kind} {name}" for server, kind, name in found)
        raise CommandFailed(f"{outward} is the name of several entries: {these}")
    if found:
        return found[0]
    for server in (server for target in targets for server in target.servers()):
        for sign, kind in (("__", "tool"), ("+", "resource")):
            if outward.startswith(server + sign):
                return server, kind, outward.removeprefix(server + sign)
    raise CommandFailed(f"no server has an entry that clients see as {outward!r}; colonnade list shows all names")


def _show(explanation: Mapping[str, Any]) -> None:
    print(explanation["sentence"])
    print(f"  decided by:  {explanation['rule']}")
    print("  tried:")
    for rule in explanation["tried"]:
        print(f"    {'matched' if rule['matched'] else '-':<8} {rule['verdict']:<6} {rule['rule']}  ({rule['why']})")
    fingerprint = f" ({short_fingerprint(explanation['fingerprint'])})" if explanation["fingerprint"] else ""
    print(f"  definition:  {explanation['standing']}{fingerprint}")
    grant = explanation["grant"]
    print(f"  grant used:  {'none' if grant is None else grant['id'] + ' (' + grant['scope'] + ')'}")
    limits = ", ".join(f"{key} {text}" for key, text in explanation["limits"].items())
    print(f"  limits:      {limits or 'none'}")


def short_fingerprint(fingerprint: str) -> str:
    """The beginning of a fingerprint, by which a person recognises it."""
    return fingerprint.removeprefix("sha256:")[:8]
