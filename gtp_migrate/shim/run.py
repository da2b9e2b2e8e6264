"""``gtp-shim COMMAND …``: runs the command with the hooks in every Python below it, whatever its environment.

A folder with a ``sitecustomize.py`` goes first on PYTHONPATH, as ``ddtrace-run`` and ``opentelemetry-instrument``
do it; the command takes this process's place, so that its return code and the signals it gets are its own.
"""

from __future__ import annotations

import os
import sys

SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
USAGE = """\
usage: gtp-shim [--allow-reshard] COMMAND [ARGUMENT …]

Runs COMMAND with the runtime shim in every Python process below it: Ray workers in environments of their
own, torchrun ranks, converters. The folder this tool is installed in must be readable wherever they run.

  --allow-reshard   read weights that are known to come out in the wrong order all the same, with a warning
  -h, --help        show this

Example: gtp-shim uv run examples/run_grpo.py --config recipe.yaml
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line ``arguments`` (``sys.argv`` without the program's name), in place of this process.

    Returns:
        2 for wrong usage; 126 and 127, as in a shell, where the command cannot be executed or is not there.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    environment = dict(os.environ)
    if arguments[:1] == ["--allow-reshard"]:
        environment["GTP_MIGRATE_ALLOW_RESHARD"] = "1"
        del arguments[0]
    if arguments[:1] in (["-h"], ["--help"]):
        print(USAGE, end="")
        return 0
    if arguments[:1] == ["--"]:
        del arguments[0]
    elif arguments and arguments[0].startswith("-"):
        print(f"gtp-shim: {arguments[0]}: no such option; see gtp-shim --help", file=sys.stderr)
        return 2
    if not arguments:
        print(USAGE, end="", file=sys.stderr)
        return 2
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    environment["PYTHONPATH"] = os.pathsep.join([SITE, *(path for path in paths if path not in ("", SITE))])
    try:
        os.execvpe(arguments[0], arguments, environment)
    except OSError as error:
        print(f"gtp-shim: {arguments[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126
