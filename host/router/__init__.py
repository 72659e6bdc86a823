"""Requests of clients: from a name to its server, through the gate, and back with an answer."""
