"""A server over stdio with definitions, and results, that clients could not read, beside good ones.

It writes its JSON by hand: no encoder would spell most of this. `--instructions` gives it such instructions as well.
"""

from __future__ import annotations

import json
import sys

BAD = {
    "digits": b'{"type":"object","maximum":%b}' % (b"9" * 5000),
    "surrogate": b'{"type":"object","description":"\\ud800"}',
    "surrogate_name": b'{"type":"object","properties":{"\\udfff":{}}}',
    "levels": b'{"type":"object","default":' + b"[" * 250 + b"]" * 250 + b"}",
    "twice": b'{"type":"object","type":"object"}',
    "infinite": b'{"type":"object","maximum":1e999}',
}
RESULTS = {
    "digits": b'{"content":[],"structuredContent":{"n":%b}}' % (b"9" * 5000),
    "surrogate": b'{"content":[{"type":"text","text":"\\ud83d"}]}',
    "levels": b'{"content":[],"structuredContent":{"n":' + b"[" * 250 + b"]" * 250 + b"}}",
    "fine": b'{"content":[{"type":"text","text":"fine"}]}',
}


def tool(name: str, schema: bytes) -> bytes:
    return b'{"name":"%b","inputSchema":%b}' % (name.encode(), schema)


def tools() -> bytes:
    good = [tool(f"good{number}", b'{"type":"object"}') for number in range(3)]
    bad = [tool(name, schema) for name, schema in BAD.items()]
    return b'{"tools":[%b]}' % b",".join([good[0], *bad, b'{"name":"\\ud800","inputSchema":{}}', *good[1:]])


def prompts() -> bytes:
    return b'{"prompts":[{"name":"good"},{"name":"bad","description":"\\ud800"}]}'


def answer(method: str, params: dict[str, object], instructions: bytes) -> bytes:
    if method == "initialize":
        return (
            b'{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{}},%b'
            b'"serverInfo":{"name":"unreadable","version":"1"}}' % instructions
        )
    if method == "tools/list":
        return tools()
    if method == "prompts/list":
        return prompts()
    if method == "tools/call":
        arguments = params["arguments"]
        assert isinstance(arguments, dict)
        return RESULTS[arguments["gives"]]
    return b"{}"


def main() -> None:
    instructions = b'"instructions":"\\ud800",' if "--instructions" in sys.argv else b""
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" in message and "method" in message:
            result = answer(message["method"], message.get("params", {}), instructions)
            id = json.dumps(message["id"]).encode()
            sys.stdout.buffer.write(b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (id, result))
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
