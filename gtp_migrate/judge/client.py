"""Asks the judge: starts its process, sends requests, yields answers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import IO

from gtp_migrate.judge.protocol import Answer, Hello, Request
from gtp_migrate.problems import JudgeError

# The package goes last on the path: the environment that is judged keeps its own libraries.
_START = "import runpy, sys; sys.path.append(sys.argv.pop(1)); runpy.run_module({!r}, run_name='__main__')".format(
    "gtp_migrate.judge.process"
)
_TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Judge:
    """A process that has NeMo-RL and Bridge, for as long as the context lasts.

    Args:
        python: executable of the environment that has them.
        prepare: ``module:function`` each, called in the process before NeMo-RL is imported.
        env: variables on top of this process's own; NeMo-RL's source is found by PYTHONPATH or the working directory.

    Raises:
        JudgeError: on entering, where the process cannot start; on asking, where it ended.
    """

    def __init__(
        self, python: str = sys.executable, *, prepare: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        options = [option for name in prepare for option in ("--prepare", name)]
        self._command = [python, "-c", _START, _TOP, *options]
        self._env = {**os.environ, **(env or {})}
        self.hello = Hello()

    def __enter__(self) -> Judge:
        self._log: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                encoding="utf-8",
                env=self._env,
            )
        except OSError as error:
            self._log.close()
            raise JudgeError(f"{self._command[0]}: {error.strerror}; give the Python that runs NeMo-RL") from error
        try:
            self.hello = Hello.from_json(self._read())
            if self.hello.error is not None:
                raise JudgeError(
                    f"{self._command[0]} cannot import NeMo-RL and Megatron-Bridge ({self.hello.error}); "
                    "run this where NeMo-RL runs, in its container, with its source on PYTHONPATH"
                )
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def ask(self, request: Request) -> Answer:
        """What becomes of one run."""
        assert self._process.stdin is not None
        try:
            print(request.to_json(), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise self._ended() from None
        return Answer.from_json(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        return line

    def _ended(self) -> JudgeError:
        code = self._process.wait()
        self._log.seek(0)
        last = [line.strip() for line in self._log if line.strip()][-1:]
        said = f" ({last[0]})" if last else ""
        return JudgeError(
            f"{self._command[0]} ended with exit code {code}{said}; run `import nemo_rl` with it to see why"
        )

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
