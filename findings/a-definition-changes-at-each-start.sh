#!/usr/bin/env bash
# The description of a server's only tool names its commands in another order each time the server starts.
#
# Packages: PyPI mcp-shell-server 1.1.14, mcp 1.30.0. Needs Python 3.11 with venv. No tool is called.
#
# Expected: the definition of a tool depends on the version of the server and on its configuration. With both the same,
# `tools/list` answers the same at every start, so a host can remember what a user has approved, and a cache of prompts
# stays valid.
#
# Seen on 2026-11-28: the description ends with the commands of ALLOW_COMMANDS, which are kept in a set of strings.
# Python orders such a set by hashes with a random seed for each process, so the order is another at each start, and
# not the configured one. Within one process it stays. A host that compares definitions reports a change at every
# start, although no word was added or removed. With PYTHONHASHSEED=0 in its environment all starts are the same.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp-shell-server==1.1.14 mcp==1.30.0 2>/dev/null

cat >check.py <<'PY'
import json
import os
import re
import subprocess
from typing import Any

COMMANDS = "cat,cut,date,echo,head,ls,pwd,sort,tail,tr,uniq,wc"


def start(**more: str) -> list[str]:
    """The answers of one process to two requests for its tools, as text."""
    env = {"PATH": os.environ["PATH"], "HOME": os.getcwd(), "ALLOW_COMMANDS": COMMANDS, **more}
    pipe = subprocess.PIPE
    command = ["venv/bin/mcp-shell-server"]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=env, text=True) as server:
        assert server.stdin and server.stdout

        def send(**message: Any) -> None:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            server.stdin.flush()

        client = {"name": "client", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        send(id=1, method="initialize", params=params)
        server.stdout.readline()
        send(method="notifications/initialized")
        texts = []
        for number in (2, 3):
            send(id=number, method="tools/list")
            texts.append(json.dumps(json.loads(server.stdout.readline())["result"]["tools"]))
        server.stdin.close()
    return texts


def show(title: str, starts: list[list[str]]) -> None:
    definitions = {text for texts in starts for text in texts}
    words = {tuple(sorted(re.findall(r"\w+", text))) for text in definitions}
    steady = all(len(set(texts)) == 1 for texts in starts)
    print(f"{title}: starts {len(starts)}, definitions {len(definitions)}, without order {len(words)}")
    print(f"  the same within a process: {steady}")
    print(f"  in the configured order: {any(COMMANDS.replace(',', ', ') in text for text in definitions)}")


show("as it is", [start() for _ in range(5)])
show("PYTHONHASHSEED=0", [start(PYTHONHASHSEED="0") for _ in range(5)])
PY
seen=$(venv/bin/python check.py)
echo "$seen"
[ "$seen" = "as it is: starts 5, definitions 5, without order 1
  the same within a process: True
  in the configured order: False
PYTHONHASHSEED=0: starts 5, definitions 1, without order 1
  the same within a process: True
  in the configured order: False" ]
