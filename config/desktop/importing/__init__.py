"""Servers of desktop hosts taken over into one configuration of ours: found, made one where they are the same, and
written with what they may not do.

Nothing here writes a file or asks a person; `host.cli.desktop.importing` does.
"""
