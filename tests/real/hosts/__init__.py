"""Real desktop hosts from npm, with real servers behind Colonnade: `make hosts`."""
