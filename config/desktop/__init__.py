"""The files of desktop hosts: one module for each host, `hosts` with all of them, and `desktop_file`, which rewrites a
file as ours. Nothing of this is imported before such a file is read."""
