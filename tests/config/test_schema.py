"""The JSON Schema says the same as the loader."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

import config
from config.schema import known_keys
from tests.config.kit import lines, load_text
from tests.config.test_load import CONFIGURATIONS, EVERYWHERE, WHOLE

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"
PAGES = (DOCS, DOCS.with_name("views.md"))
TOP = "servers: {{a: {{command: x}}}}\n{}"
TOKEN = "0123456789abcdef"


@cache
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(config.schema())


EVERY_RULE = """\
ask:
  answers: [console, terminal, client]
  timeout: 5m
  notify: [desktop, {command: [tell, 1]}, {webhook: "https://example.com/hook", headers: {X-Key: "${env:K:-k}"}}]
console: {address: "127.0.0.1:0"}
audit: {arguments: full}
history: {arguments: redacted}
listen: {auth: {tokens: {t: 0123456789abcdef, "u": 123456789abcdef0}}}
callers: {c: {token: t}, d: {token: u}}
views:
  v:
    callers: [c, d]
    servers: {a: all, b: {tools: [x, "y*"], resources: all, prompts: z}}
    names: {style: plain, limit: 48}
    instructions: "Two\\nlines"
    overrides: {a: {t: {title: T}, p: {kind: prompt, arguments: {b: {default: text}}}}}
    search: auto
    search_above: 5
    pinned: [x]
  w: {callers: c, servers: all, search: on, pinned: x}
  x: {servers: {}, search: off}
default_view: w
servers:
  a:
    command: x
    overrides:
      t: {name: u, description: D, arguments: {b: hidden, c: {value: {d: [1, null]}}, e: {default: 1, description: E}}}
    limits: {calls: 100/5min, concurrent: 8, result: 64KiB, sampling: 20/h, sampling_tokens: 100000/day}
    consent:
      tools:
        allow:
          - plain
          - name: "*"
            when:
              a: text
              b: 1
              c: true
              d: null
              e: [x, 1.5, "1", false, null]
              /f/g: {eq: -1, in: [1], prefix: "1", suffix: a, glob: "a*", range: [null, 1.5], max_len: 0}
              h: {type: null, path_under: /srv, host_in: a.example}
              i: {type: array, path_under: [/srv, /tmp], host_in: ["::1", 127.0.0.1]}
              j: {absent: true}
              k: {prefix: "${env:S}"}
            closed: true
        ask: [{name: "plain?", callers: c}, {name: z, callers: [c, d]}]
        deny: ["plain??"]
        default: ask
      resources: {allow: ["a://**"], ask: [{uri: "b://**"}]}
      prompts: ask
      sampling: deny
      elicitation: {form: ask, url: {allow: ["https://a.example/**"]}}
      roots: {deny: ["file:///etc/**"]}
  b: {command: x, consent: ask}
  c: {command: x, consent: {elicitation: allow, roots: deny}}
