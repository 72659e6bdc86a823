"""What configurations of former versions mean: their servers, with verdicts, rules and outward names.

`python -m tests.former.record` reads each distinct configuration of `examples/`, `docs/` and `README.md` in every
commit, of the corpus of the fuzzer, and of the texts in the tests, and writes the record that `test_record.py` holds
later versions to. It is made when a stage begins that changes what a configuration means, not when a test fails.
"""

from __future__ import annotations

import ast
import hashlib
import json
import lzma
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent

from config import Config, ConfigError, ServerSpec, load
from host.names import Names
from host.policy.rules import Rules
from host.protocol.methods import Kind
from host.protocol.server_requests import ServerRequest

RECORD = Path(__file__).with_name("record.json.xz")
HOME = Path("/home/former")
_ROOT = Path(__file__).parents[2]
_NAMES = ("search", "create_issue", "read file", "x" * 80)
_URIS = ("file:///srv/project/a.txt", "https://example.com/a?b=c", "note://n/1/")
_PATTERNS = re.compile(r"[\w*?./:${}-]+")
_JSON = re.compile(r"(?:\s*/[/*].*\n)*\s*\{\s*[\"/}]")
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)")
_FENCED = re.compile(r"^ *```(?:yaml|json)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"\$\{file:([\w.-]+)\}")


def read_text(text: str) -> Config:
    """Read a configuration of this text; all variables and files that it names are there.

    Raises:
        ConfigError: it has problems.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder, "colonnade.json" if _JSON.match(text.removeprefix("\ufeff")) else "colonnade.yaml")
        path.write_text(text)
        for name in _FILE.findall(text):
            Path(folder, name).write_text(f"content-of-{name}-0123456789")
        return load(path, {name: f"value-of-{name}-0123456789" for name in _VARIABLE.findall(text)}, home=HOME)


def meaning(config: Config, text: str) -> dict[str, list[str]]:
    """By server, its keys that decide, and lines of kind, name, verdict, rule and outward name for what it might offer:
    some fixed entries, and one for each word of the text that could be a pattern."""
    words = sorted({word.replace("*", "x").replace("?", "y") for word in _PATTERNS.findall(text)})
    return {id: _of_server(spec, words) for id, spec in config.servers.items()}


def digests(meant: dict[str, list[str]]) -> dict[str, str]:
    """By server, a digest of its lines."""
    return {id: hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12] for id, lines in meant.items()}


def _of_server(spec: ServerSpec, words: list[str]) -> list[str]:
    rules, names = Rules(spec.consent, spec.trust), Names({spec.id: spec})
    limits = {key: value for key, value in asdict(spec.limits).items() if value is not None}
    found = [f"{spec.trust} {spec.start} {limits} {spec.disabled} {bool(spec.problem)}"]
    for kind, fixed in ((Kind.TOOL, _NAMES), (Kind.PROMPT, _NAMES), (Kind.RESOURCE, _URIS)):
        rename = names.outward_uri if kind is Kind.RESOURCE else names.outward_name
        for name in (*fixed, *words):
            decision = rules.evaluate(kind, name, {})
            found.append(f"{kind} {name} {decision.verdict} {decision.rule} {rename(spec.id, name)}")
    for request in ServerRequest:
        for uri in _URIS if request in (ServerRequest.URL, ServerRequest.ROOTS) else (None,):
            decision = rules.evaluate_server_request(request, uri)
            found.append(f"{request} {uri} {decision.verdict} {decision.rule}")
    return found


def _texts() -> Iterator[str]:
    """Each configuration in any commit, and much else."""
    places = ("examples", "docs", "README.md", "tests")
    objects = [line.split(maxsplit=1) for line in _git("rev-list", "--objects", "HEAD", "--", *places).splitlines()]
    for object_id, path in (each for each in objects if len(each) == 2):
        if path.endswith(".md"):
            yield from _FENCED.findall(_git("cat-file", "blob", object_id))
        elif path.endswith(".py"):
            try:
                nodes = ast.walk(ast.parse(_git("cat-file", "blob", object_id)))
            except SyntaxError:  # of a later Python
                continue
            for node in nodes:
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value
        elif path.endswith((".yaml", ".json")) or path.startswith("tests/fuzz/corpus/config/"):
            yield _git("cat-file", "blob", object_id)


def _git(*arguments: str) -> str:
    found = subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, check=True)
    return found.stdout.decode(errors="replace")


def main() -> None:
    made: dict[str, dict[str, str]] = {}
    for text in dict.fromkeys(dedent(text) for text in _texts() if "ervers" in text and len(text) < 5000):
        try:
            made[text] = digests(meaning(read_text(text), text))
        except (ConfigError, ValueError):
            continue
    RECORD.write_bytes(lzma.compress(json.dumps(made, indent=0).encode(), preset=9))
    print(f"{len(made)} configurations, {RECORD.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
