"""Colonnade: one MCP endpoint for many MCP servers. The map of this package is docs/architecture.md."""
