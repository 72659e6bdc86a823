"""`docs/reference.md`, made of the code: commands, keys of the configuration, events of the log, and error codes.

`python -m tests.reference_page > docs/reference.md` writes it anew.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from typing import Any

import click
from msgspec.structs import fields

from config import schema
from host import errors, journal
from host.attempts import Attempt, Reason
from host.cli.command_line import COMMANDS, colonnade
from host.cli.log_format import fields_of
from host.downstream import call_store
from host.jsonrpc.messages import PARSE_ERROR

HEAD = """# Reference

What there is, in short, as the code has it: this page is generated, and a test compares it (`python -m
tests.reference_page`). What each thing is for stands in the pages that are linked. The metrics have [a table of their
own](metrics.md#names), and the admin API [its schema](openapi.json).
"""


def page() -> str:
    parts = [HEAD]
    parts += ["## Commands\n", "[Operations](operations.md) explains them. Every command has `--help`.\n", *_commands()]
    parts += ["## Keys of the configuration\n", "[Configuration](configuration.md) explains them, with examples.\n"]
    parts += _keys(schema())
    parts += [
        "## Events of the log\n",
        "What a line of [`--log-format json`](operations.md#watching-it) has as `event` and `part`, and its members "
        "beside `time`, `level` and `message`. Empty members are left out. `held` is the number of lines like it that "
        "were left out before it, and `exception` a traceback, which `internal_error` has.\n",
    ]
    parts += ["| event | part | level | members | meaning |\n|---|---|---|---|---|\n" + "".join(_events())]
    parts += [
        "## Error codes\n",
        "Of JSON-RPC errors from Colonnade itself. Those of servers are passed on, [some of them as "
        "others](revisions.md#errors). [Consent](consent.md#error-codes-for-the-client) says which are for what.\n",
    ]
    parts += ["| code | error | meaning |\n|---|---|---|\n" + "".join(_errors())]
    return "\n".join(parts)


def _commands() -> Iterator[str]:
    context = click.Context(colonnade, info_name="colonnade", **colonnade.context_settings)
    for name in COMMANDS:
        command = colonnade.get_command(context, name)
        assert command is not None
        yield from _command(command, click.Context(command, parent=context, info_name=name))


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    usage = command.get_usage(context).removeprefix("Usage: ")
    first = (command.help or "").partition("\n\n")[0].replace("\n", " ")
    named = [each for each in command.get_params(context) if isinstance(each, click.Option)]
    rows = [row for each in named if (row := each.get_help_record(context)) is not None]
    options = "".join(f"| `{option}` | {_cell(text)} |\n" for option, text in rows if "--help" not in option)
    yield f"### {context.command_path}\n\n`{' '.join(usage.split())}`\n\n{_cell(first)}\n"
    if options:
        yield f"| option | |\n|---|---|\n{options}"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _command(below, click.Context(below, parent=context, info_name=name))


def _keys(document: dict[str, Any]) -> Iterator[str]:
    """A table for the file, and one for each map in it."""
    for name, definition in {"The file": document, **document["$defs"]}.items():
        if properties := definition.get("properties"):
            rows = "".join(_key(key, each) for key, each in sorted(properties.items()))
            yield f"### {name}\n\n{_cell(definition.get('description', ''))}\n"
            yield f"| key | value | default | |\n|---|---|---|---|\n{rows}"


def _key(name: str, node: dict[str, Any]) -> str:
    default, meaning = _cell(str(node.get("default", ""))), _cell(node.get("description", ""))
    return f"| `{name}` | {_type(node)} | {default} | {meaning} |\n"


def _type(node: dict[str, Any]) -> str:
    """A few words for what may stand there; a map leads to its table."""
    if reference := node.get("$ref"):
        return _cell(reference.rpartition("/")[2])
    if choices := node.get("enum"):
        return _cell(", ".join(map(str, choices)))
    if several := node.get("anyOf") or node.get("oneOf"):
        return " or ".join(dict.fromkeys(map(_type, several)))
    if node.get("type") == "array":
        return f"list of {_type(node.get('items', {}))}"
    if isinstance(below := node.get("additionalProperties"), dict):
        return f"map of {_type(below)}"
    return _cell(str(node.get("type", "any")))


def _events() -> Iterator[str]:
    for kind in sorted(journal.Event.__subclasses__(), key=lambda each: each.__name__):
        if kind.__module__ == journal.__name__:
            members = _logged(kind)
            event, part = members.pop("event"), members.pop("part")
            severity = vars(kind).get("severity", journal.Severity.INFO)
            level = severity.name.lower() if isinstance(severity, journal.Severity) else "either"
            named = ", ".join(f"`{name}`" for name in members)
            yield f"| `{event}` | `{part}` | {level} | {named} | {_meaning(kind)} |\n"


def _logged(kind: type[journal.Event]) -> dict[str, Any]:
    """The fields that the log has of an event none of whose members is empty."""
    attempt = Attempt(Reason.DENIED, *["x"] * (len(fields(Attempt)) - 1))
    event = kind(*(attempt if field.type is Attempt else "x" for field in fields(kind)))
    return fields_of(logging.makeLogRecord({"event": event}))


def _errors() -> Iterator[str]:
    found = [
        (kind.code, kind.__name__, _meaning(kind))
        for module in (errors, call_store)
        for kind in vars(module).values()
        if inspect.isclass(kind) and issubclass(kind, errors.ColonnadeError)
        if kind.__module__ == module.__name__ and hasattr(kind, "code")
    ]
    found.append((PARSE_ERROR, "", "The message is not JSON, or beyond [a limit](operations.md#limits) of it."))
    for code, name, meaning in sorted(found):
        yield f"| {code} | {name and f'`{name}`'} | {meaning} |\n"


def _meaning(kind: type) -> str:
    """The first paragraph of its own docstring; empty if it has none but that of its base."""
    return _cell(inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0])


def _cell(text: str) -> str:
    """A text as it may stand between two bars."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


if __name__ == "__main__":
    print(page(), end="")
