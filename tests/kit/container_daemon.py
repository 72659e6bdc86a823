"""A stand-in for the clients of containers and their daemon: `docker` and `podman` in a folder, whose containers are
processes of the daemon, outside the keeper's tree, and nothing confines them. It records each order.

    python -m tests.kit.container_daemon FOLDER     until the end of its input; says where the clients are

A container outlives its client, and the end of its input, as with a daemon that was asked nothing else. A client knows
`run`, `rm`, `info`, `image inspect` and `ps`, which prints the names of the containers.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import trio

CLIENT = """
import json, os, secrets, socket, sys
words = sys.argv[1:]
daemon = socket.socket(socket.AF_UNIX)
try:
    daemon.connect(os.environ.get("DOCKER_HOST", DAEMON).removeprefix("unix://"))
except OSError:
    sys.exit("Cannot connect to the Docker daemon")
order = {"words": words}
if words[0] == "run":
    options = [word for word in words[1:] if word.startswith("--") and "=" in word]
    given = dict(word[2:].partition("=")[::2] for word in options)
    order["run"] = given.get("name") or secrets.token_hex(32)
    if "name" in given:
        rest = words[1 + next(at for at, word in enumerate(words[1:]) if not word.startswith("-")):]
        order["argv"] = [given["entrypoint"], *rest[1:]]
        names = [word[6:] for word in options if word.startswith("--env=")]
        values = [each.partition("=")[::2] if "=" in each else (each, os.environ[each]) for each in names]
        order["env"] = dict(values)
    else:
        order["argv"] = words[words.index("image") + 1:]
        try:
            with open(words[words.index("--cidfile") + 1], "x") as file:
                file.write(order["run"])
        except FileExistsError:
            sys.exit("docker: container ID file found")
socket.send_fds(daemon, [json.dumps(order).encode()], [0, 1] if words[0] == "run" else [])
answer = json.loads(daemon.makefile().read() or "{}")
sys.stdout.write(answer.get("output", ""))
sys.exit(answer.get("status", 0))
"""
INFO = {
    "ServerVersion": "0 (stand-in)",
    "OSType": "linux",
    "MemoryLimit": True,
    "PidsLimit": True,
    "SecurityOptions": ["name=seccomp,profile=builtin"],
}


class Daemon(socketserver.ThreadingUnixStreamServer):
    """Runs what clients order.

    Attributes:
        running: the containers by id or name.
        orders: the words of each client, in their order.
        info: what the clients say of it.
        images: those that are there.
        environment: the variables with which the clients are found, and find it.
    """

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.orders: list[list[str]] = []
        self.info: dict[str, Any] = dict(INFO)
        self.images = {"image"}
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in ("docker", "podman"):
            program = self.bin / name
            program.write_text(f"#!{sys.executable} -IS\nDAEMON = 'unix://{folder}/d.sock'{CLIENT}")
            program.chmod(0o755)
        self.environment = {"PATH": f"{self.bin}:{os.environ['PATH']}", "DOCKER_HOST": f"unix://{folder}/d.sock"}
        super().__init__(f"{folder}/d.sock", _Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def run(self, id: str, argv: list[str], files: list[int], env: dict[str, str] | None = None) -> int:
        """Run a container to its end."""
        self.running[id] = process = subprocess.Popen(
            argv, stdin=files[0], stdout=files[1], env=env, start_new_session=True
        )
        for each in files:
            os.close(each)
        return process.wait()

    def remove(self, id: str) -> bool:
        """End a container; whether there was one."""
        process = self.running.pop(id, None)
        if process is not None:
            process.kill()
            process.wait()
        return process is not None

    def answer(self, order: dict[str, Any], files: list[int]) -> dict[str, Any]:
        """The output of a client, and its status."""
        words = order["words"]
        self.orders.append(words)
        match words:
            case ["run", *_]:
                return {"status": self.run(order["run"], order["argv"], files, order.get("env"))}
            case ["rm", *_, id]:
                return {} if self.remove(id) else {"status": 1, "output": f"Error: No such container: {id}"}
            case ["info", *_]:
                return {"output": json.dumps(self.info)}
            case ["image", *_, name]:
                return {"output": f"sha256:{'0' * 64}"} if name in self.images else {"status": 1}
        return {"output": "".join(f"{name}\n" for name in list(self.running))}

    async def until_running(self, count: int = 1) -> None:
        """Wait until so many containers run, or fail."""
        with trio.fail_after(10):
            while len(self.running) < count:  # noqa: ASYNC110 - they are started in threads
                await trio.sleep(0.01)

    def close(self) -> None:
        """End all containers, and itself."""
        for id in list(self.running):
            self.remove(id)
        self.shutdown()
        self.server_close()


class _Handler(socketserver.BaseRequestHandler):
    server: Daemon

    def handle(self) -> None:
        data, files, *_ = socket.recv_fds(self.request, 65536, 2)
        if not data:
            return
        answer = self.server.answer(json.loads(data), files)
        try:
            self.request.sendall(json.dumps(answer).encode())
        except OSError:
            return  # the client was killed


def main() -> None:
    daemon = Daemon(Path(sys.argv[1]))
    print(json.dumps(daemon.environment), flush=True)
    sys.stdin.read()
    daemon.close()


if __name__ == "__main__":
    main()
