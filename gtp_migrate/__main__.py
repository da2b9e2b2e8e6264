"""`python -m gtp_migrate`: the same as the command `gtp-migrate`."""

from gtp_migrate.cli import main

main()
