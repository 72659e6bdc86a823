"""The faces to clients: sessions, streams and transports live here, and nothing behind them knows of any."""
