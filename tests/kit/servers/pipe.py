"""A server whose other end is a socket of the test: it copies standard input there, and what comes from there to
standard output.

    python3 -I -S pipe.py SOCKET
"""

from __future__ import annotations

import os
import socket
import sys
import threading


def main() -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        threading.Thread(target=copy_in, args=(connection,), daemon=True).start()
        while data := connection.recv(65536):
            os.write(1, data)


def copy_in(connection: socket.socket) -> None:
    while data := os.read(0, 65536):
        connection.sendall(data)
    os._exit(0)


if __name__ == "__main__":
    main()
