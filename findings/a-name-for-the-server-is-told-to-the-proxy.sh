#!/usr/bin/env bash
# A request's `sni_hostname` is meant for its server, and httpx uses it for the proxy before it, too.
#
# Packages: PyPI httpx 0.28.1, httpcore 1.0.9, trustme 1.2.1. Needs Python 3.11 with venv.
#
# Expected: who connects to an address that was looked up before, and checked, gives the server's name in the extension
# `sni_hostname`: TLS with the server then uses that name. A proxy that is reached over TLS has a name of its own, which
# stands in its URL.
#
# Seen on 2026-11-29: the handshake with the proxy uses the extension as well. A proxy with a certificate for its own
# name is refused, and one that chooses its certificate by the name is asked for the server's. Without the extension the
# proxy is asked for by its own name.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check httpx==0.28.1 httpcore==1.0.9 trustme==1.2.1 2>/dev/null

cat >check.py <<'PY'
import socket
import ssl
import threading

import httpx
import trustme

authority = trustme.CA()
names: list[str | None] = []


def proxy(listening: socket.socket) -> None:
    """Notes the name that each client asks for, and ends the connection after its handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    context.sni_callback = lambda connection, name, _: names.append(name)
    while True:
        accepted, _ = listening.accept()
        try:
            with context.wrap_socket(accepted, server_side=True) as secured:
                secured.recv(4096)
        except OSError:
            pass


trusting = ssl.create_default_context()
authority.configure_trust(trusting)
with socket.socket() as listening:
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    threading.Thread(target=proxy, args=[listening], daemon=True).start()
    way = httpx.Proxy(f"https://localhost:{listening.getsockname()[1]}", ssl_context=trusting)
    with httpx.Client(proxy=way, verify=trusting, trust_env=False) as client:
        for extensions in ({}, {"sni_hostname": "server.test"}):
            try:
                client.get("https://192.0.2.1/", extensions=extensions)
            except httpx.HTTPError as problem:
                refused = "certificate" in str(problem)
            print(f"the proxy is asked for {names[-1]}; its certificate is {'refused' if refused else 'accepted'}")
PY
seen=$(venv/bin/python check.py)
echo "$seen"
[ "$seen" = 'the proxy is asked for localhost; its certificate is accepted
the proxy is asked for server.test; its certificate is refused' ]