"""


def documented() -> list[str]:
    """The YAML files that the documentation shows."""
    return [text for page in PAGES for text in re.findall(r"```yaml\n(.*?)```", page.read_text("utf-8"), re.DOTALL)]


def test_schema_is_a_schema() -> None:
    """The schema passes the metaschema, and every call gives a dictionary of its own."""
    jsonschema.Draft202012Validator.check_schema(config.schema())
    config.schema().clear()
    assert config.schema()["required"] == ["servers"]


def maps_of(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from maps_of(value)
    elif isinstance(node, list):
        for value in node:
            yield from maps_of(value)


def test_schema_describes_and_closes_everything() -> None:
    """Every key has a description, no map takes unknown keys, and nothing of Python shows."""
    made = config.schema()
    forms = [made, *made["$defs"].values()]
    objects = [node for form in forms for node in (form, *form.get("anyOf", [])) if "properties" in node]
    assert len(objects) == 40
    for node in objects:
        assert node["additionalProperties"] is False
        for name, key in node["properties"].items():
            assert "description" in key, name
    assert not [node for node in maps_of(made) if node.get("type") == "null" or node.get("default", "") is None]


@pytest.mark.disk
@pytest.mark.parametrize("text", [WHOLE, EVERYWHERE, EVERY_RULE, TOP.format("console: off"), *documented()])
def test_schema_takes_what_the_loader_takes(tmp_path: Path, text: str) -> None:
    """Example files, those of the documentation among them."""
    (tmp_path / "key").write_text("k")
    for name in ("ci.token", "metrics.token"):
        (tmp_path / name).write_text(f"{TOKEN}-ci\n")
    environ = dict.fromkeys(("TOKEN", "S", "HOME", "GITHUB_TOKEN", "PUSH_TOKEN"), "w")
    environ |= {"LAPTOP_TOKEN": TOKEN, "CI_TOKEN": f"{TOKEN}-ci"}
    environ |= {"DATABASE_URL": "postgresql://localhost/x", "FLEET_KEY": "0" * 64}
    load_text(tmp_path, text, environ)
    assert [error.message for error in validator().iter_errors(yaml.safe_load(text))] == []


@pytest.mark.parametrize("file", CONFIGURATIONS, ids=lambda file: file.parent.name)
def test_schema_takes_every_example(file: Path) -> None:
    assert [error.message for error in validator().iter_errors(yaml.safe_load(file.read_text("utf-8")))] == []


@pytest.mark.parametrize(
    ("path", "some"),
    [
        ((), {"servers", "listen", "audit"}),
        (("listen", "auth"), {"tokens"}),
        (("servers", "any"), {"command", "args", "url", "headers", "trust"}),
        (("servers", "any", "consent", "tools", "ask", 3), {"name", "when", "closed"}),
        (("servers", "any", "consent", "elicitation", "url", "deny", 0), {"uri"}),
        (("servers", "any", "consent", "prompts", "allow", 0, "when", "an argument"), {"eq", "in", "glob"}),
        (("servers", "any", "env"), set()),
        (("nowhere", 1, "x"), set()),
    ],
)
def test_known_keys(path: tuple[str | int, ...], some: set[str]) -> None:
    """An error message offers the keys of the map where it is; fields that are no keys of the file are never among
    them."""
    known = set(known_keys(path))
    assert known >= some
    assert bool(known) == bool(some)
    assert known.isdisjoint({"id", "declared", "source", "notices", "pattern", "in_"})


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "servers: {}",
        "servers: {A: {command: x}}",
        "servers: {abcdefghijklmnopqrstu: {command: x}}",
        "servers: {a: {}}",
        "servers: {a: {command: x, url: 'http://h/'}}",
        "servers: {a: {command: x, headers: {}}}",
        "servers: {a: {url: 'http://h/', env: {}}}",
        "servers: {a: {url: 'ftp://h/'}}",
        "servers: {a: {command: [x], args: []}}",
        "servers: {a: {command: []}}",
        "servers: {a: {command: x, timeout: 60}}",
        "servers: {a: {command: x, timeout: 60x}}",
        "servers: {a: {command: x, disabled: 'true'}}",
        "servers: {a: {command: x, consent: maybe}}",
        "servers: {a: {command: x, consent: {tools: {alow: []}}}}",
        "servers: {a: {command: x, consent: {tools: {allow: ['']}}}}",
        "servers: {a: {command: x, consent: {tools: {default: maybe}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{when: {a: b}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, closed: true}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: {}}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: []}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: {prefx: c}}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: {prefix: ''}}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: {range: [1]}}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: {range: ['1', 2]}}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: {max_len: -1}}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: {type: text}}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: {absent: false}}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: {absent: true, type: null}}}]}}}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, when: {b: {path_under: []}}}]}}}}",
        "servers: {a: {command: x, consent: {resources: {ask: [{uri: a, when: {b: c}}]}}}}",
        "servers: {a: {command: x, consent: {sampling: {allow: []}}}}",
        "servers: {a: {command: x, consent: {elicitation: {form: {allow: []}}}}}",
        "servers: {a: {command: x, limits: {calls: 60}}}",
        "servers: {a: {command: x, limits: {calls: 60/week}}}",
        "servers: {a: {command: x, limits: {concurrent: 0}}}",
        "servers: {a: {command: x, limits: {result: 1024}}}",
        "servers: {a: {command: x}}\nask: {answers: []}",
        "servers: {a: {command: x}}\nask: {answers: [client, client]}",
        "servers: {a: {command: x}}\nask: {answers: [phone]}",
        "servers: {a: {command: x}}\nask: {notify: [phone]}",
        "servers: {a: {command: x}}\nask: {notify: [{command: []}]}",
        "servers: {a: {command: x}}\nask: {notify: [{webhook: 'ftp://h'}]}",
        "servers: {a: {command: x}}\nask: {timeout: 50}",
        "servers: {a: {command: x}}\nconsole: maybe",
        "servers: {a: {command: x}}\nconsole: {address: here}",
        "servers: {a: {command: x}}\naudit: {arguments: none}",
        "servers: {a: {command: x}}\naudit: {keep: 90}",
        "servers: {a: {command: x}}\naudit: {max: 1TiB}",
        "servers: {a: {command: x, id: a}}",
        "servers: {a: {command: x, declared: x}}",
        "servers: {a: {command: x}}\nsource: x",
        "servers: {a: {command: x}}\nnotices: []",
        "servers: {a: {command: x, consent: {tools: {ask: [{pattern: a}]}}}}",
        "servers: {a: {command: x, consent: {roots: {ask: [{name: a}]}}}}",
        "servers: {a: {command: x}}\nlisten: {path: mcp}",
        "servers: {a: {command: x}}\nlisten: {address: here}",
        "servers: {a: {command: x}}\nlisten: {auth: {}}",
        "servers: {a: {command: x}}\nlisten: {auth: {tokens: {}}}",
        "servers: {a: {command: x}}\nlisten: {auth: {tokens: {a: short}}}",
        "servers: {a: {command: x}}\nlisten: {auth: {tokens: {a b: 0123456789abcdef}}}",
        "servers: {a: {command: x}}\nlisten: {sse: 1}",
        "servers: {a: {command: x, trust: none}}",
        "servers: {a: {command: x, protocol: 2026-07-29}}",
        "servers: {a: {command: x, isolation: per_client}}",
        "servers: {a: {command: x, max_instances: 4}}",
        "servers: {a: {url: 'http://h/', isolation: shared, idle_timeout: 5m}}",
        "servers: {a: {command: x, cwd: y, idle_timeout: 5m}}",
        "servers: {a: {command: x, cwd: '${client:folder}', isolation: per-call}}",
        "servers: {a: {command: x, cwd: '${client:folder}', eras: both}}",
        "servers: {a: {command: x, isolation: per-call, max_instances: 0}}",
        "servers: {a: {command: x, isolation: per-call, max_instances: 1001}}",
        "servers: {a: {command: x, isolation: per-call, max_instances: '4'}}",
        "servers: {a: {command: x}}\nother: 1",
        "servers: {a: {command: x}}\nviews: {A: {}}",
        "servers: {a: {command: x}}\nviews: {v: {callers: []}}",
        "servers: {a: {command: x}}\nviews: {v: {servers: [a]}}",
        "servers: {a: {command: x}}\nviews: {v: {servers: {a: {}}}}",
        "servers: {a: {command: x}}\nviews: {v: {servers: {a: some}}}",
        "servers: {a: {command: x}}\nviews: {v: {names: {style: bare}}}",
        "servers: {a: {command: x}}\nviews: {v: {names: {limit: 3}}}",
        "servers: {a: {command: x}}\nviews: {v: {search: maybe}}",
        "servers: {a: {command: x}}\nviews: {v: {search_above: 5}}",
        "servers: {a: {command: x}}\nviews: {v: {search: on, search_above: 5}}",
        "servers: {a: {command: x}}\nviews: {v: {search: off, pinned: x}}",
        "servers: {a: {command: x}}\nviews: {v: {pinned: x}}",
        "servers: {a: {command: x}}\nviews: {v: {instructions: ''}}",
        "servers: {a: {command: x}}\ncallers: {c: {}}",
        "servers: {a: {command: x}}\ncallers: {c: {token: 'a b'}}",
        "servers: {a: {command: x, consent: {tools: {ask: [{name: a, callers: []}]}}}}",
        "servers: {a: {command: x, sandbox: {network: a.test}}}",
        "servers: {a: {command: x, sandbox: {network: [a.test]}}}",
        "servers: {a: {command: x, sandbox: {network: ['https://a.test/']}}}",
        "servers: {a: {command: x, sandbox: {network: [{private: true}]}}}",
        "servers: {a: {command: x, overrides: {t: {}}}}",
        "servers: {a: {command: x, overrides: {t: {kind: resource, title: T}}}}",
        "servers: {a: {command: x, overrides: {t: {name: a b}}}}",
        "servers: {a: {command: x, overrides: {t: {arguments: {}}}}}",
        "servers: {a: {command: x, overrides: {t: {arguments: {a: {}}}}}}",
        "servers: {a: {command: x, overrides: {t: {arguments: {a: shown}}}}}",
        "servers: {a: {command: x, overrides: {t: {arguments: {a: {value: 1, default: 2}}}}}}",
        "servers: {a: {command: x, overrides: {t: {kind: tool}}}}",
    ],
)
def test_schema_refuses_what_the_loader_refuses(tmp_path: Path, text: str) -> None:
    """An editor underlines what a start would refuse."""
    assert lines(tmp_path, text)
    assert list(validator().iter_errors(yaml.safe_load(text)))


def test_every_key_is_documented() -> None:
    """The reference names each key of the form."""
    page = DOCS.read_text("utf-8")
    made = config.schema()
    keys = {key for node in maps_of(made) for key in node.get("properties", {})}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []
