"""MCP without input or output: revisions, methods, `_meta`, capabilities, the handshake. The only home of version
strings; everything else asks for abilities."""
