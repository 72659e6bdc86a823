"""The attacks on boundaries. Each proves that it would have seen a crossing: the file that is allowed is read, the
approval of the user works, the servers did try.

The good client makes calls meanwhile, for its errors alone; there is no yardstick here.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from tests.kit.processes import ProcessState, all_states, descendants
from tests.real.running import COLONNADE, until

from .attacks import GOOD, at, program
from .boundary import Boundary
from .figures import Outcome
from .hostile_client import Target, message
from .phases import Scale
from .processes import Host, Script
from .server import decide_all
from .twins import twins

SPELLINGS = 3000
GONE = 2.5
"""Seconds after which nothing is left of a host that was killed: two, and some more for a busy machine."""
PATIENCE = 30.0
"""Seconds for one command."""
TAKEN = 1.0
"""Seconds in which the host has taken a list that it has read."""
BAD = ("digits", "surrogate", "depth")
SUFFIXES = (
    *("", "?", "?x=1", "#", "#frag", "/", "/.", "/./", "//", "/..//.env", "?#", "#?", "?x#y", "/?x", "/#y", "/.?x"),
    *("?x=/..", "?/../public.txt", "#/../public.txt", "%3F", "%3f", "%23", "%2F", "%2f.", ";", ";x", ";x=1", "%20"),
    *("/./#", "%00", "\\"),
)
PREFIXES = ("file://", "file://", "FILE://", "File://", "file:", "file://localhost", "file:///", " file://")


def spellings(path: str, count: int, seed: int) -> list[str]:
    """URIs that a server may take for the file at this path: every suffix, and random combinations of what parsers
    undo."""
    chance = random.Random(seed)
    found = [f"file://{path}{suffix}" for suffix in SUFFIXES]
    while len(found) < count + len(SUFFIXES):
        parts = path.split("/")[1:]
        for _ in range(chance.randint(0, 2)):
            place = chance.randrange(len(parts) + 1)
            parts[place:place] = chance.choice((["."], [""], ["x", ".."], ["%2e"], ["x", "%2E%2E"], ["..", ".."]))
        text = "/" + "/".join(parts)
        encoded = chance.choice((0.0, 0.0, 0.05, 0.3, 1.0))
        text = "".join(f"%{ord(one):02x}" if one not in "/%" and chance.random() < encoded else one for one in text)
        prefix = chance.choice(PREFIXES)
        found.append(prefix + text + chance.choice(SUFFIXES) + chance.choice(("", "", "?", "#", "/", "/.")))
    return found


def resources(scale: Scale, place: Path) -> Outcome:
    """A `deny` on resources, led around by other spellings of the same file."""
    with ExitStack() as stack:
        attack = Boundary("resource spellings", scale, stack)
        folder = place / "resources"
        snapshot = folder / "shelf"
        snapshot.mkdir(parents=True)
        secret = secrets.token_hex(16)
        (snapshot / ".env").write_text(secret)
        (snapshot / "public.txt").write_text("what anybody may read")
        consent = {"resources": {"allow": [f"file://{snapshot}/**"], "deny": ["**/.env"]}}
        servers = {"good": program("good", "good"), "files": program("files", "files", consent=consent)}
        host = attack.host(Host(folder, servers))
        host.wait_ready()
        with attack.good_calls(host.url) as calls:
            session = Target(host.url, None).open()

            def read(uri: str) -> bytes:
                return session.post(message("resources/read", {"uri": f"files+{uri}"}))[1]

            if b"what anybody may read" not in read(f"file://{snapshot}/public.txt"):
                attack.broken.append("the file that is allowed cannot be read")
            tried = spellings(f"{snapshot}/.env", at(scale.factor, SPELLINGS), 1)
            through = [uri for uri in tried if secret.encode() in read(uri)]
            session.close()
        tails = [uri.replace(str(snapshot), "…") for uri in through[:8]]
        attack.remarks.append(f"{len(through)} of {len(tried)} spellings gave the file that is denied: {tails}")
        if through:
            attack.crossed.append(f"{len(through)} spellings lead around the rule")
        return attack.outcome(calls)


def second_host(scale: Scale, place: Path) -> Outcome:
    """Approval by a server's own process, at the admin sockets of two hosts of one user and by the command line."""
    with ExitStack() as stack:
        attack = Boundary("second host", scale, stack)
        folder = place / "second-host"
        control = folder / "control"
        servers = {
            "good": program("good", "good"),
            "spy": program("spy", "spy", control, trust="untrusted", sandbox="off"),
        }
        one = attack.host(Host(folder, servers))
        two = attack.host(Host(folder / "two", servers, state=one.state, file=one.file))
        one.wait_ready()
        two.wait_ready()
        orders = {"state": str(one.state), "config": str(one.file), "colonnade": COLONNADE}
        with attack.good_calls(one.url) as calls, one.ordered(orders):
            until(lambda: one.noted("done") == 2, "both servers have tried")
        attack.remarks += [text for _, _, text in one.notes() if text != "done"]
        if (tries := one.noted("child at")) < 4:
            attack.broken.append(f"{tries} tries at admin sockets, expected 4")
        for name, host in (("the first host", one), ("the second host", two)):
            if count := sum(name.startswith("spy__") for name in _listed(host)):
                attack.crossed.append(f"{name} lists {count} tools that nobody approved")
        if not attack.crossed:
            for path in (one.state / "run").glob("*.sock"):
                decide_all(path, "spy")  # as the user, who may
            with suppress_assertion(attack.broken, "the user cannot approve, so nothing was shown"):
                until(lambda: sum(name.startswith("spy__") for name in _listed(one)) == 5, "five tools", 5)
        return attack.outcome(calls)


