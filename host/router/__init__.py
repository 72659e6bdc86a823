"""Routing of clients' requests: from a name to its server, through the gate, and back with a response."""
