"""`python -m neuraxis` is the `neuraxis` command."""

from neuraxis.cli import main

main()
