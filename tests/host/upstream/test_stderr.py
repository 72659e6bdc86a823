"""The reason that a failing server gives on its standard error, as programs write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.upstream.stderr import MAX_REASON, find_reason

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

CORPUS = {
    "settings that lack a value (pydantic)": (
        """\
Traceback (most recent call last):
  File "/srv/server.py", line 9, in <module>
    settings = Settings()
               ^^^^^^^^^^
  File "/srv/.venv/lib/python3.12/site-packages/pydantic_settings/main.py", line 193, in __init__
    super().__init__(
pydantic_core._pydantic_core.ValidationError: 1 validation error for Settings
api_key
  Field required [type=missing, input_value={}, input_type=dict]
    For further information visit https://errors.pydantic.dev/2.10/v/missing
""",
        "api_key Field required [type=missing, input_value={}, input_type=dict]",
    ),
    "a traceback, and afterwards what Python warns of and ignores": (
        """\
Traceback (most recent call last):
  File "/srv/server.py", line 3, in <module>
    raise RuntimeError("no database")
RuntimeError: no database
sys:1: RuntimeWarning: coroutine 'main' was never awaited
Exception ignored in: <function BaseSubprocessTransport.__del__ at 0x7f12>
Traceback (most recent call last):
  File "/usr/lib/python3.11/asyncio/base_subprocess.py", line 126, in __del__
    self.close()
RuntimeError: Event loop is closed
""",
        "RuntimeError: no database",
    ),
    "errors of a group that were never raised": (
        """\
  + Exception Group Traceback (most recent call last):
  |   File "/srv/server.py", line 3, in <module>
  |     raise ExceptionGroup("several", [ValueError("no key"), KeyError("x")])
  | ExceptionGroup: several (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: no key
    +---------------- 2 ----------------
    | KeyError: 'x'
    +------------------------------------
""",
        "KeyError: 'x'",
    ),
    "a traceback in a frame (rich)": (
        """\
╭───────────────────── Traceback (most recent call last) ─────────────────────╮
│ /srv/server.py:3 in main                                                    │
│                                                                             │
│ ❱ 3     raise ValueError("no key")                                          │
╰─────────────────────────────────────────────────────────────────────────────╯
ValueError: no key
""",
        "ValueError: no key",
    ),
    "a message in a frame (typer)": (
        """\
Usage: server [OPTIONS]
Try 'server --help' for help.
╭─ Error ─────────────────────────────────────────────────────────────────────╮
│ Missing option '--token'.                                                   │
╰─────────────────────────────────────────────────────────────────────────────╯
""",
        "Missing option '--token'.",
    ),
    "a message of two lines (PyYAML)": (
        """\
Traceback (most recent call last):
  File "/srv/server.py", line 3, in <module>
    yaml.safe_load(text)
yaml.scanner.ScannerError: mapping values are not allowed here
  in "config.yaml", line 3, column 10
""",
        'yaml.scanner.ScannerError: mapping values are not allowed here in "config.yaml", line 3, column 10',
    ),
    "Node.js with a cause": (
        """\
node:internal/process/promises:288
            triggerUncaughtException(err, true /* fromPromise */);
            ^
TypeError: fetch failed
    at node:internal/deps/undici/undici:12618:11
    at async main (file:///srv/index.js:3:3) {
  [cause]: Error: connect ECONNREFUSED 127.0.0.1:5432
      at TCPConnectWrap.afterConnect [as oncomplete] (node:net:1555:16) {
    errno: -111,
    code: 'ECONNREFUSED',
    syscall: 'connect',
  }
}
Node.js v20.11.0
""",
        "[cause]: Error: connect ECONNREFUSED 127.0.0.1:5432",
    ),
    "a message in JSON (zod)": (
        """\
ZodError: [
  {
    "code": "invalid_type",
    "expected": "string",
    "path": [
      "API_KEY"
    ],
    "message": "Required"
  }
]
    at get error [as error] (file:///srv/node_modules/zod/lib/index.mjs:587:31)
    at main (file:///srv/index.js:3:3)
""",
        '"API_KEY"',
    ),
    "a program that npm started": (
        """\
/srv/index.js:3
  throw new Error("GITHUB_TOKEN is required");
  ^
Error: GITHUB_TOKEN is required
    at Object.<anonymous> (/srv/index.js:3:9)
Node.js v20.11.0
npm error code 1
npm error path /srv
npm error command failed
npm error command sh -c node index.js
""",
        "Error: GITHUB_TOKEN is required",
    ),
    "npm before version 10": (
        """\
npm ERR! code E404
npm ERR! 404 Not Found - GET https://registry.npmjs.org/@x%2fnone - Not found
npm ERR! 404
npm ERR! 404  '@x/none@*' is not in this registry.
npm ERR! 404
npm ERR! 404 Note that you can also install from a
npm ERR! 404 tarball, folder, http url, or git folder.
npm ERR! A complete log of this run can be found in: /home/me/.npm/_logs/x.log
""",
        "npm ERR! 404  '@x/none@*' is not in this registry.",
    ),
    "npm without a network": (
        """\
npm warn exec The following package was not found and will be installed: mcp-x@1.0.0
npm error code ENOTFOUND
npm error syscall getaddrinfo
npm error errno ENOTFOUND
npm error network request to https://registry.npmjs.org/mcp-x failed, reason: getaddrinfo ENOTFOUND registry.npmjs.org
npm error network This is a problem related to network connectivity.
npm error A complete log of this run can be found in: /home/me/.npm/_logs/x.log
""",
        (
            "npm error network request to https://registry.npmjs.org/mcp-x failed, reason: getaddrinfo "
            "ENOTFOUND registry.npmjs.org"
        ),
    ),
    "pnpm": (
        """\
 ERR_PNPM_FETCH_404  GET https://registry.npmjs.org/mcp-none: Not Found - 404
mcp-none is not in the npm registry, or you have no permission to fetch it.
No authorization header was set for the request.
""",
        "No authorization header was set for the request.",
    ),
    "uv, wrapped": (
        """\
  × No solution found when resolving tool dependencies:
  ╰─▶ Because mcp-none was not found in the package registry and you require
      mcp-none, we can conclude that your requirements are unsatisfiable.
""",
        (
            "No solution found when resolving tool dependencies: Because mcp-none was not found in the package "
            "registry and you require mcp-none, we can conclude that your requirements are unsatisfiable."
        ),
    ),
    "a package without this program (uvx)": (
        """\
Installed 30 packages in 41ms
An executable named `mcp-x` is not provided by package `mcp-x-server`.
The following executables are available:
- mcp-x-stdio
- mcp-x-http
""",
        "An executable named `mcp-x` is not provided by package `mcp-x-server`.",
    ),
    "a panic of Go": (
        """\
2024/01/02 15:04:05 starting
panic: runtime error: invalid memory address or nil pointer dereference
[signal SIGSEGV: segmentation violation code=0x1 addr=0x0 pc=0x47c5a1]
goroutine 1 [running]:
main.main()
	/srv/main.go:5 +0x21
exit status 2
""",
        "panic: runtime error: invalid memory address or nil pointer dereference",
    ),
    "log.Fatal of Go": (
        """\
2024/01/02 15:04:05 GITHUB_PERSONAL_ACCESS_TOKEN not set
exit status 1
""",
        "GITHUB_PERSONAL_ACCESS_TOKEN not set",
    ),
    "log lines in JSON (pino)": (
        """\
{"level":30,"time":1700000000000,"msg":"starting"}
{"level":60,"time":1700000000000,"msg":"GITHUB_TOKEN is required"}
""",
        '{"level":60,"time":1700000000000,"msg":"GITHUB_TOKEN is required"}',
    ),
    "a panic of Rust, with its stack": (
        """\
thread 'main' panicked at src/main.rs:3:5:
called `Result::unwrap()` on an `Err` value: NotPresent
stack backtrace:
   0: rust_begin_unwind
             at /rustc/90b35a6239c3d8bdabc530a6a0816f7ff89a0aaf/library/std/src/panicking.rs:676:5
note: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.
""",
        "called `Result::unwrap()` on an `Err` value: NotPresent",
    ),
    "a panic of Rust before 1.73": (
        """\
thread 'main' panicked at 'no token', src/main.rs:3:5
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
""",
        "thread 'main' panicked at 'no token', src/main.rs:3:5",
    ),
    "Java with a cause": (
        """\
Exception in thread "main" java.lang.IllegalStateException: no connection
	at com.example.Main.main(Main.java:5)
Caused by: java.net.ConnectException: Connection refused
	at java.base/sun.nio.ch.Net.connect(Net.java:579)
	... 12 more
""",
        "Caused by: java.net.ConnectException: Connection refused",
    ),
    ".NET": (
        """\
Unhandled exception. System.InvalidOperationException: The token is missing
   at Program.<Main>$(String[] args) in /srv/Program.cs:line 3
""",
        "Unhandled exception. System.InvalidOperationException: The token is missing",
    ),
    "Deno": (
        """\
error: Uncaught (in promise) Error: no token
  throw new Error("no token");
        ^
    at file:///srv/main.ts:3:9
""",
        "error: Uncaught (in promise) Error: no token",
    ),
    "Bun": (
        """\
1 | throw new Error("no token");
          ^
error: no token
      at /srv/index.ts:1:7

Bun v1.1.34 (Linux x64 baseline)
""",
        "error: no token",
    ),
    "a script that Bun started": (
        """\
error: Cannot find module "mcp-x" from "/srv/index.ts"
Bun v1.1.34 (Linux x64 baseline)
error: script "start" exited with code 1
""",
        'error: Cannot find module "mcp-x" from "/srv/index.ts"',
    ),
    "Ruby": (
        """\
/usr/lib/ruby/3.2.0/bundled_gems.rb:85:in `require': cannot load such file -- sinatra (LoadError)
	from /usr/lib/ruby/3.2.0/bundled_gems.rb:85:in `block (2 levels) in replace_require'
	from server.rb:1:in `<main>'
""",
        "/usr/lib/ruby/3.2.0/bundled_gems.rb:85:in `require': cannot load such file -- sinatra (LoadError)",
    ),
    "PHP": (
        """\
PHP Fatal error:  Uncaught Error: Class "Server" not found in /srv/server.php:3
Stack trace:
#0 {main}
  thrown in /srv/server.php on line 3
""",
        'PHP Fatal error:  Uncaught Error: Class "Server" not found in /srv/server.php:3',
    ),
    "log lines with a level (Python)": (
        """\
2024-01-02 15:04:05,123 - mcp - INFO - starting
2024-01-02 15:04:05,123 - mcp - ERROR - API_KEY is not set
2024-01-02 15:04:05,124 - mcp - INFO - shutting down
""",
        "mcp - ERROR - API_KEY is not set",
    ),
    "log lines without an error": (
        """\
INFO:     Started server process [1]
INFO:     Waiting for application startup.
""",
        None,
    ),
    "a port in use (uvicorn)": (
        """\
INFO:     Started server process [1]
ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use
INFO:     Waiting for application shutdown.
""",
        ("ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): address already in use"),
    ),
    "a script that yarn started": (
        """\
Error: no token
    at main (/srv/index.js:3:9)
error Command failed with exit code 1.
info Visit https://yarnpkg.com/en/docs/cli/run for documentation about this command.
""",
        "Error: no token",
    ),
    "a heap that is full (Node.js)": (
        """\
<--- Last few GCs --->
[1:0x5f] 3000 ms: Mark-Compact 4000.1 (4100.2) -> 3999.0 (4100.2) MB
<--- JS stacktrace --->
FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory
----- Native stack trace -----
 1: 0xb8ced1 node::OOMErrorHandler(char const*, v8::OOMDetails const&) [node]
""",
        "FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory",
    ),
}
"""Standard error of programs as it looks in the world, by kind, and the reason in it."""


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        (PYTHON, "ModuleNotFoundError: No module named 'missing'"),
        (CHAINED, "RuntimeError: no database"),
        (GROUP, "ValueError: API_KEY is not set"),
        (NODE, "Error: Cannot find module '/srv/index.js'"),
        (NODE_THROWN, "TypeError: GITHUB_TOKEN is required"),
        (DOCKER, "docker: Error response from daemon: pull access denied for mcp/none, repository does not exist"),
        (NPM, "npm error 404  '@x/none@*' is not in this registry."),
        (
            UV,
            "No solution found when resolving tool dependencies: Because mcp-none was not found in the package "
            "registry, we can conclude that your requirements are unsatisfiable.",
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


@pytest.mark.parametrize(("written", "reason"), CORPUS.values(), ids=CORPUS)
def test_programs_of_all_kinds_are_understood(written: str, reason: str | None) -> None:
    """Without its empty lines, as a `LineSplitter` gives it."""
    assert find_reason([line for line in written.splitlines() if line]) == reason


def test_chatter_is_no_reason_if_the_program_ended_well() -> None:
    assert find_reason(["listening", "please log in first"], status=0) is None
    assert find_reason(["Error: no token"], status=0) == "Error: no token"


def test_a_long_reason_is_cut() -> None:
    reason = find_reason([f"Error: {'x' * 2000}"])
    assert reason is not None
    assert (len(reason), reason[-1]) == (MAX_REASON, "…")


LINES = st.one_of(
    st.text(max_size=60),
    st.sampled_from([line for written, _ in CORPUS.values() for line in written.splitlines() if line]),
)


@given(st.lists(LINES, max_size=20))
def test_the_reason_has_only_words_of_the_lines(lines: list[str]) -> None:
    reason = find_reason(lines)
    said = "".join(lines)
    assert reason is None or all(word.strip(";…:") in said for word in reason.split(" "))


@given(st.permutations(range(8)), st.sampled_from(list(CORPUS)))
def test_no_order_of_the_lines_breaks_the_search(order: list[int], kind: str) -> None:
    lines = [line for line in CORPUS[kind][0].splitlines() if line]
    find_reason([lines[at] for at in order if at < len(lines)])
