"""Random numbers under random conditions: the verdict of the host, and those of readers of floats, of decimal numbers
and of JavaScript."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any

from msgspec import Raw

from config import Check, Condition
from host.jsonrpc.raw import value
from host.policy.conditions import conditions_hold, decode_arguments

SCRIPT = """
const cases = JSON.parse(require('fs').readFileSync(0, 'utf8'));
const holds = ([op, bound, text]) => {
  const n = JSON.parse(text);
  if (op === 'eq') return n === bound;
  if (op === 'in') return bound.includes(n);
  return (bound[0] === null || bound[0] <= n) && (bound[1] === null || n <= bound[1]);
};
process.stdout.write(JSON.stringify(cases.map(holds)));
"""


@dataclass(frozen=True)
class Case:
    op: str
    bound: Any
    """As it stands in the configuration: integers and floats."""
    text: str


BASE = (
    "0",
    "1",
    "-1",
    "10",
    "0.1",
    "0.3",
    "1.5",
    "100",
    "9007199254740992",
    "9007199254740993",
    "1e22",
    "1e23",
    "1e-7",
)


def a_case(random: Random) -> Case:
    op = random.choice(("eq", "in", "range"))
    bounds = [json.loads(_text(random)) for _ in range(2)]
    bounds = [each if abs(each) < 1e300 else 1 for each in bounds]
    if op == "range":
        low, high = sorted(bounds)
        bound: Any = random.choice(((low, high), (None, high), (low, None)))
    else:
        bound = bounds[0] if op == "eq" else tuple(bounds)
    near = [each for each in bounds if random.random() < 0.7]
    text = _near(random, random.choice(near)) if near else _text(random)
    return Case(op, bound, text)


def _text(random: Random) -> str:
    return random.choice(
        (*BASE, repr(random.uniform(-5, 5)), str(random.randrange(-(2**55), 2**55)), f"{random.random():.3f}")
    )


def _near(random: Random, number: float) -> str:
    """Another way to write the number, or one beside it."""
    text = repr(number)
    return random.choice(
        (
            text,
            f"{Decimal(text):e}",
            f"{Decimal(text):f}" + ("" if "." in f"{Decimal(text):f}" else ".0"),
            f"{Decimal(text) + Decimal(random.choice((-1, 1))).scaleb(-random.choice((3, 17, 20, 30))):f}",
            f"{Decimal(text) + random.choice((-1, 1)):f}",
            f"{Decimal(number):f}"[:60],
            text + ("0" * random.choice((1, 50)) if "." in text and "e" not in text else ""),
        )
    )


def verdict(case: Case, *, looks: bool = True) -> bool | None:
    """The host's. Without `looks`, it compares what Python makes of the text."""
    raw = Raw(b'{"n":%b}' % case.text.encode())
    given = decode_arguments(raw) if looks else value(raw)
    if not looks:
        return _holds(case.op, case.bound, given["n"])  # type: ignore[index]  # an object
    return conditions_hold((Condition("/n", (Check(case.op, case.bound),)),), given)


def of_readers(cases: Sequence[Case], node: str | None) -> list[dict[str, bool]]:
    """By reader: whether each condition holds, for a server that compares the number with the one in the rule."""
    found = [
        {
            "float": _holds(case.op, _each(case.bound, float), float(case.text)),
            "decimal": _holds(case.op, _each(case.bound, lambda bound: Decimal(repr(bound))), Decimal(case.text)),
            "python": _holds(case.op, case.bound, json.loads(case.text)),
        }
        for case in cases
    ]
    if node is not None:
        given = json.dumps([[case.op, case.bound, case.text] for case in cases])
        told = subprocess.run([node, "-e", SCRIPT], input=given, stdout=subprocess.PIPE, check=True, text=True).stdout
        for each, said in zip(found, json.loads(told), strict=True):
            each["node"] = said
    return found


def _each(bound: Any, read: Any) -> Any:
    if isinstance(bound, tuple):
        return tuple(None if each is None else read(each) for each in bound)
    return read(bound)


def _holds(op: str, bound: Any, number: Any) -> bool:
    if op == "eq":
        return bool(number == bound)
    if op == "in":
        return number in bound
    low, high = bound
    return (low is None or low <= number) and (high is None or number <= high)


def may_be_unknown(case: Case) -> bool:
    """Whether readers may take another number for the text, or for one in the rule: the rule, in words of its own."""
    bounds = case.bound if isinstance(case.bound, tuple) else (case.bound,)
    if any(isinstance(each, int) and abs(each) > 2**53 for each in bounds):
        return True
    if case.text.lstrip("-").isdigit():
        return abs(int(case.text)) > 2**53
    written = Decimal(case.text)
    places = -int(written.normalize(None).as_tuple().exponent)
    return len(case.text) > 40 or places > 28 or written != Decimal(repr(float(case.text)))
