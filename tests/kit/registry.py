"""A registry of packages for npm and for Python on the loopback, with packages of our own, which counts what it is
asked. Its packages are what the real ones give: a document with versions and integrity, and a simple index with files
and their digests."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.kit.web_server import answering

SERVER_OF_NODE = """#!/usr/bin/env node
const version = require("../package.json").version;
require("node:readline").createInterface({input: process.stdin}).on("line", (line) => {
  const {id, method} = JSON.parse(line);
  if (id === undefined) return;
  const results = {
    initialize: {protocolVersion: "2025-11-25", capabilities: {tools: {}}, serverInfo: {name: "of-node", version}},
    "tools/list": {tools: [{name: "version", inputSchema: {type: "object"}}]},
    "tools/call": {content: [{type: "text", text: version}]},
  };
  const answer = results[method] ? {result: results[method]} : {error: {code: -32601, message: "unknown"}};
  console.log(JSON.stringify({jsonrpc: "2.0", id, ...answer}));
});
"""
SERVER_OF_PYTHON = """
import json, sys
from importlib.metadata import version

def main():
    text = version("of-python")
    results = {
        "initialize": {
            "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
            "serverInfo": {"name": "of-python", "version": text},
        },
        "tools/list": {"tools": [{"name": "version", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": text}]},
    }
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            found = results.get(message["method"])
            answer = {"error": {"code": -32601, "message": "unknown"}} if found is None else {"result": found}
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
"""


def npm_archive(name: str, version: str, files: Mapping[str, str], **members: object) -> bytes:
    """A package for npm, whose first file is its script."""
    manifest = {"name": name, "version": version, "bin": f"./{next(iter(files))}", **members}
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for path, text in {"package.json": json.dumps(manifest), **files}.items():
            entry = tarfile.TarInfo(f"package/{path}")
            entry.size, entry.mode = len(text.encode()), 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))
    return data.getvalue()


def wheel(name: str, version: str, module: str, *, more: Mapping[str, str] | None = None) -> bytes:
    """A package for Python with one module, whose `main` is its script."""
    stem = name.replace("-", "_")
    files = {
        f"{stem}.py": module,
        f"{stem}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{stem}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{stem}-{version}.dist-info/entry_points.txt": f"[console_scripts]\n{name} = {stem}:main\n",
        **(more or {}),
    }
    record = f"{stem}-{version}.dist-info/RECORD"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for path, text in {**files, record: "".join(f"{path},,\n" for path in [*files, record])}.items():
            archive.writestr(path, text)
    return data.getvalue()


def sdist(name: str, version: str) -> bytes:
    """The source of a package for Python, without a wheel."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for path, text in {"setup.py": "raise SystemExit('it was run')", "PKG-INFO": f"Name: {name}\n"}.items():
            entry = tarfile.TarInfo(f"{name}-{version}/{path}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return data.getvalue()


@dataclass
class PackageRegistry:
    """A registry that listens.

    Attributes:
        npm, python: its packages: by name and version the archive; by name and file name the file.
        asked: the path of each request so far.
        connections: how many were made to it.
    """

    npm: dict[str, dict[str, bytes]] = field(default_factory=dict)
    python: dict[str, dict[str, bytes]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    connections: int = 0
    port: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which npm and uv use it."""
        return {"npm_config_registry": f"http://127.0.0.1:{self.port}/", "UV_DEFAULT_INDEX": f"{self.url}simple/"}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """The media type and body for a path; None if nothing is there."""
        parts = [part for part in path.partition("?")[0].replace("%2f", "/").split("/") if part]
        match parts:
            case ["simple", name] if name in self.python:
                rows = "".join(
                    f'<a href="{self.url}files/{name}/{file}#sha256={hashlib.sha256(data).hexdigest()}">{file}</a>\n'
                    for file, data in self.python[name].items()
                )
                return "text/html", f"<!DOCTYPE html><html><body>{rows}</body></html>".encode()
            case ["files", name, file] if file in self.python.get(name, {}):
                return "application/octet-stream", self.python[name][file]
            case [*name, "-", file] if data := self.npm.get("/".join(name), {}).get(file.removesuffix(".tgz")):
                return "application/octet-stream", data
            case _ if (name := "/".join(parts)) in self.npm:
                return "application/json", json.dumps(self._document(name)).encode()
        return None

    def _document(self, name: str) -> dict[str, object]:
        versions = {}
        for version, data in self.npm[name].items():
            with tarfile.open(fileobj=io.BytesIO(data)) as archive:
                file = archive.extractfile("package/package.json")
                assert file is not None
                manifest = json.load(file)
            integrity = f"sha512-{base64.b64encode(hashlib.sha512(data).digest()).decode()}"
            dist = {"tarball": f"{self.url}{name}/-/{version}.tgz", "integrity": integrity}
            versions[version] = {**manifest, "dist": dist, "hasInstallScript": "scripts" in manifest}
        return {"name": name, "dist-tags": {"latest": list(versions)[-1]}, "versions": versions}


@contextmanager
def package_registry() -> Iterator[PackageRegistry]:
    """A registry with two servers, `of-node` and `of-python` 1.0, for the block."""
    registry = PackageRegistry()
    registry.npm["of-node"] = {"1.0.0": npm_archive("of-node", "1.0.0", {"bin/server.js": SERVER_OF_NODE})}
    registry.python["of-python"] = {"of_python-1.0-py3-none-any.whl": wheel("of-python", "1.0", SERVER_OF_PYTHON)}

    class Handler(BaseHTTPRequestHandler):
        def setup(self) -> None:
            registry.connections += 1
            super().setup()

        def do_GET(self) -> None:
            registry.asked.append(self.path)
            found = registry.answer(self.path)
            kind, body = found or ("application/json", b'{"error": "not found"}')
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 - as its class wants it

        def log_message(self, *_: object) -> None:
            return

    with answering(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as registry.port:
        yield registry
