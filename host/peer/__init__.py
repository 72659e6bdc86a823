"""One end of a JSON-RPC connection: requests in both directions, and those that have no response yet."""
