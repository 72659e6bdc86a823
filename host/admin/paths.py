"""Where the admin API is: its paths, and the names of its sockets. Imports nothing, so that commands which only ask a
host, such as completion in a shell, do not load the API."""

from __future__ import annotations

API_PATH = "/api"
API_VERSION = "v1"
"""The one version that is spoken here. An incompatible one gets a path of its own beside it."""
PREFIX = f"{API_PATH}/{API_VERSION}/"
EVENTS_PATH = f"{PREFIX}events"
SOCKET_SUFFIX = ".sock"
