"""Downstream: the clients' side, with transports, sessions and streams. The layers below do not import it."""
