"""Imported servers as the text of a configuration, with comments on where each is from and how it differs there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from config.desktop.generic import GENERIC
from config.desktop.importing.found import FoundServer
from config.desktop.importing.merge import ImportedServer
from config.desktop.importing.tool_consent import ToolConsent, asked_tools, with_consent
from config.document import Plain
from config.model import ConsentWord
from config.naming import FITTING_NAME
from config.problems import clip
from config.references import mask
from config.yaml_text import comment, commented_out, entries

ShowPath = Callable[[Path], str]

_HEADER = (
    "Servers of desktop hosts, written by colonnade import. Change what you like: nothing reads the files of the hosts "
    "again. colonnade check says whether this file is right; docs/configuration.md has all keys."
)
_RULES = {
    ConsentWord.READ_ONLY: "For servers without a consent of their own: a tool that only reads may be called, if a "
    "person approved its definition with that claim. A person confirms each other call.",
    ConsentWord.CAREFUL: "For servers without a consent of their own: a person confirms each call of a tool.",
}
_READING_ALLOWED = 'allow: [{name: "*", claims: read-only}], '
_REPLACED = """\
# A consent of a server replaces it as a whole. To deny one more tool there, write:
#   consent:
#     tools: {%sdeny: [TOOL], default: ask}
#     resources: allow
#     prompts: allow
"""
NEW_FILE = f"names: {{limit: {FITTING_NAME}}}\n\n"
"""The keys above the servers of a new file: names stay whole with what desktop hosts put before them."""
_FIRST_KEYS = ("title", "command", "url", "env", "headers")
_LAST_KEYS = ("trust", "consent", "disabled")
_VERDICTS = {"allow": "allowed", "ask": "confirmed", "deny": "denied"}
INDENT = "  "
_CANNOT_BE_USED = "It cannot be used: "
_COMMENTED = re.compile(
    rf"^( *)# ([a-z0-9-]+):\r?\n(?=\1#   # From )(?:\1#   .*(?:\n|\Z))*?\1#   # {_CANNOT_BE_USED}.*(?:\n|\Z)"
    r"(?:\1#   .*(?:\n|\Z))*(?:\r?\n)?",
    re.MULTILINE,
)


def whole_text(servers: Iterable[ImportedServer], show: ShowPath, word: ConsentWord | None, top: str = "") -> str:
    """The text of a configuration with these servers, at least one of which can be used. `word` is the answer to
    before which calls a person is asked, and `top` are more keys of the top."""
    said: set[str] = set()
    blocks = (server_text(server, show, said, word, word) for server in servers)
    rule = ""
    if word is not None:
        replaced = _REPLACED % (_READING_ALLOWED if word is ConsentWord.READ_ONLY else "")
        rule = f"{comment(_RULES[word])}{replaced}defaults: {{consent: {word}}}\n\n"
    return f"{comment(_HEADER)}\n{NEW_FILE}{top}{rule}servers:\n" + "\n".join(blocks)


def pieces(
    servers: Sequence[ImportedServer], show: ShowPath, word: ConsentWord | None, default: object
) -> list[tuple[ImportedServer, str]]:
    """The servers that can be used, each with its text; the others are comments in the text of a neighbour. `default`
    is the consent under `defaults` in the file that they are added to."""
    made: list[tuple[ImportedServer, str]] = []
    before = ""
    said: set[str] = set()
    for server in servers:
        text = server_text(server, show, said, word, default, "")
        if not server.problems:
            made.append((server, before + text))
            before = ""
        elif made:
            made[-1] = (made[-1][0], f"{made[-1][1]}\n{text}")
        else:
            before += f"{text}\n"
    return made


def comment_of(server: ImportedServer, text: str, show: ShowPath) -> str:
    """The lines in a configuration that an earlier import left of a server that could not be used; empty if there are
    none."""
    for found in _COMMENTED.finditer(text):
        words = " ".join(line.strip(" #\r") for line in found[0].splitlines())
        if found[2] == server.id and any(show(each.file) in words for each in server.found):
            return found[0]
    return ""


def server_text(
    server: ImportedServer,
    show: ShowPath,
    said: set[str],
    word: ConsentWord | None,
    default: object,
    indent: str = INDENT,
) -> str:
    """A server with its comments below its id, as whole lines. One that cannot be used is a comment as a whole. `said`
    are the remarks on hosts that stand in the file already; those of this server are added."""
    remarks = [origin(server, show), *server.remarks]
    if not server.problems:
        remarks += [each for each in server.host_remarks if each not in said]
        said.update(server.host_remarks)
    else:
        remarks.append(f"{_CANNOT_BE_USED}{'; '.join(server.problems)}.")
    below = indent + "  "
    lines = f"{indent}{server.id}:\n" + "".join(comment(remark, below) for remark in remarks)
    lines += entries(server_value(server, word, default), below)
    return commented_out(lines, indent) if server.problems else lines


def server_value(server: ImportedServer, word: ConsentWord | None, default: object) -> dict[str, object]:
    """The keys of a server as a configuration has them, in the order in which people read them, without empty
    maps, which say nothing."""
    tools = asked_tools(word, server.tools, server.passed, server.reading)
    keys = with_consent(server.ours, tools, word, default)
    if server.is_off:
        keys["disabled"] = Plain("true")
    order = [*_FIRST_KEYS, *sorted(keys.keys() - {*_FIRST_KEYS, *_LAST_KEYS}), *_LAST_KEYS]
    return {key: keys[key] for key in order if keys.get(key, {}) != {}}


def origin(server: ImportedServer, show: ShowPath) -> str:
    """The places where a server was found."""
    places = [
        ("" if each.host is GENERIC else f"{each.host.title}, ")
        + show(each.file)
        + (f' ("{clip(each.name)}")' if each.name != server.id else "")
        for each in server.found
    ]
    return f"From {'; '.join(places)}."


def describe_launch(server: FoundServer) -> str:
    """The program or the host of the URL, without anything that may be secret."""
    command, url = server.ours.get("command"), server.ours.get("url")
    if isinstance(url, str):
        scheme, _, rest = mask(url).partition("://")
        return clip(f"{scheme}://{re.split('[/?#]', rest)[0].rpartition('@')[2]}")
    words = command if isinstance(command, list) else [command] if isinstance(command, str) else []
    if not words:
        return "neither a command nor a URL"
    count = len(words) - 1
    program = mask(str(words[0])).rpartition("/")[2]
    return f"{clip(program)} ({count} argument{'' if count == 1 else 's'})"


def describe_tools(tools: ToolConsent) -> list[str]:
    """The restrictions of the tools in a sentence; none if there are no restrictions."""
    named = {word: getattr(tools, verdict) for verdict, word in _VERDICTS.items()}
    parts = [f"{', '.join(map(_pattern, rules))} {word}" for word, rules in named.items() if rules]
    if tools.default != "allow":
        parts.append(f"{'all others' if parts else 'all'} {_VERDICTS[tools.default]}")
    return [f"Tools: {'; '.join(parts)}."] if parts else []


def _pattern(rule: object) -> str:
    if isinstance(rule, dict):
        return f"{clip(str(rule.get('name')))} with some arguments"
    return clip(str(rule))
