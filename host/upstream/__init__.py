"""Upstream servers: one isolated, supervised client each. Nothing here knows who is downstream."""
