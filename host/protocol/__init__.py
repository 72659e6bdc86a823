"""MCP without I/O: revisions, methods, `_meta`, capabilities, the handshake. Version strings are in this package only;
all other code asks for abilities."""
