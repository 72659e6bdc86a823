"""A second judge, to hold the first against: written from the description of consent alone, sharing no code with the
host, as plainly as can be and with no thought of speed. Beside it, random cases that lie where the two could differ.

What servers make of a URI is told by `uri_models.py`. Answers to tests of arguments are "yes", "no" and "unknown".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from typing import Any

from config import Check, Condition, Consent, Elicitation, KindConsent, Rule, ToolClaim, Trust, Verdict
from tests import uri_models

TABLE = """
    tools      allow allow ask
    resources  allow allow ask
    prompts    allow allow ask
    sampling   allow ask   deny
    form       allow allow deny
    url        allow ask   deny
    roots      allow allow deny
"""
"""What goes without saying for a trusted, a standard and an untrusted server."""

UNTOLD = object()
"""Of a tool whose claims do not count."""
WEB = ("file", "ftp", "http", "https", "ws", "wss")
LONGEST = 8192


@dataclass(frozen=True)
class Opinion:
    """`rules` are those that could be named as the ones that decided; if none of a list, `said` is what did. Not
    `exact`: it is about a URI that servers read in several ways, and a judge that knows more of them may be stricter.
    """

    verdict: str
    rules: tuple[Rule, ...] = ()
    said: str = ""
    shown: bool = True
    exact: bool = True


# Judging


def opinion(
    consent: Consent, trust: Trust, word: str, name: str, given: object, told: object = UNTOLD, caller: str = ""
) -> Opinion:
    """`word` is that of the kind in the file. `told` are the annotations of a tool, if a person approved them or trusts
    the server; else UNTOLD, whatever they are. `caller` is its name in the file, empty if it has none there."""
    if word in ("sampling", "form"):
        configured = consent.elicitation.form if word == "form" else consent.sampling
        if configured is not None:
            return Opinion(str(configured), said="word")
        return Opinion(by_trust(word, trust), said="trust")
    kind: KindConsent = consent.elicitation.url if word == "url" else getattr(consent, word)
    if word == "url" and trust != "trusted" and not is_page(name):
        return Opinion("deny", said="page", shown=False)
    if (kind.allow or kind.ask or kind.deny) and len(name) > LONGEST:
        return Opinion("deny", said="length", shown=False)
    uris = word in ("resources", "url", "roots")
    kind = for_caller(kind, caller)
    written = one_reading(kind, trust, word, lower_case(name) if uris else name, given, uris, told)
    lax = lax_readings(kind, trust, word, name, given) if uris else []
    if not uris or (PLAIN_URI.fullmatch(name) and not lax):
        return written
    opinions = [written, *lax]
    for text in uri_models.understood(name):
        of_it = one_reading(kind, trust, word, lower_case(text), given, uris)
        # What few take the URI for denies and asks; whether it has to be allowed as well is not known here.
        opinions += [of_it] if of_it.rules and of_it.verdict != "allow" else []
    for verdict in ("deny", "ask", "allow"):
        for each in opinions:
            if each.verdict == verdict:
                return replace(each, exact=False)
    raise AssertionError("there is always a verdict")


def for_caller(kind: KindConsent, caller: str) -> KindConsent:
    """The rules that are there for this caller. A list of which none is left is still a list."""

    def left(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        return tuple(rule for rule in rules if len(rule.callers) == 0 or caller in rule.callers)

    return replace(
        kind, allow=None if kind.allow is None else left(kind.allow), ask=left(kind.ask), deny=left(kind.deny)
    )


def lax_readings(kind: KindConsent, trust: Trust, word: str, name: str, given: object) -> list[Opinion]:
    """What the lists that restrict say of a file on a file system that ignores case and the like. Their patterns are
    read without, too."""
    deny, ask = (
        [(replace(rule, pattern=uri_models.lax(rule.pattern)), rule) for rule in of] for of in (kind.deny, kind.ask)
    )
    lists = KindConsent(None, tuple(lax for lax, _ in ask), tuple(lax for lax, _ in deny))
    found: list[Opinion] = []
    for text in {lower_case(name), *uri_models.understood(name)}:
        if text.startswith("file:"):
            said = one_reading(lists, trust, word, uri_models.on_lax_disk(text), given, True)
            rules = tuple(rule for lax, rule in (*deny, *ask) if lax in said.rules)
            found += [replace(said, rules=rules)] if rules else []
    return found


PLAIN_URI = re.compile(
    r"((?!file:)[a-z][a-z0-9]*://[a-z]+|file://)(/\.?[a-z0-9_{}-]+(\.[a-z0-9_{}-]+)*)+", re.IGNORECASE
)
"""What is read in one way by everybody."""


def lower_case(uri: str) -> str:
    """The URI with scheme, and the host of a web address, in lower case: the case of these means nothing."""
    scheme, colon, rest = uri.partition(":")
    if not colon or not scheme[:1].isalpha() or not all(letter.isalnum() or letter in "+.-*?" for letter in scheme):
        return uri
    if scheme.lower() in WEB and rest.startswith("//"):
        host = re.split("[/?#]", rest[2:], maxsplit=1)[0]
        rest = "//" + host.lower() + rest[2 + len(host) :]
    return scheme.lower() + colon + rest


def one_reading(
    kind: KindConsent, trust: Trust, word: str, text: str, given: object, uris: bool, told: object = UNTOLD
) -> Opinion:
    sure_enough = {"deny": ("yes", "unknown"), "ask": ("yes", "unknown"), "allow": ("yes",)}
    named = {
        verdict: [
            rule
            for rule in rules or ()
            if fits(rule.pattern, text, uris) and claimed(rule, told) in sure_enough[verdict]
        ]
        for verdict, rules in (("deny", kind.deny), ("ask", kind.ask), ("allow", kind.allow))
    }
    if kind.default is not None:
        rest, said = str(kind.default), "default"
    elif kind.allow is not None:
        rest, said = "deny", "list"
    else:
        rest, said = by_trust(word, trust), "trust"
    if any(not is_conditional(rule) for rule in named["deny"]):
        shown = False
    elif named["ask"] or named["allow"]:
        shown = True
    else:
        shown = rest != "deny"
    for verdict in ("deny", "ask", "allow"):
        matching = tuple(rule for rule in named[verdict] if answer(rule, given) in sure_enough[verdict])
        if matching:
            return Opinion(verdict, matching, shown=shown)
    return Opinion(rest, said=said, shown=shown)


def by_trust(word: str, trust: Trust) -> str:
    for line in TABLE.split("\n"):
        if line.split()[:1] == [word]:
            return line.split()[1 + ["trusted", "standard", "untrusted"].index(str(trust))]
    raise AssertionError(word)


def is_conditional(rule: Rule) -> bool:
    return rule.closed or len(rule.when) > 0


# Claims


def claimed(rule: Rule, told: object) -> str:
    """Whether a tool with these annotations is all that the rule wants."""
    if not rule.claims:
        return "yes"
    if told is UNTOLD:
        return "unknown"
    said = told if isinstance(told, dict) else {}
    reads, stays = said.get("readOnlyHint") is True, said.get("openWorldHint") is False
    true = {
        "read-only": reads,
        "destructive": not reads and said.get("destructiveHint") is not False,
        "closed-world": stays,
        "open-world": not stays,
    }
    return yes(all(true[claim] for claim in rule.claims))


# Patterns


def fits(pattern: str, text: str, uris: bool) -> bool:
    return translated(pattern, uris).fullmatch(text) is not None


@lru_cache(maxsize=1024)
def translated(pattern: str, uris: bool) -> re.Pattern[str]:
    if uris:
        scheme, colon, rest = pattern.partition(":")
        rest = colon + rest
        if colon and scheme[:1].isalpha() and all(letter.isalnum() or letter in "+.-*?" for letter in scheme):
            if scheme.lower() in WEB and rest.startswith("://"):
                host, slash, path = rest[3:].partition("/")
                rest = "://" + host.lower() + slash + path
            pattern = scheme.lower() + rest
    expression = ""
    while pattern:
        if pattern.startswith("*"):
            shorter = pattern.lstrip("*")
            expression += ".*" if not uris or len(pattern) - len(shorter) > 1 else "[^/]*"
            pattern = shorter
            continue
        if pattern[0] == "?":
            expression += "[^/]" if uris else "."
        else:
            expression += re.escape(pattern[0])
        pattern = pattern[1:]
    return re.compile(expression, re.DOTALL)


# Arguments


def answer(rule: Rule, given: object) -> str:
    """Of a closed rule, arguments beyond those named are doubt, whatever else is true of them."""
    if given is None:
        given = {}
    if not isinstance(given, dict):
        return "unknown" if is_conditional(rule) else "yes"
    if rule.closed:
        for argument in given:
            if not any(names_it(condition.path, argument) for condition in rule.when):
                return "unknown"
    answers = [test(check, found(condition.path, given)) for condition in rule.when for check in condition.checks]
    if "no" in answers:
        return "no"
    return "unknown" if "unknown" in answers else "yes"


def names_it(path: str, argument: str) -> bool:
    escaped = "/" + argument.replace("~", "~0").replace("/", "~1")
    return path == escaped or path.startswith(escaped + "/")


def found(path: str, given: Any) -> list[Any]:
    """A list with what stands there, or an empty one."""
    for step in path.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(given, list) and step in [str(number) for number in range(len(given))]:
            given = given[int(step)]
        elif isinstance(given, dict) and step in given:
            given = given[step]
        else:
            return []
    return [given]


def test(check: Check, at: list[Any]) -> str:
    if check.op == "absent":
        return "no" if at else "yes"
    if not at:
        return "unknown"
    wanted: Any = check.value
    return TESTS[check.op](wanted, at[0])


def yes(what: object) -> str:
    return "yes" if what else "no"


def kind_of(value: object) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def equals(wanted: Any, value: Any) -> str:
    """Whatever is not null is known not to be null; for the rest, to compare needs one type."""
    if wanted is not None and kind_of(wanted) != kind_of(value):
        return "unknown"
    if kind_of(wanted) == kind_of(value) == "number":
        return ordered(value, wanted, "=")
    return yes(kind_of(wanted) == kind_of(value) and wanted == value)


def is_rounded(value: Any) -> bool:
    """Whether some readers take another number for this one, because a float cannot tell it from its neighbours."""
    return type(value) is int and abs(value) > 9007199254740992


def ordered(value: Any, wanted: Any, signs: str) -> str:
    """Whether the order of two numbers is one of the signs; unknown if readers take one of them for another number."""
    if is_rounded(value):
        return "unknown"
    orders = {"<" if value < each else ">" if value > each else "=" for each in (wanted, float(wanted))}
    return yes(orders.pop() in signs) if len(orders) == 1 else "unknown"


def one_of(wanted: Any, value: Any) -> str:
    answers = [equals(each, value) for each in wanted]
    for word in ("yes", "unknown"):
        if word in answers:
            return word
    return "no"


def of_text(say: Callable[[str, str], bool]) -> Callable[[Any, Any], str]:
    return lambda wanted, value: yes(say(wanted, value)) if kind_of(value) == "string" else "unknown"


def in_range(wanted: Any, value: Any) -> str:
    if kind_of(value) != "number" or is_rounded(value):
        return "unknown"
    low = "yes" if wanted[0] is None else ordered(value, wanted[0], ">=")
    high = "yes" if wanted[1] is None else ordered(value, wanted[1], "<=")
    if "no" in (low, high):
        return "no"
    return "unknown" if "unknown" in (low, high) else "yes"


def short_enough(wanted: Any, value: Any) -> str:
    return yes(len(value) <= wanted) if kind_of(value) in ("string", "array") else "unknown"


def has_type(wanted: Any, value: Any) -> str:
    if wanted == "integer":
        return yes(kind_of(value) == "number" and value == int(value))
    return yes(wanted == kind_of(value))


def under(wanted: Any, value: Any) -> str:
    if kind_of(value) != "string":
        return "unknown"
    places: list[str] = []
    for text in (value, decoded(value)):
        place = resolved(text)
        if place is None:
            return "unknown"
        places.append(yes(any((place + "/").startswith(root.rstrip("/") + "/") for root in wanted)))
    return places[0] if places[0] == places[1] else "unknown"


def decoded(text: str) -> str:
    out = bytearray()
    while text:
        if re.match("%[0-9a-fA-F]{2}", text):
            out.append(int(text[1:3], 16))
            text = text[3:]
        else:
            out += text[0].encode()
            text = text[1:]
    return out.decode()


def resolved(path: str) -> str | None:
    if not path.startswith("/") or "\0" in path or "\\" in path or "/~" in path:
        return None
    while "//" in path:
        path = path.replace("//", "/")
    place: list[str] = []
    for step in path.strip("/").split("/"):
        if step == ".." and not place:
            return None
        if step == "..":
            place = place[:-1]
        elif step not in (".", ""):
            place = [*place, step]
    return "/" + "/".join(place)


def host_in(wanted: Any, value: Any) -> str:
    host = host_of(value) if kind_of(value) == "string" else None
    return "unknown" if host is None else yes(host in wanted)


def host_of(text: str) -> str | None:
    if "\\" in text or " " in text:
        return None
    if "://" in text:
        scheme, _, text = text.partition("://")
        if scheme.lower() not in ("http", "https", "ws", "wss", "ftp"):
            return None
        if "/" not in text.split("@")[0] and "@" in text:
            return None
        text = text.replace("?", "/").replace("#", "/").split("/")[0]
    name, colon, port = text.partition(":")
    if (colon and not (port.isascii() and port.isdigit() and int(port) < 65536)) or not name:
        return None
    name = name.lower()
    if name.endswith("."):
        name = name[:-1]
    if "" in name.split(".") or any(letter not in "abcdefghijklmnopqrstuvwxyz0123456789.-_" for letter in name):
        return None
    last = name.split(".")[-1]
    if last.isdigit() or last.startswith("0x"):
        numbers = name.split(".")
        plain = len(numbers) == 4 and all(each.isdigit() and str(int(each)) == each for each in numbers)
        return name if plain and all(int(each) < 256 for each in numbers) else None
    return name


def is_page(uri: str) -> bool:
    scheme = uri.split(":")[0].lower()
    host = host_of(uri) if "://" in uri else None
    return (
        len(uri) <= LONGEST
        and host is not None
        and (scheme == "https" or (scheme == "http" and host in ("localhost", "127.0.0.1")))
    )


TESTS: dict[str, Callable[[Any, Any], str]] = {
    "eq": equals,
    "in": one_of,
    "prefix": of_text(lambda wanted, value: value[: len(wanted)] == wanted),
    "suffix": of_text(lambda wanted, value: value[len(value) - len(wanted) :] == wanted and len(value) >= len(wanted)),
    "glob": of_text(lambda wanted, value: fits(wanted, value, False)),
    "range": in_range,
    "max_len": short_enough,
    "type": has_type,
    "path_under": under,
    "host_in": host_in,
}


# Cases


@dataclass(frozen=True)
class Case:
    """One request. `word` is that of the kind in the file. `annotations` are those of a tool, None if it has none;
    `counts`: a person approved them, or trusts its server. `caller`: who calls, empty if the file has no name for it.
    """

    consent: Consent
    trust: Trust
    word: str
    name: str
    given: object
    annotations: object = None
    counts: bool = False
    caller: str = ""


WORDS = ("tools", "tools", "tools", "prompts", "prompts", "resources", "resources", "sampling", "form", "url", "roots")
NAMES = ("get_issue", "get_repo", "create_issue", "delete_repo", "get", "a/b", "", "get_issue\n", "a.b", "GET_issue")
URIS = (
    *("repo://acme/x", "repo://acme/x/y", "repo://acme/../evil", "repo://acme/%2e%2e/evil", "repo://acme//x"),
    *("repo://evil/x", "REPO://acme/.env", "repo://acme/a/.env", "repo://{owner}/x", "notes:1", "Notes:1", "a/b/../c"),
)
PAGES = (
    *("https://host/a", "https://HOST/a", "https://host/a/../b", "https://other.host/a?b", "https://host:443/a"),
    *("http://host/a", "http://localhost:80/a", "http://127.0.0.1/a", "javascript:alert(1)", "data:text/html,x"),
    *("https://host@evil/a", "https://evil\\@host/a", "https:///a", "http://0x7f.1/a", "https://host:99999/a", "host"),
)
ROOTS = (
    "file:///home/me/project",
    "file:///home/me/project/x",
    "file:///home/me/../you",
    "FILE:///home/me",
    "file:///",
)
PATHS = (
    *("/home/me", "/home/me/x", "/home/me-evil/x", "/home/me/../you", "/home/me/../me/x", "/home//me/./x", "/home"),
    *("/home/me/%2e%2e/you", "/home%2fme/x", "/../home/me", "/home/me/a\\b", "/home/me/%00", "~/x", "home/me", "/"),
    *("/home/me/~x", "/srv/data/", "/srv/../home/me", "/home/me/%2e%2e/%2e%2e/srv/data", "file:///home/me"),
)
HOSTS = (
    *("example.com", "https://example.com", "https://EXAMPLE.com:8443/x", "https://example.com.evil.org/", "127.0.0.1"),
    *(
        "https://example.com@evil.org/",
        "https://example.com./x",
        "http://0177.0.0.1/",
        "example.com:80",
        "http://127.1",
    ),
    *("https://evil.org/example.com", "ssh://example.com/", "https://example.com:x/", "", "https://ex%61mple.com/"),
)
TEXTS = ("acme", "evil", "ACME", "acme-x", "", "1", "true", "dräft", "x acme")
PLAIN = (0, 1, 1.0, 2, 2.5, -3, 10**20, 2**53, 2**53 + 1, -(2**60), True, False, None)
ODD: tuple[Any, ...] = ([], [1], ["acme", 2, 3], {}, {"deep": "acme"})
PLACES = ("/owner", "/n", "/path", "/url", "/opt/deep", "/list/0", "/list", "/a~1b", "/opt", "/m~0n")
HINTS: tuple[Any, ...] = (True, True, True, False, False, False, None, "true", "false", 0, 1, [True], {})
"""Values of a claim, only two of which claim anything."""
CALLERS = ("ci", "laptop", "phone")
"""Names of callers, the last of which no rule has."""
TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")


def cases(random: Random) -> Iterator[Case]:
    """For ever; a few after each other are requests under the same consent."""
    while True:
        consent, trust = a_consent(random), random.choice(tuple(Trust))
        for _ in range(16):
            word = random.choice(WORDS)
            name = a_text(random, word)
            given = some_arguments(random) if word in ("tools", "prompts") else None
            annotations = some_annotations(random) if word == "tools" else None
            counts = word == "tools" and random.random() < 0.7
            yield Case(consent, trust, word, name, given, annotations, counts, random.choice(("", *CALLERS)))


def a_consent(random: Random) -> Consent:
    kinds = {word: a_kind(random, word) for word in ("tools", "prompts", "resources", "url", "roots")}
    words = {word: random.choice((None, *Verdict)) for word in ("sampling", "form")}
    elicitation = Elicitation(words.pop("form"), kinds.pop("url"))
    return Consent(**kinds, **words, elicitation=elicitation)  # type: ignore[arg-type]  # each has the type of its key


def a_kind(random: Random, word: str) -> KindConsent:
    if random.random() < 0.1:
        return KindConsent(default=random.choice((None, *Verdict)))
    allow = some_rules(random, word) if random.random() < 0.5 else None
    default = random.choice(tuple(Verdict)) if random.random() < 0.3 else None
    return KindConsent(allow, some_rules(random, word), some_rules(random, word), default)


def some_rules(random: Random, word: str) -> tuple[Rule, ...]:
    return tuple(a_rule(random, word) for _ in range(random.choice((0, 0, 1, 1, 2, 3))))


def a_rule(random: Random, word: str) -> Rule:
    pattern = a_pattern(random, word)
    claims = some_claims(random) if word == "tools" and random.random() < 0.4 else ()
    callers = random.choice((("ci",), ("laptop",), ("ci", "laptop"))) if random.random() < 0.3 else ()
    if word not in ("tools", "prompts") or random.random() < 0.4:
        return Rule(pattern, claims=claims, callers=callers)
    count = random.choice((0, 1, 1, 1, 2))
    when = tuple(a_condition(random) for _ in range(count))
    return Rule(pattern, when, random.random() < 0.3, claims, callers)


def some_claims(random: Random) -> tuple[ToolClaim, ...]:
    """As a file may have them: none beside its contrary."""
    effect = random.choice((None, ToolClaim.READ_ONLY, ToolClaim.READ_ONLY, ToolClaim.DESTRUCTIVE))
    world = random.choice((None, None, ToolClaim.CLOSED_WORLD, ToolClaim.OPEN_WORLD))
    return tuple(sorted(claim for claim in (effect, world) if claim is not None))


def a_pattern(random: Random, word: str) -> str:
    """A text of the kind with pieces of it replaced by what may stand for them."""
    text = a_text(random, word)[:60]
    for _ in range(random.choice((0, 1, 1, 2))):
        begin = random.randint(0, len(text))
        end = random.choice((begin, begin + 1, begin + 3, len(text)))
        text = text[:begin] + random.choice(("*", "*", "**", "?")) + text[end:]
    return text


def a_text(random: Random, word: str) -> str:
    pool = {"resources": URIS, "url": PAGES, "roots": ROOTS}.get(word, NAMES)
    text = random.choice(pool)
    chance = random.random()
    if chance < 0.1:
        at = random.randint(0, len(text))
        text = text[:at] + random.choice("a/_*?:.") + text[at + random.randint(0, 1) :]
    elif chance < 0.103:
        text += "x" * random.choice((LONGEST - len(text), LONGEST - len(text) + 1))
    return text


def a_condition(random: Random) -> Condition:
    place = random.choice(PLACES)
    return Condition(place, tuple(a_check(random, place) for _ in range(random.choice((1, 1, 2)))))


def a_check(random: Random, place: str) -> Check:
    """One that may well hold there."""

    def some(pool: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(random.choice(pool) for _ in range(random.randint(1, 3)))

    near = {"/path": ("path_under",), "/url": ("host_in",), "/n": ("eq", "in", "range", "type")}
    op = random.choice(near[place] if place in near and random.random() < 0.6 else (*TESTS, "absent"))
    values: dict[str, Callable[[], Any]] = {
        "eq": lambda: random.choice((*TEXTS, *PLAIN)),
        "in": lambda: some((*TEXTS, *PLAIN)),
        "prefix": lambda: random.choice(TEXTS)[:3],
        "suffix": lambda: random.choice(TEXTS)[-3:],
        "glob": lambda: random.choice(("acme*", "*", "?cme", "", "*e*", "1")),
        "range": lambda: random.choice(((0, 1), (None, 2), (1, None), (1.5, 10**20), (None, None), (3, 1))),
        "max_len": lambda: random.randint(0, 5),
        "type": lambda: random.choice(TYPES),
        "path_under": lambda: some(("/home/me", "/srv/data", "/home/me/x", "/")),
        "host_in": lambda: some(("example.com", "evil.org", "127.0.0.1")),
        "absent": lambda: True,
    }
    return Check(op, values[op]())


def some_annotations(random: Random) -> object:
    """Also such as contradict each other, and such as claim nothing."""
    if random.random() < 0.2:
        return random.choice((None, {}, [], "readOnlyHint", True, {"readOnlyHint": {"readOnlyHint": True}}))
    hints = ("readOnlyHint", "destructiveHint", "openWorldHint", "idempotentHint", "title", "ReadOnlyHint")
    return {hint: random.choice(HINTS) for hint in hints if random.random() < 0.5}


def some_arguments(random: Random) -> object:
    chance = random.random()
    if chance < 0.05:
        return random.choice((None, [], "x", object()))
    pool = {"path": PATHS, "url": HOSTS, "n": PLAIN, "opt": ODD, "list": ODD}
    names = ("owner", "n", "path", "url", "opt", "list", "a/b", "m~n", "other")
    given: dict[str, object] = {}
    for name in names:
        if random.random() < 0.4:
            near = pool.get(name, TEXTS)
            given[name] = random.choice(near if random.random() < 0.7 else (*TEXTS, *PLAIN, *ODD, *PATHS, *HOSTS))
    return given
