"""The command `gtp-migrate`: what it starts with. `python -m gtp_migrate` does the same."""

from __future__ import annotations

import gc
import sys

from gtp_migrate.first_look import first_look, has_nothing, say_nothing_to_do
from gtp_migrate.streams import guarded_streams


def main() -> None:
    """Runs the command with the arguments of the process. Where there is nothing to do, no library for more is
    imported."""
    with guarded_streams() as tally:
        # What is read stays until the end, and little of the rest hangs together in circles: looking for those costs
        # a tenth of the time.
        gc.set_threshold(1_000_000, 50, 50)
        surveyed = first_look(sys.argv[1:])
        if surveyed is not None and has_nothing(surveyed):
            if not {"-q", "--quiet"} & set(sys.argv):
                say_nothing_to_do(surveyed)
            return
        from gtp_migrate.cli import app

        app(prog_name="gtp-migrate", obj=(tally, surveyed))


if __name__ == "__main__":
    main()
