"""Commands that write files of a person: the servers of desktop hosts taken over, ours put into a host's file and taken
out again, and the configuration with its servers."""
