"""Every revision against every revision, over every transport: `make matrix`."""