def _listed(host: Host) -> list[str]:
    session = Target(host.url, None).open()
    try:
        return [tool["name"] for tool in json.loads(session.post(message("tools/list", {}))[1])["result"]["tools"]]
    finally:
        session.close()


@contextmanager
def suppress_assertion(broken: list[str], why: str) -> Iterator[None]:
    try:
        yield
    except AssertionError:
        broken.append(why)


def memory_of_the_host(scale: Scale, place: Path) -> Outcome:
    """The host's secrets, read by a server of the same user from /proc. The user is not root."""
    with ExitStack() as stack:
        attack = Boundary("environ and mem", scale, stack)
        folder = place / "reader"
        canary = f"CANARY-{secrets.token_hex(8)}"
        servers = {"good": program("good", "good"), "reader": program("reader", "reader", folder / "control")}
        tokens = {"good": GOOD, "secret": "${env:COLONNADE_CANARY}"}
        more: Mapping[str, Any] = {"listen": {"address": "127.0.0.1:0", "auth": {"tokens": tokens}}}
        host = Host(folder, servers, environment={"COLONNADE_CANARY": canary}, unprivileged=True, **more)
        attack.host(host).wait_ready()
        with attack.good_calls(host.url, "--token", GOOD) as calls:
            with host.ordered({"host": host.pid, "canary": canary}):
                until(lambda: host.noted("done"), "the server has looked everywhere")
        attack.remarks += [text for _, _, text in host.notes() if text != "done"]
        looks = {what: [text for text in attack.remarks if text.startswith(what)] for what in ("environ", "mem")}
        if not all(any(f"of {host.pid}:" in text for text in found) for found in looks.values()):
            attack.broken.append("the server did not look at the host")
        attack.crossed += [f"the canary is in {text.partition(':')[0]}" for text in attack.remarks if "CANARY" in text]
        return attack.outcome(calls)


