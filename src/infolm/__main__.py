"""`python -m infolm` is the command `infolm`."""

from infolm.cli import main

main()
