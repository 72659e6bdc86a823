"""Tries the escapes in containers of an image that has a python3, and prints for each what held it. Ends with 1 if one
is not held.

    python -m tests.sandbox.containers podman IMAGE
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import tempfile
from pathlib import Path

import trio

from config import StdioServer
from config.environment import program_variables
from config.references import Secret
from config.sandbox import ContainerClient, Sandbox, SandboxFiles
from host.storage.directory import ConfigDirectory, open_state
from host.upstream.contained import contain
from host.upstream.containers import Containers
from host.wire.process import open_keeper
from tests.sandbox import hostile
from tests.sandbox.escapes import ESCAPES, MAY_BE_REFUSED, can_be_tried
from tests.sandbox.world import SOURCE, World, _outcome, open_world

NOT_TRIED = {*hostile._BESIDE_NAMES, "a_socket_to_what_runs_this_machine"}
"""A container cannot be given hosts by name, and the clients' filters of system calls permit AF_VSOCK."""


def run_in_container(world: World, escape: str, client: ContainerClient, image: str) -> str:
    """Have a hostile child try an escape; `out`, or `held` with what it met."""
    world.restore()
    files = SandboxFiles(read=(world.told["read"],), write=(world.told["write"],))
    token = secrets.token_hex(8)
    words = ("python3", "-I", "-S", "-c", SOURCE, escape, json.dumps({**world.told, "token": token}))
    spec = StdioServer(
        id="hostile",
        command=tuple(map(Secret, words)),
        cwd=world.base,
        sandbox=Sandbox(files=files, memory=256 * 1024**2, with_=client, image=image),
    )
    status, said, over = trio.run(
        _run, spec, open_state(world.base / "state").for_config(world.base / "colonnade.yaml")
    )
    return f"held: too much {over}" if over else _outcome(escape, said, status, token)


async def _run(spec: StdioServer, directory: ConfigDirectory) -> tuple[int, bytes, str]:
    """The status of the container, what it says, and what it was ended for having too much of."""
    given = {name: os.environ[name] for name in program_variables(spec.started_words) if name in os.environ}
    said = bytearray()
    async with open_keeper() as keeper:
        made = await contain(spec, given, directory, keeper)
        containers = Containers(directory.state / "containers", keeper)
        async with (
            containers.removing(made.argv, made.env, str(spec.cwd), made.name) as argv,
            keeper.open_child(argv, env=made.env, cwd=str(spec.cwd), container=made.watched, after=made.after) as child,
            trio.open_nursery() as nursery,
        ):
            child.close_stdin()
            nursery.start_soon(_print, child.stderr)
            async for data in child.stdout:
                said += data
            return await child.wait(), bytes(said), child.over


async def _print(stream: trio.abc.ReceiveStream) -> None:
    async for data in stream:
        print(data.decode(errors="replace"), end="", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description="Try escapes from containers.")
    parser.add_argument("client", type=ContainerClient)
    parser.add_argument("image")
    wanted = parser.parse_args()
    broken = []
    with tempfile.TemporaryDirectory(prefix="colonnade-sandbox-") as folder, open_world(Path(folder)) as world:
        for name in ("", "run", "configs"):  # as a host makes them
            (world.base / "state" / name).chmod(0o700)
        for escape in ESCAPES:
            if escape not in NOT_TRIED and can_be_tried(escape):
                control = world.run_unconfined(escape)
                said = run_in_container(world, escape, wanted.client, wanted.image)
                print(f"{escape:<36} {control[:10]:<10} {said}", flush=True)
                broken += [] if said.partition(":")[0] == "held" else [escape]
                broken += [] if control == "out" or escape in MAY_BE_REFUSED else [f"the control of {escape}"]
    print("not held:", *broken or ["none"])
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