def stopped_keeper(scale: Scale, place: Path) -> Outcome:
    """A server stops the keeper and all subreapers. Of two such hosts, one is killed, and one ended by SIGTERM."""
    with ExitStack() as stack:
        attack = Boundary("stopped keeper", scale, stack)

        def attacked(folder: Path) -> Host:
            servers = {"good": program("good", "good"), "stopper": program("stopper", "stopper", folder / "control")}
            return Host(folder, servers)

        killed, ended = attacked(place / "killed"), attack.host(attacked(place / "ended"))
        killed.start()
        stack.callback(killed.kill)
        for host in (killed, ended):
            host.wait_ready()
        with killed.ordered({"host": killed.pid}), ended.ordered({"host": ended.pid}):
            until(lambda: killed.noted("done") and ended.noted("done"), "both servers have stopped their keepers")
        with attack.good_calls(killed.url) as calls:
            pass
        states = all_states()
        below = {pid: states[pid] for pid in descendants(killed.pid, states)}
        stopped = sum(each.state == "T" for each in below.values())
        attack.remarks.append(f"{stopped} of {len(below)} processes below the host were stopped when it was killed")
        if stopped < 3 or len(below) < 6:
            attack.broken.append("the keeper, two subreapers and what is below them were not there and stopped")
        killed.running.process.kill()
        with suppress(AssertionError):
            until(lambda: not _left(below), "nothing is left", GONE)
        if left := _left(below):
            attack.crossed.append(f"{len(left)} processes outlive a killed host by {GONE:g} s")
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return attack.outcome(calls)


def _left(processes: Mapping[int, ProcessState]) -> list[int]:
    """Those that still run."""
    now = {pid: each.started for pid, each in all_states().items() if each.state != "Z"}
    return [pid for pid, each in processes.items() if now.get(pid) == each.started]


ADD, IMPORT = ("add", "time", "--", "true"), ("import", "--yes", "--secrets", "file")
CONNECT = ("connect", "gemini", "--project", "--yes")
INIT = ("init", "sub/colonnade.yaml")
LINKS: tuple[tuple[str, str, tuple[tuple[str, ...], ...]], ...] = (
    ("colonnade.yaml", ".profile", (ADD, IMPORT)),
    ("colonnade.yaml", ".config/autostart/x.yaml", (ADD, IMPORT)),
    ("colonnade.yaml", ".config/colonnade/colonnade.yaml", (ADD, (*IMPORT, "--merge"), ("remove", "mine"))),
    ("colonnade.secrets", ".ssh", (IMPORT,)),
    ("sub", ".config/autostart", (INIT,)),
    ("sub", ".config/missing", (INIT,)),
    (".gemini", ".gemini", (ADD, CONNECT)),
    (".gemini/settings.json", ".gemini/settings.json", (ADD, CONNECT)),
    (".gemini/settings.json", ".profile", (ADD, CONNECT)),
)
"""Links of a repository, each with what it leads to in the user's home folder, and commands that are run in it."""
PIPES = (("colonnade.yaml", ADD), (".mcp.json", IMPORT), (".gemini/settings.json", CONNECT))


