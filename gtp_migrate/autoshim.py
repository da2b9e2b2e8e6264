"""Importing this module calls :func:`gtp_migrate.shim.install`, and that is all it does.

For launchers where one line is all one can add; the options are environment variables.
"""

from gtp_migrate import shim

shim.install()
