"""``python -m gtp_migrate.judge.process``: reads one JSON request a line, answers one JSON line each.

The first line it writes is a :class:`~gtp_migrate.judge.protocol.Hello`. Whatever the libraries print goes to stderr.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any, TextIO

from gtp_migrate.judge.protocol import Hello, Request


def main() -> int:
    arguments = _arguments()
    answers = _keep_stdout_for_answers()
    try:
        # The launchers' own imports find NeMo-RL beside the working directory or on PYTHONPATH; so does this.
        for name in arguments.prepare:
            named(name)()
        from gtp_migrate.judge.models import NeMoRL

        nemo_rl = NeMoRL()
    except Exception as error:
        _say(answers, Hello(error=f"{type(error).__name__}: {error}").to_json())
        return 1
    _say(answers, Hello(nemo_rl.bridge_version, nemo_rl.path).to_json())
    for line in sys.stdin:
        request = Request.from_json(line)
        factory = named(request.provider) if request.provider else None
        _say(answers, nemo_rl.judge(request, factory).to_json())
    return 0


def named(name: str) -> Any:
    """What ``module:attribute`` names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gtp_migrate.judge.process")
    parser.add_argument(
        "--prepare",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="call this before NeMo-RL is imported; repeatable",
    )
    return parser.parse_args()


def _keep_stdout_for_answers() -> TextIO:
    """The stream for answers; file descriptor 1 is stderr from here on, for C libraries as well."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _say(answers: TextIO, line: str) -> None:
    print(line, file=answers, flush=True)


if __name__ == "__main__":
    # Everything is flushed; the exit handlers of the libraries would take seconds.
    os._exit(main())
