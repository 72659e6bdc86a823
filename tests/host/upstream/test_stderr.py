"""The reason that a failing server gives on its standard error, as programs write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.upstream.stderr import find_reason

PYTHON = """\
INFO starting
Traceback (most recent call last):
  File "/srv/server.py", line 3, in <module>
    import missing
ModuleNotFoundError: No module named 'missing'
"""
CHAINED = """\
Traceback (most recent call last):
  File "/srv/server.py", line 3, in connect
    sock.connect(address)
ConnectionRefusedError: [Errno 111] Connection refused

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/srv/server.py", line 9, in <module>
    main()
  File "/srv/server.py", line 6, in main
    raise RuntimeError("no database") from problem
RuntimeError: no database
"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/srv/server.py", line 12, in <module>
  |     anyio.run(main)
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/srv/server.py", line 8, in main
    |     raise ValueError("API_KEY is not set")
    | ValueError: API_KEY is not set
    +------------------------------------
"""
NODE = """\
node:internal/modules/cjs/loader:1148
  throw err;
  ^

Error: Cannot find module '/srv/index.js'
    at Module._resolveFilename (node:internal/modules/cjs/loader:1145:15)
    at Module._load (node:internal/modules/cjs/loader:986:27) {
  code: 'MODULE_NOT_FOUND',
  requireStack: []
}

Node.js v20.11.0
"""
NODE_THROWN = """\
/srv/index.js:3
  throw new TypeError("GITHUB_TOKEN is required");
  ^

TypeError: GITHUB_TOKEN is required
    at Object.<anonymous> (/srv/index.js:3:9)

Node.js v20.11.0
"""
DOCKER = """\
Unable to find image 'mcp/none:latest' locally
docker: Error response from daemon: pull access denied for mcp/none, repository does not exist
See 'docker run --help'.
"""
NPM = """\
npm error code E404
npm error 404 Not Found - GET https://registry.npmjs.org/@x%2fnone - Not found
npm error 404
npm error 404  '@x/none@*' is not in this registry.
npm error A complete log of this run can be found in: /home/me/.npm/_logs/x.log
"""
UV = """\
  × No solution found when resolving tool dependencies:
  ╰─▶ Because mcp-none was not found in the package registry, we can conclude that your requirements are unsatisfiable.
"""


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (PYTHON, "ModuleNotFoundError: No module named 'missing'"),
        (CHAINED, "RuntimeError: no database"),
        (GROUP, "ValueError: API_KEY is not set"),
        (NODE, "Error: Cannot find module '/srv/index.js'"),
        (NODE_THROWN, "TypeError: GITHUB_TOKEN is required"),
        (DOCKER, "docker: Error response from daemon: pull access denied for mcp/none, repository does not exist"),
        (NPM, "npm error 404 Not Found - GET https://registry.npmjs.org/@x%2fnone - Not found"),
        (
            UV,
            "Because mcp-none was not found in the package registry, we can conclude that your requirements are "
            "unsatisfiable.",
        ),
        ("listening\nfatal: not a git repository: /srv\n", "fatal: not a git repository: /srv"),
        ("error: unexpected argument '--x' found\n\nUsage: server [OPTIONS]\n\nFor more information, try '--help'.\n",
         "error: unexpected argument '--x' found"),
        ("server: no API key given\n", "server: no API key given"),
        ("config loaded\nplease log in first\n  }\n}\n", "please log in first"),
        ("usage: server [-h] --token TOKEN\nserver: error: the following arguments are required: --token\n",
         "server: error: the following arguments are required: --token"),
        ("thread 'main' panicked at src/main.rs:3:5:\nno token\nnote: run with `RUST_BACKTRACE=1`\n", "no token"),
        ("", None),
        ("}\n  ^\n---\n", None),
    ],
)  # fmt: skip
def test_the_line_with_the_reason_is_found(written: str, reason: str | None) -> None:
    assert find_reason(written.splitlines()) == reason


@given(st.lists(st.text(max_size=60), max_size=20))
def test_the_reason_is_a_part_of_a_line_or_nothing(lines: list[str]) -> None:
    reason = find_reason(lines)
    assert reason is None or any(reason in line for line in lines)
