"""`python -m host` is the command `colonnade`, without its script."""

from host.cli import main

main()
