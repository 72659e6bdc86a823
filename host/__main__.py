"""`python -m host` runs the command `colonnade`."""

from host.cli import main

main()