def hostile_repository(scale: Scale, place: Path) -> Outcome:
    """Links and pipes of a repository that was cloned, in the way of the commands that write files."""
    with ExitStack() as stack:
        attack = Boundary("hostile repository", scale, stack)
        folder = place / "repository"
        host = attack.host(Host(folder / "host", {"good": program("good", "good")}))
        host.wait_ready()
        home = folder / "home"
        for name, text in (
            (".config/colonnade/colonnade.yaml", "servers:\n  mine:\n    command: x\n  other:\n    command: y\n"),
            (".gemini/settings.json", "{}\n"),
            (".ssh/config", ""),
            (".config/autostart/mine", ""),
        ):
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text)
        (home / ".ssh").chmod(0o700)
        clones = count()

        def clone() -> Path:
            project = home / "work" / str(next(clones))
            (project / ".git").mkdir(parents=True)
            theirs = {"command": "theirs", "env": {"API_KEY": "k" * 40}}
            (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"theirs": theirs}}))
            return project

        def run(project: Path, command: Sequence[str]) -> int | None:
            """Its exit code; None if it did not end."""
            environment = {"HOME": str(home), "PATH": os.environ["PATH"], "COLONNADE_STATE": str(folder / "state")}
            try:
                return subprocess.run(
                    [COLONNADE, *command],
                    cwd=project,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=PATIENCE,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                return None

        def own() -> dict[Path, bytes]:
            """The user's own files."""
            found = {each: each.read_bytes() for each in home.rglob("*") if each.is_file()}
            return {each: data for each, data in found.items() if not each.is_relative_to(home / "work")}

        with attack.good_calls(host.url) as calls:
            project = clone()
            done = [run(project, command) for command in (ADD, (*IMPORT, "--merge"), CONNECT)]
            written = [name for name in ("colonnade.yaml", ".gemini/settings.json") if (project / name).is_file()]
            if done != [0, 0, 0] or len(written) != 2 or b"theirs" not in (project / "colonnade.yaml").read_bytes():
                attack.broken.append(f"without links, the commands end with {done} and write {written}")
            before, tried = own(), 0
            for name, target, commands in LINKS:
                project = clone()
                (project / name).parent.mkdir(exist_ok=True)
                (project / name).symlink_to(home / target)
                for command in commands:
                    run(project, command)
                    tried += 1
                    if own() != before:
                        attack.crossed.append(f"{command[0]} wrote through {name} -> ~/{target}")
                        before = own()
            for name, command in PIPES:
                project = clone()
                (project / name).unlink(missing_ok=True)
                (project / name).parent.mkdir(exist_ok=True)
                os.mkfifo(project / name)
                tried += 1
                if run(project, command) is None:
                    attack.crossed.append(f"{command[0]} waits for the pipe {name}")
            attack.remarks.append(f"{tried} commands beside links and pipes")
        return attack.outcome(calls)


def bad_definition(scale: Scale, place: Path) -> Outcome:
    """One definition that Python clients cannot read, in the list that all servers share."""
    with ExitStack() as stack:
        attack = Boundary("bad definition", scale, stack)
        folder = place / "bad-definition"
        servers = {"good": program("good", "good"), "bad": program("bad-definition", "bad", folder / "control")}
        host = attack.host(Host(folder, servers))
        host.wait_ready()
        client = Script("sdk_client.py", host.url, isolated=False)
        stack.callback(client.close)

        def tools() -> list[str]:
            client.write("list")
            answer: dict[str, Any] = json.loads(client.read(30))
            return answer.get("tools") or [str(answer.get("error"))]

        with attack.good_calls(host.url) as calls:
            for kind in BAD:
                began = time.monotonic()
                with host.ordered({"kind": kind}):
                    until(partial(host.noted, f"listed {kind}"), f"the bad definition is listed ({kind})")
                    with suppress(AssertionError):  # a host that leaves the definition out shows nothing of it
                        until(lambda: _entries(host) == 11, "the bad definition is among the entries", TAKEN)
                    listed = tools()
                sound = sum(name.startswith("bad__sound") for name in listed)
                attack.remarks.append(f"{kind}: {len(listed)} tools" if sound == 10 else f"{kind}: {listed[0][:150]}")
                if sound != 10 or "good__echo" not in listed:
                    attack.broken.append(f"{kind}: the SDK's client got {sound} of 10 sound tools")
                until(partial(host.noted, "at rest", began), "the attack has ended")
                until(lambda: _entries(host) == 10, "the list is sound again")
        return attack.outcome(calls)


def _entries(host: Host) -> int:
    return int((host.status()["bad"].get("entries") or {}).get("tools", 0))


BOUNDARIES: dict[str, Callable[[Scale, Path], Outcome]] = {
    "resource spellings": resources,
    "second host": second_host,
    "environ and mem": memory_of_the_host,
    "stopped keeper": stopped_keeper,
    "hostile repository": hostile_repository,
    "bad definition": bad_definition,
    "twins": twins,
}
"""By name; each gets the scale and a folder."""
