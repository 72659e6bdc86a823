"""Colonnade: one roof over many MCP servers. The map of this package is docs/architecture.md."""
