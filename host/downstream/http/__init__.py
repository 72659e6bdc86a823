"""Clients over HTTP: Streamable HTTP with and without sessions, the older HTTP+SSE, and what all requests pass."""
