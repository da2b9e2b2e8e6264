"""Streams and signals: no traceback, whatever is closed, full, gone or interrupted; the exit code says it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import unicodedata
from pathlib import Path

import pytest

from gtp_migrate.streams import Tally, guarded_streams, safe_text, uninterrupted

#: What each test's process runs; the body is the test's.
SCRIPT = """
import os, signal, sys
from gtp_migrate.streams import guarded_streams, safe_text, uninterrupted
def body(tally):
{body}
try:
    with guarded_streams() as tally:
        code = body(tally)
        if code is not None:
            sys.exit(code)
finally:
    assert (sys.stdout, sys.stderr) == (sys.__stdout__, sys.__stderr__)
"""
PLAIN = "print('one', flush=True); sys.stdout.buffer.write(b'two\\n'); print('said', file=sys.stderr); return 3"
NOTHING_ON_STDOUT = "print('said', file=sys.stderr); return 3"
#: Whatever the tests' own process has.
BUFFERED = {**os.environ, "PYTHONUNBUFFERED": ""}


def command(body: str) -> list[str]:
    return [sys.executable, "-c", SCRIPT.replace("{body}", textwrap.indent(textwrap.dedent(body), "    "))]


def ran(
    body: str, redirected: str = "", environment: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the body with a shell's redirections."""
    shell = ["sh", "-c", f'exec "$@" {redirected}', "sh", *command(body)]
    done = subprocess.run(
        shell,
        cwd=cwd,
        env={**BUFFERED, **(environment or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done


def started(body: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """The body in a process with pipes at its ends."""
    return subprocess.Popen(command(body), env=BUFFERED, stdin=-1, stdout=stdout, stderr=-1)


# -- stdout and stderr ---------------------------------------------------------------------------------


def test_streams_as_they_should_be() -> None:
    done = ran(PLAIN)
    assert (done.returncode, done.stdout, done.stderr) == (3, "one\ntwo\n", "said\n")


@pytest.mark.parametrize("redirected", ["", ">/dev/full", "2>/dev/full", "2>&-"])
def test_streams_that_keep_nothing_back(redirected: str) -> None:
    plain, unbuffered = (ran(PLAIN, redirected, {"PYTHONUNBUFFERED": value}) for value in ("", "1"))
    assert (plain.returncode, plain.stdout, plain.stderr) == (
        unbuffered.returncode,
        unbuffered.stdout,
        unbuffered.stderr,
    )


REASONS = {">&-": "Bad file descriptor", ">/dev/full": "No space left on device"}
PRINTED = {
    "text": "print('one')",
    "bytes": "sys.stdout.buffer.write(b'one')",
    "much": "sys.stdout.buffer.write(b'one\\n' * 1_000_000)",
    "at once": "print('one', flush=True)",
    "again and again": "[print('one', flush=True) for _ in range(3)]",
    "before an exit": "print('one'); return 3",
    "by who takes no error": """\
        try:
            print('one', flush=True)
        except BaseException:
            pass
    """,
    "by a handler of errors": """\
        try:
            print('one', flush=True)
        except OSError:
            pass
    """,
}


@pytest.mark.parametrize("redirected", REASONS)
@pytest.mark.parametrize("printed", PRINTED.values(), ids=PRINTED)
def test_a_stdout_that_takes_nothing(redirected: str, printed: str) -> None:
    """What was to be printed is not there: that is said, and is no success."""
    done = ran(printed, redirected)
    assert done.returncode == 2
    assert done.stderr == (
        f"stdout: could not be written ({REASONS[redirected]}), and what it has is not complete; "
        "give it another place and run again\n"
    )


@pytest.mark.parametrize("redirected", [*REASONS, "| true"])
def test_nothing_is_left_that_would_be_printed_later(redirected: str) -> None:
    """In Python's development mode, an error of that would be shown."""
    done = ran("print('one' * 100_000)", redirected, {"PYTHONDEVMODE": "1"})
    assert done.stderr.count("\n") == (0 if "|" in redirected else 1)


@pytest.mark.parametrize("redirected", REASONS)
def test_a_stdout_that_takes_nothing_and_is_not_needed(redirected: str) -> None:
    done = ran(NOTHING_ON_STDOUT, redirected)
    assert (done.returncode, done.stderr) == (3, "said\n")


def test_how_much_was_written_where_stdout_takes_nothing() -> None:
    done = ran("tally.planned = 3; tally.written = 2; print('one')", ">/dev/full")
    assert done.returncode == 2
    assert done.stderr.endswith("; give it another place and run again; 2 of 3 files were written\n")


@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full"])
def test_a_stderr_that_takes_nothing(redirected: str) -> None:
    """The messages are lost, and nothing else; above all they do not get into a patch on stdout."""
    done = ran(PLAIN, redirected)
    assert (done.returncode, done.stdout, done.stderr) == (3, "one\ntwo\n", "")


def test_a_stderr_that_nobody_reads() -> None:
    process = started("input(); " + PLAIN)
    assert process.stderr is not None
    process.stderr.close()
    process.stderr = None
    out, _ = process.communicate(b"go on\n")
    assert (process.returncode, out) == (3, b"one\ntwo\n")


@pytest.mark.parametrize("redirected", [">&- 2>&-", ">&- 2>/dev/full", ">/dev/full 2>&-", ">/dev/full 2>/dev/full"])
def test_both_take_nothing(redirected: str) -> None:
    assert ran(PLAIN, redirected).returncode == 2
    assert ran(NOTHING_ON_STDOUT, redirected).returncode == 3


@pytest.mark.parametrize("redirected", ["<&- >&- 2>&-", ">&- 2>&-", "2>&-", "<&-", ">&-"])
def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path, redirected: str) -> None:
    """Or it would get what is printed by number, by an extension module say."""
    body = """\
        with open("a.yaml", "wb") as recipe:
            recipe.write(b"content")
            recipe.flush()
            for number in range(3):
                try:
                    os.write(number, b"said by number")
                except OSError:
                    pass
            print("said", file=sys.stderr, flush=True)
            import subprocess
            subprocess.run(["sh", "-c", "echo said by a child; echo said by a child >&2"], check=True)
    """
    assert ran(body, redirected, cwd=tmp_path).returncode == 0
    assert (tmp_path / "a.yaml").read_bytes() == b"content"


@pytest.mark.parametrize("count", [1, 1_000_000], ids=["little", "much"])
def test_a_reader_who_has_gone(count: int) -> None:
    process = subprocess.Popen(
        command(f"input(); sys.stdout.write('one\\n' * {count})"), stdin=-1, stdout=-1, stderr=-1
    )
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(b"go on\n")
    assert (process.returncode, err) == (141, b"")


def test_a_reader_who_goes_after_a_line() -> None:
    """`| head -1`"""
    process = started("sys.stdout.write('one\\n' * 1_000_000)")
    assert process.stdout is not None
    assert process.stdout.readline() == b"one\n"
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate()
    assert (process.returncode, err) == (141, b"")


def test_how_much_was_written_where_the_reader_has_gone() -> None:
    done = ran("tally.planned = 3; tally.written = 2; print('one' * 100_000); return 0", "| true")
    assert done.stderr == "2 of 3 files were written\n"


def test_a_pipe_that_does_not_wait() -> None:
    """Somebody else who has it open may have set it so. All arrives nevertheless."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with started("sys.stdout.write('one\\n' * 1_000_000)", stdout=writer) as process:
        os.close(writer)
        with open(reader, "rb") as stream:
            assert stream.read() == b"one\n" * 1_000_000
        assert process.communicate()[1] == b""
    assert process.returncode == 0


#: How `→` looks.
ENCODINGS = [
    ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "\\u2192"),
    ({"LC_ALL": "C"}, "→"),
    ({"PYTHONIOENCODING": "ascii"}, "\\u2192"),
    ({"PYTHONIOENCODING": "latin-1"}, "\\u2192"),
    ({"PYTHONIOENCODING": "utf-8:strict"}, "→"),
]


@pytest.mark.parametrize(("environment", "arrow"), ENCODINGS)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_terminal_that_lacks_a_character(environment: dict[str, str], arrow: str, stream: str) -> None:
    done = ran(f"print('3 \\u2192 12, \\udcff', file=sys.{stream})", environment=environment)
    assert done.returncode == 0
    assert {"stdout": done.stdout, "stderr": done.stderr} == {
        "stdout": "",
        "stderr": "",
        stream: f"3 {arrow} 12, \\udcff\n",
    }


def test_a_patch_is_bytes() -> None:
    done = ran("sys.stdout.buffer.write(bytes([0xff, 0xe2, 0x86, 0x92]))", environment={"PYTHONIOENCODING": "ascii"})
    assert done.stdout.encode("utf-8", "surrogateescape") == b"\xff\xe2\x86\x92"


@pytest.mark.parametrize("redirected", ["", "2>&-", "2>/dev/full", ">&- 2>&-"])
def test_tables(redirected: str) -> None:
    body = """\
        from rich.console import Console
        from rich.table import Table
        table = Table("a", "b")
        table.add_row("→", "\\udcff")
        Console(stderr=True).print(table)
        return 3
    """
    done = ran(body, redirected)
    assert (done.returncode, "\\udcff" in done.stderr) == (3, not redirected)


@pytest.mark.parametrize("arguments", [["--help"], ["--print"]])
@pytest.mark.parametrize(("redirected", "code"), [("", 0), (">/dev/full", 2), (">&-", 2), ("2>&-", 0)])
def test_a_command_line(arguments: list[str], redirected: str, code: int) -> None:
    """The library that reads it has a word of its own for pipes and interruptions, and does not get to say it."""
    body = f"""\
        import typer
        app = typer.Typer(rich_markup_mode=None)
        @app.command()
        def main(print_: bool = typer.Option(False, "--print")) -> None:
            print("one", flush=True)
        app({arguments})
    """
    assert ran(body, redirected).returncode == code


def test_streams_of_somebody_else_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr, [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with guarded_streams():
        assert (sys.stdout, sys.stderr) == before[:2]
        print("one")
        print("said", file=sys.stderr)
    assert (sys.stdout, sys.stderr) == before[:2]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before[2]
    assert tuple(capsys.readouterr()) == ("one\n", "said\n")


def test_an_exception_is_nobodys_business_here() -> None:
    with pytest.raises(ZeroDivisionError), guarded_streams():
        raise ZeroDivisionError


# -- interruptions -------------------------------------------------------------------------------------

#: Three files, and the process interrupts itself while it works on the second.
THREE_FILES = """\
    tally.planned = 3
    for number in range(3):
        with {}:
            if number == 1:
                os.kill(os.getpid(), signal.{})
            open(f"{{number}}.yaml", "w").close()
            tally.written += 1
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_an_interruption(tmp_path: Path, name: str, code: int) -> None:
    body = "import contextlib\n" + textwrap.dedent(THREE_FILES.format("contextlib.nullcontext()", name))
    done = ran(body, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "interrupted; 1 of 3 files were written\n")
    assert sorted(os.listdir(tmp_path)) == ["0.yaml"]


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_an_interruption_that_is_put_off(tmp_path: Path, name: str, code: int) -> None:
    """What is said to be written is written, and nothing more."""
    done = ran(THREE_FILES.format("uninterrupted()", name), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (code, "interrupted; 2 of 3 files were written\n")
    assert sorted(os.listdir(tmp_path)) == ["0.yaml", "1.yaml"]


def test_a_second_interruption_is_not_put_off(tmp_path: Path) -> None:
    body = """\
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            open("reached", "w").close()
            os.kill(os.getpid(), signal.SIGINT)
            open("not reached", "w").close()
    """
    done = ran(body, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "interrupted; no file was written\n")
    assert os.listdir(tmp_path) == ["reached"]


def test_an_interruption_while_another_is_tidied_up_after(tmp_path: Path) -> None:
    body = """\
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            open("tidied", "w").close()
    """
    done = ran(body, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (130, "interrupted; no file was written\n")
    assert os.listdir(tmp_path) == ["tidied"]


def test_an_interruption_of_what_is_said_of_one() -> None:
    """Nobody reads stdout, so its last line waits for ever, and a further Ctrl-C is to end that."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"full")
    os.set_blocking(writer, True)
    body = "print('one'); os.kill(os.getpid(), signal.SIGINT)"
    process = started(body, stdout=writer)
    assert process.stderr is not None
    assert process.stderr.readline() == b"interrupted; no file was written\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate() == (None, b"")
    assert process.returncode == -signal.SIGINT
    os.close(reader)
    os.close(writer)


def test_what_was_printed_before_an_interruption() -> None:
    done = ran("print('one'); os.kill(os.getpid(), signal.SIGINT)")
    assert (done.returncode, done.stdout, done.stderr) == (130, "one\n", "interrupted; no file was written\n")


@pytest.mark.parametrize("redirected", [">/dev/full", ">&-", "2>&-", "2>/dev/full", ">&- 2>&-"])
def test_an_interruption_has_the_last_word(redirected: str) -> None:
    done = ran("print('one'); os.kill(os.getpid(), signal.SIGINT)", redirected)
    assert done.returncode == 130
    assert done.stderr == ("" if "2>" in redirected else "interrupted; no file was written\n")


def test_an_interruption_of_the_command_line() -> None:
    body = """\
        import typer
        app = typer.Typer()
        @app.command()
        def main() -> None:
            tally.planned = 2
            os.kill(os.getpid(), signal.SIGINT)
        app([])
    """
    done = ran(body)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted; 0 of 2 files were written\n")


def test_an_interruption_that_a_library_raises() -> None:
    done = ran("raise KeyboardInterrupt")
    assert (done.returncode, done.stderr) == (130, "interrupted; no file was written\n")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_that_is_ignored_stays_so(name: str) -> None:
    """As in the background of a shell without job control."""
    shell = f"trap '' {name.removeprefix('SIG')}; exec \"$@\""
    body = f"with uninterrupted(): os.kill(os.getpid(), signal.{name})\nos.kill(os.getpid(), signal.{name})\nreturn 3"
    done = subprocess.run(["sh", "-c", shell, "sh", *command(body)], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (3, b"")


def test_signals_are_handled_as_before_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with uninterrupted():
        pass
    with pytest.raises(SystemExit) as ended, guarded_streams():
        os.kill(os.getpid(), signal.SIGINT)
    assert ended.value.code == 130
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_another_thread() -> None:
    """Signals do not arrive there, and may not be asked for."""
    done: list[Tally] = []

    def work() -> None:
        with guarded_streams() as tally, uninterrupted():
            done.append(tally)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [Tally()]


@pytest.mark.parametrize(
    ("tally", "said"),
    [
        (Tally(), "no file was written"),
        (Tally(0, 1), "0 of 1 file was written"),
        (Tally(1200, 3400), "1,200 of 3,400 files were written"),
    ],
)
def test_how_much_was_written(tally: Tally, said: str) -> None:
    assert str(tally) == said


# -- text ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("recipes/größe → 3 × 4, 日本 🙂.yaml", "recipes/größe → 3 × 4, 日本 🙂.yaml"),
        ("${mul:3,${..tensor_model_parallel_size}}", "${mul:3,${..tensor_model_parallel_size}}"),
        ("a\nb.yaml: was migrated", "a\\nb.yaml: was migrated"),
        ("\r\t\0", "\\r\\t\\x00"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("\x7f\x85\x9b31m", "\\x7f\\x85\\x9b31m"),
        ("a\u202etxt.yaml", "a\\u202etxt.yaml"),
        ("\ufeffa", "\\ufeffa"),
        (os.fsdecode(b"caf\xe9"), "caf\\udce9"),
    ],
)
def test_text_that_is_safe_to_print(text: str, shown: str) -> None:
    assert safe_text(text) == shown


def test_no_character_has_an_effect() -> None:
    """Controls (C0, C1, DEL), line and paragraph ends, direction marks, halves of pairs."""
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        shown = safe_text(character)
        assert shown.isprintable(), hex(number)
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            assert shown.isascii(), hex(number)
            assert shown.startswith("\\"), hex(number)
    for number in (0x061C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF):
        assert safe_text(chr(number)) == f"\\u{number:04x}"
