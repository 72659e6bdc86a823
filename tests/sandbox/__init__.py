"""Escapes from the sandbox: hostile children of our own, each with a control that succeeds without it."""
