"""JSON-RPC without input or output: messages, ids, and the state of one conversation."""
