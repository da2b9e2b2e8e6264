"""The edges of the process: what it prints on, what interrupts it, and text of others in what it says.

Exit codes, beside those of the command:

- 2: stdout could not be written to (a full disk, a closed descriptor). What was printed is not complete.
- 130, 143: ended by Ctrl-C (SIGINT), by SIGTERM; 128 + the signal's number, as shells have it.
- 141: the reader of stdout has gone (`| head -1`), 128 + SIGPIPE. It has what it wanted, so nothing is said.

stderr holds messages for people. Where it cannot be written to they are lost, and nothing else changes: the files
are written as ever, and the exit code says how it went.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn, TextIO

#: The exit code where stdout could not be written to.
CANNOT_PRINT = 2

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Tally:
    """How far the writing of files has come; whoever writes keeps it up to date."""

    #: Files written so far, and all that are to be.
    written: int = 0
    planned: int = 0

    def __str__(self) -> str:
        if not self.planned:
            return "no file was written"
        verb = "was" if self.planned == 1 else "were"
        return f"{self.written:,} of {self.planned:,} file{'' if self.planned == 1 else 's'} {verb} written"


def safe_text(text: str) -> str:
    r"""A name or a value as it can be printed: on one line, and with no effect on what is around it.

    Whatever Python does not call printable becomes an escape such as `\n`, `\x1b`, `\u202e` or `\udcff`: controls,
    line ends, direction marks, invisible characters, spaces that are no plain space, bytes of a name that are not
    UTF-8. The text of messages goes through this piece by piece, before colours are added.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@contextlib.contextmanager
def guarded_streams() -> Iterator[Tally]:
    """Whatever stdout and stderr are, and whenever the process is interrupted: a message and an exit code.

    Put it around all that the command does. Within it stdout, stderr, and their `buffer`, are written to as ever.
    Streams that are not the process's own, such as a test's, are left alone.

    Yields:
        What the message on an interruption says; to be kept up to date.

    Raises:
        SystemExit: the module's own exit codes, or what came from within.
    """
    tally = Tally()
    before = sys.stdout, sys.stderr
    _fill_closed_descriptors()
    sys.stdout, sys.stderr = _guarded(sys.stdout, 1, _write), _guarded(sys.stderr, 2, _write_or_lose)
    with _signals_raise() as signals:
        try:
            yield from _then_flush(tally)
        except (_Interrupted, KeyboardInterrupt) as interrupted:
            # All is tidied up: from here on a further Ctrl-C may end the process where it stands.
            for each in signals:
                signal.signal(each, signal.SIG_DFL)
            number = interrupted.number if isinstance(interrupted, _Interrupted) else signal.SIGINT
            _end(128 + number, f"interrupted; {tally}")
        except _CannotPrintError as error:
            _end(*_said_of(error.cause, tally))
        finally:
            # What is left where the run has ended in another way than by printing: that way has the last word.
            with contextlib.suppress(_CannotPrintError):
                sys.stdout.flush()
            sys.stderr.flush()
            ours = sys.stdout, sys.stderr
            sys.stdout, sys.stderr = before
            for stream in ours:
                _give_up(stream)


def _then_flush(tally: Tally) -> Iterator[Tally]:
    try:
        yield tally
    except SystemExit:
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def _said_of(cause: OSError, tally: Tally) -> tuple[int, str]:
    """Exit code and message where stdout could not be written to."""
    files = str(tally) if tally.planned else ""
    if cause.errno == errno.EPIPE:
        return 128 + signal.SIGPIPE, files
    what = f"stdout: could not be written ({cause.strerror}), and what it has is not complete"
    return CANNOT_PRINT, f"{what}; give it another place and run again" + (f"; {files}" if files else "")


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Puts an interruption off until the block has ended, so that what is done and what is noted are the same.

    A second Ctrl-C does not wait. Outside the main thread, where signals never arrive, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    # Neither what is ignored nor what ends the process at once is for us to change.
    ours = {number: handler for number, handler in handlers.items() if callable(handler)}
    waiting: list[tuple[int, FrameType | None]] = []

    def put_off(number: int, frame: FrameType | None) -> None:
        waiting.append((number, frame))
        for each, handler in ours.items():
            signal.signal(each, handler)

    try:
        for number in ours:
            signal.signal(number, put_off)
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        if waiting:
            arrived, frame = waiting[0]
            ours[signal.Signals(arrived)](arrived, frame)


class _Interrupted(BaseException):
    """A signal that ends the run. No error: nothing between here and `guarded_streams` is to handle it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _CannotPrintError(BaseException):
    """stdout could not be written to. Not an `OSError`, which a library would take for one of its own."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause


def _fill_closed_descriptors() -> None:
    """Or the next file opened would be number 1 or 2, and get what somebody prints by number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _give_up(stream: TextIO) -> None:
    """What a stream of ours still holds could not be printed: or it would be tried once more when the stream goes."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    if isinstance(raw, _Descriptor):
        raw.give_up()


def _guarded(stream: TextIO | None, number: int, write: Callable[[int | None, bytes], int]) -> TextIO:
    """The stream with writes of ours below it; a new one where the process was started without it."""
    if stream is None:
        raw = _Descriptor(None, write)
        return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace")
    if stream is not (sys.__stdout__, sys.__stderr__)[number - 1] or not isinstance(stream, io.TextIOWrapper):
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(_Descriptor(number, write)),
        encoding=stream.encoding,
        # A character that the terminal's encoding lacks is shown as an escape.
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Descriptor(io.RawIOBase):
    """The process's stdout or stderr, by number; None where it was started without."""

    def __init__(self, number: int | None, write: Callable[[int | None, bytes], int]) -> None:
        super().__init__()
        self._number = number
        self._write = write

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._number is not None and os.isatty(self._number)

    def fileno(self) -> int:
        return super().fileno() if self._number is None else self._number

    def write(self, data: Any) -> int:
        return self._write(self._number, data)

    def give_up(self) -> None:
        """From here on what is written is lost."""
        self._write = lambda _, data: len(data)


def _write(number: int | None, data: bytes) -> int:
    try:
        if number is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        while True:
            try:
                return os.write(number, data)
            except BlockingIOError:
                # Whoever shares the pipe with us has made it so that it does not wait.
                select.select([], [number], [])
    except OSError as error:
        raise _CannotPrintError(error) from None


def _write_or_lose(number: int | None, data: bytes) -> int:
    try:
        return _write(number, data)
    except _CannotPrintError:
        return len(data)


@contextlib.contextmanager
def _signals_raise() -> Iterator[tuple[signal.Signals, ...]]:
    """Ctrl-C and SIGTERM raise `_Interrupted`, unless they are ignored (`nohup`, `&`) or somebody's own already.

    Further ones are ignored: a temporary file is being removed, a progress bar taken off.
    """
    if threading.current_thread() is not threading.main_thread():
        yield ()
        return
    defaults = (signal.SIG_DFL, signal.default_int_handler)
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    ours = {number: handler for number, handler in handlers.items() if handler in defaults}

    def interrupt(number: int, _: FrameType | None) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_IGN)
        raise _Interrupted(number)

    try:
        for number in ours:
            signal.signal(number, interrupt)
        yield tuple(ours)
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)


def _end(code: int, message: str) -> NoReturn:
    if message:
        print(message, file=sys.stderr)
    raise SystemExit(code) from None
