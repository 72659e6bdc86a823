"""The side of the clients: transports, sessions and streams. The layers below know none of these."""
