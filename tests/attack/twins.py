"""The attack on boundaries by members that some readers take for one another, in both directions.

A client sends the name of an allowed tool, and beside it another spelling with the name of a denied one, to a server
that reads as Go, .NET's web defaults and C strings do together: without case and forms of letters, up to a NUL, the
last of several. A server does the same with its requests and definitions, for a client that reads so. Beside them an
exact reader is called with other members, which must reach it.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from .attacks import at, program
from .boundary import Boundary
from .figures import Outcome
from .hostile_client import Target
from .phases import Scale
from .processes import Host
from .server import ALLOWED, DENIED, TWINS, lax, spellings_of

Call = Callable[[str], bytes]
"""Sends a call with these params, and returns the body of its response."""
OTHERS = 300
"""Members of other names that are sent to the exact reader, at scale 1."""
KNOWN = frozenset(("name", "arguments", "task", "_meta", "inputresponses", "requeststate"))


def calls_with_twins() -> Iterator[tuple[str, str]]:
    """Params of calls as JSON text, and what a lax reader finds in them."""
    for twin in spellings_of("name"):
        yield f'{{"name":"twins__{ALLOWED}",{twin}:"{DENIED}","arguments":{{}}}}', "name"
    for twin in spellings_of("arguments"):
        yield f'{{"name":"twins__{ALLOWED}","arguments":{{}},{twin}:{{"path":"{DENIED}"}}}}', "arguments"


def twins(scale: Scale, place: Path) -> Outcome:
    """Members that a lax reader takes for the judged ones, from clients and from servers."""
    with ExitStack() as stack:
        attack = Boundary("twins", scale, stack)
        folder = place / "twins"
        consent = {"tools": {"allow": [ALLOWED, "twin*", "other"], "deny": [DENIED]}, "elicitation": "allow"}
        server = program("twins", "twins", folder / "control", trust="trusted", consent=consent)
        host = attack.host(Host(folder, {"good": program("good", "good"), "twins": server}))
        host.wait_ready()
        with attack.good_calls(host.url) as calls:
            session = Target(host.url, None).open(capabilities={"elicitation": {}})

            def call(params: str) -> bytes:
                return session.post(f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'.encode())[1]

            # From clients. The server notes each call in which what is denied has reached it.
            sent = list(calls_with_twins())
            for params, _ in sent:
                call(params)
            found = [json.dumps(lax(json.loads(params, object_pairs_hook=list))[which]) for params, which in sent]
            blind = sum(DENIED not in read for read in found)
            attack.remarks.append(f"{len(sent)} calls with a second spelling of a member")
            if blind:
                attack.broken.append(f"the lax reader would not have found what is denied in {blind} of them")
            _check_reader(attack, host, call)
            if read := host.noted(f"read {DENIED}"):
                attack.crossed.append(f"{read} calls for what is denied reached a lax reader")

            # From servers: requests in the middle of a call, and definitions.
            plain = _messages_in(call(f'{{"name":"twins__{ALLOWED}","arguments":{{"twin":-1}}}}'))
            if not any(DENIED not in message and "other member" in message for message in plain):
                attack.broken.append("a request without twins did not reach the client with its other member")
            shown = [
                message
                for number in range(len(TWINS))
                for message in _messages_in(call(f'{{"name":"twins__{ALLOWED}","arguments":{{"twin":{number}}}}}'))
            ]
            asked = host.noted("asked")
            attack.remarks.append(f"{asked - 1} requests with a second spelling of a member")
            if asked != len(TWINS) + 1:
                attack.broken.append(f"the server sent {asked} requests, expected {len(TWINS) + 1}")
            if shown:
                attack.crossed.append(f"{len(shown)} requests reached the client: {shown[0][:200]}")
            listed = session.post(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}')[1].decode()
            if f"twins__{ALLOWED}" not in listed or "twins__other" not in listed:
                attack.broken.append("the sound tool is not listed")
            if DENIED in listed:
                attack.crossed.append("the list has a definition that a lax reader takes for another one")

            _call_exact_reader(attack, at(scale.factor, OTHERS), call)
            session.close()
        return attack.outcome(calls)


def _check_reader(attack: Boundary, host: Host, call: Call) -> None:
    """The server reads laxly, as far as it is let: a member that is not known reaches it."""
    call(f'{{"name":"twins__{ALLOWED}","arguments":{{}},"other":1}}')
    if not host.noted("read other"):
        attack.broken.append("a member that is no twin did not reach the server")


def _call_exact_reader(attack: Boundary, count: int, call: Call) -> None:
    chance = random.Random(1)
    refused = 0
    for number in range(count):
        name = "".join(chance.choices(string.ascii_letters + "_-. é", k=chance.randint(1, 9)))
        if name.casefold() in KNOWN:
            continue
        params = f'{{"name":"good__echo",{json.dumps(name)}:1,"arguments":{{"n":{number},{json.dumps(name + "x")}:1}}}}'
        refused += f'"text": "{number}"'.encode() not in call(params)
    if refused:
        attack.broken.append(f"{refused} of {count} calls with other members did not reach an exact reader")


def _messages_in(body: bytes) -> list[str]:
    """The requests to the client in the response to a call."""
    lines = [line.removeprefix("data: ") for line in body.decode().splitlines() if "elicitation/create" in line]
    return [json.dumps(json.loads(line)["params"]) for line in lines]
