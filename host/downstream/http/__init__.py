"""Clients over HTTP: Streamable HTTP with and without sessions, the older HTTP+SSE, and the checks of all requests."""
