"""JSON-RPC without I/O: messages, ids, and the outstanding requests of one link."""
