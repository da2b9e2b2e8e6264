"""The command line: options → the calls → an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import Enum, IntEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from gtp_migrate import __version__
from gtp_migrate.first_look import has_nothing, say_nothing_to_do
from gtp_migrate.forms import Mode, Style, Target
from gtp_migrate.problems import JudgeError, Problem
from gtp_migrate.recipes.survey import Progress, Survey, survey
from gtp_migrate.report.progress import show_progress
from gtp_migrate.streams import Tally, safe_text

if TYPE_CHECKING:
    from gtp_migrate.migrate import Options
    from gtp_migrate.outcome import Outcome


class Exit(IntEnum):
    """Exit codes."""

    DONE = 0
    LEFT_TO_MIGRATE = 1
    WRONG_USAGE = 2
    NEEDS_A_PERSON = 3


class Prove(str, Enum):
    """`--prove`."""

    RULE = "rule"
    REAL = "real"


class Format(str, Enum):
    """`--format`."""

    TEXT = "text"
    GITHUB = "github"


class TargetOption(str, Enum):
    """`--target`."""

    AUTO = "auto"
    MODEL_OVERRIDES = Target.MODEL_OVERRIDES.value
    MEGATRON_CFG = Target.MEGATRON_CFG.value


app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        print(f"gtp-migrate {__version__}")
        raise typer.Exit


@app.command(no_args_is_help=True)
def migrate(
    context: typer.Context,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATH...",
            help="Recipe files, and folders of recipes (*.yaml, *.yml at any depth).",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Write nothing; print the changes as a diff on stdout, for git apply."),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 if anything is left to migrate.")
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Write nothing; say of each recipe why its numbers are what they are, and of a checkpoint's "
            "run_config.yaml what loading it does (at --tp, --etp, --ep).",
        ),
    ] = False,
    doctor: Annotated[
        bool,
        typer.Option(
            "--doctor",
            help="Write nothing; say which Megatron packages and NeMo-RL are here, what they take, and what to do. "
            "Looks around PATH too, if one is given.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --doctor: as JSON, for bug reports.")] = False,
    target: Annotated[
        TargetOption,
        typer.Option(
            help="Where to write the new setting: in model_overrides, or in megatron_cfg for a NeMo-RL that types the "
            "field. auto reads the NeMo-RL around the recipes, or the installed one."
        ),
    ] = TargetOption.AUTO,
    style: Annotated[
        Style,
        typer.Option(
            help="A number (literal), or ${mul:3,${..tensor_model_parallel_size}} (interpolation). auto: the number "
            "where it is right for every recipe that gets it."
        ),
    ] = Style.AUTO,
    tp: Annotated[
        int | None, typer.Option("--tp", min=1, metavar="N", help="The TP to assume where no file says.")
    ] = None,
    etp: Annotated[
        int | None, typer.Option("--etp", min=1, metavar="N", help="The ETP to assume where no file says.")
    ] = None,
    ep: Annotated[
        int | None, typer.Option("--ep", min=1, metavar="N", help="The EP to assume where no file says.")
    ] = None,
    runtime_shim: Annotated[
        bool,
        typer.Option("--runtime-shim", help="These runs install the runtime shim, which keeps copied models whole."),
    ] = False,
    prove: Annotated[
        Prove,
        typer.Option(
            help="rule: every run is resolved before and after, and compared by Core's rule. real: NeMo-RL's own "
            "functions on a Bridge provider are asked as well (in their container)."
        ),
    ] = Prove.RULE,
    maps: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="FROM=TO", help="In `defaults:`, take FROM/… for TO/… (repeatable)."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Leave these files alone, by gitignore's rules (repeatable). They are still read as parents.",
        ),
    ] = None,
    no_ignore: Annotated[bool, typer.Option("--no-ignore", help="Take also files that git ignores.")] = False,
    reports: Annotated[
        list[str] | None,
        typer.Option(
            "--report",
            metavar="FILE",
            help="Also write a report, by its suffix: .html, a page for a reviewer; .json; .md, for the description of "
            "a pull request; .sarif (repeatable).",
        ),
    ] = None,
    output: Annotated[
        Format,
        typer.Option("--format", help="How problems are printed. github: as annotations on a pull request's lines."),
    ] = Format.TEXT,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print problems only.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="List every setting and every recipe.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Rewrite NeMo-RL recipes from GTP sizes to weight shard counts.

    gtp_weight_remat_size: 3 becomes tensor_parallel_num_weight_shards: 12 at TP 4, and
    expert_gtp_weight_remat_size likewise with ETP. Every recipe that inherits from a changed file is proven to
    train with the same (TP, ETP, GTP, expert GTP) before anything is written; what cannot be proven is left as
    it is, and said.

    Exit codes: 0 done, or nothing to do; 1 with --check, something is left to migrate; 2 wrong usage;
    3 some recipes need a person (the rest was done).
    """
    modes = {"--dry-run": dry_run, "--check": check, "--explain": explain, "--doctor": doctor}
    _check_usage([name for name, is_given in modes.items() if is_given], as_json, reports or [], output)
    if doctor:
        from gtp_migrate.ask import questions

        raise typer.Exit(questions.doctor(paths or [], as_json))
    if not paths:
        _wrong("no PATH is given; name recipe files, or folders of recipes")
    options = partial(_options, paths, target, style, (tp, etp, ep), runtime_shim, maps or [])
    if explain:
        raise typer.Exit(_explain(options(prove_real=False), tuple(exclude or ())))
    if reports:
        _check_reports(reports)
    mode = Mode.DRY_RUN if dry_run else Mode.CHECK if check else Mode.WRITE
    tally, surveyed = context.obj or (Tally(), None)
    with show_progress(quiet) as progress:
        look = partial(_survey, paths, tuple(exclude or ()), progress, no_ignore)
        surveyed, stopped = _look(look, surveyed, mode)
        # Where folders stand for others, only those who know which can tell what a file inherits.
        if not stopped and not maps and has_nothing(surveyed):
            outcome = None
        else:
            outcome = _work_out(partial(options, prove_real=prove is Prove.REAL), surveyed, progress, stopped)
            outcome.mode = mode
            if mode is Mode.WRITE:
                from gtp_migrate.write_all import write_all

                write_all(outcome, tally)
    if outcome is None:
        if reports:
            from gtp_migrate.outcome import Outcome

            _write_reports(Outcome(files=surveyed.count, mode=mode), reports, paths, quiet)
        if not quiet:
            say_nothing_to_do(surveyed)
        return
    if mode is Mode.DRY_RUN:
        _print_diff(outcome, tuple(paths))
    if reports:
        _write_reports(outcome, reports, paths, quiet)
    _print_summary(outcome, output, quiet, verbose)
    raise typer.Exit(_exit_code(outcome))


def _check_usage(modes: list[str], as_json: bool, reports: list[str], output: Format) -> None:
    if len(modes) > 1:
        _wrong(f"{' and '.join(modes)} exclude each other; give one of them")
    if as_json and modes != ["--doctor"]:
        _wrong("--json goes with --doctor; give both")
    if modes in (["--explain"], ["--doctor"]) and (reports or output is not Format.TEXT):
        told = "--report" if reports else "--format"
        _wrong(f"{told} does not go with {modes[0]}, which prints its answer; leave one of them out")


def _exit_code(outcome: Outcome) -> Exit:
    if outcome.mode is Mode.CHECK and (outcome.edited or outcome.left):
        return Exit.LEFT_TO_MIGRATE
    return Exit.NEEDS_A_PERSON if outcome.problems else Exit.DONE


def _look(look: Callable[[], Survey], surveyed: Survey | None, mode: Mode) -> tuple[Survey, list[Problem]]:
    """What is there, once what runs have left that were stopped is finished; and what keeps it from that."""
    surveyed = surveyed or look()
    if not surveyed.unfinished:
        return surveyed, []
    stopped = _finish(surveyed, mode)
    return (surveyed if stopped else look()), stopped


def _survey(paths: list[str], exclude: tuple[str, ...], progress: Progress, no_ignore: bool) -> Survey:
    try:
        return survey(paths, exclude, progress, no_ignore)
    except OSError as error:
        path = safe_text(str(error.filename))
        _wrong(f"{path}: cannot be read ({error.strerror}); give a file or a folder that is there")


def _finish(surveyed: Survey, mode: Mode) -> list[Problem]:
    """Finishes what runs have left that were stopped; what keeps it from that."""
    from gtp_migrate.unfinished import finish, unfinished
    from gtp_migrate.write import WriteError

    if mode is not Mode.WRITE:
        return [unfinished(path) for path in surveyed.unfinished]
    given = {found.real: found.shown for found, _ in surveyed.files()}
    problems = []
    for path in surveyed.unfinished:
        try:
            count = finish(path, given)
        except WriteError as error:
            problems.append(error.problem)
        else:
            said = f"a run was stopped between files that belong together; wrote the {count:,} that it had left"
            print(f"{safe_text(path)}: {said}", file=sys.stderr)
    return problems


def _options(
    paths: list[str],
    target: TargetOption,
    style: Style,
    assumed: tuple[int | None, int | None, int | None],
    runtime_shim: bool,
    maps: list[str],
    *,
    prove_real: bool,
) -> Options:
    from gtp_migrate.migrate import Options
    from gtp_migrate.runs.runs import Assumed

    form = None if target is TargetOption.AUTO else Target(target.value)
    return Options(tuple(paths), form, style, Assumed(*assumed), runtime_shim, prove_real, _maps(maps))


def _explain(options: Options, exclude: tuple[str, ...]) -> int:
    from gtp_migrate.ask import questions
    from gtp_migrate.runs.nemo_rl import UndecidedError

    try:
        return questions.explain(options.paths, options, exclude)
    except OSError as error:
        _wrong(
            f"{safe_text(str(error.filename))}: cannot be explained ({error.strerror}); give one recipe or run_config"
        )
    except UndecidedError as error:
        _wrong(str(error))


def _work_out(options: Callable[[], Options], surveyed: Survey, progress: Progress, stopped: list[Problem]) -> Outcome:
    from gtp_migrate.migrate import migrate
    from gtp_migrate.outcome import Outcome
    from gtp_migrate.runs.nemo_rl import UndecidedError

    if stopped:
        # What a half-written tree means, nobody can work out.
        return Outcome(files=surveyed.count, problems=stopped, left=True)

    try:
        return migrate(options(), surveyed, progress)
    except (JudgeError, UndecidedError) as error:
        _wrong(str(error))


def _maps(texts: list[str]) -> dict[str, str]:
    import os

    maps = {}
    for text in texts:
        start, equals, end = text.partition("=")
        if not equals or not start or not end:
            _wrong(f"--map {text}: is not FROM=TO; give two folders, as in --map /opt/nemo-rl=.")
        maps[os.path.normpath(start)] = os.path.abspath(os.path.expanduser(end))
    # The longest that fits is meant.
    return dict(sorted(maps.items(), key=lambda item: -len(item[0])))


def _wrong(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    raise typer.Exit(Exit.WRONG_USAGE)


def _print_diff(outcome: Outcome, paths: tuple[str, ...]) -> None:
    import os

    from gtp_migrate.report.diff import base_folder, unified_diff

    if not outcome.edited:
        return
    base = base_folder(outcome.edited, paths)
    for file in unified_diff(outcome.edited, base):
        sys.stdout.buffer.write(file)
    sys.stdout.buffer.flush()
    if base != os.path.realpath(os.getcwd()):
        print(f"The diff's names are relative to {base}: apply it there.", file=sys.stderr)


def _check_reports(files: list[str]) -> None:
    from gtp_migrate.report.files import ReportError, check_reports

    try:
        check_reports(files)
    except ReportError as error:
        _wrong(safe_text(str(error)))


def _write_reports(outcome: Outcome, files: list[str], paths: list[str], quiet: bool) -> None:
    from gtp_migrate.report.files import ReportError, write_reports

    outcome.command = ("gtp-migrate", *sys.argv[1:])
    try:
        write_reports(outcome, files, paths)
    except ReportError as error:
        _wrong(safe_text(str(error)))
    if not quiet:
        print(f"Report: {safe_text(', '.join(files))}", file=sys.stderr)


def _print_summary(outcome: Outcome, output: Format, quiet: bool, verbose: bool) -> None:
    annotated = output is Format.GITHUB
    if annotated:
        import os

        from gtp_migrate.report.github import workflow_commands

        for line in workflow_commands(outcome, os.environ.get("GITHUB_WORKSPACE")):
            print(line, file=sys.stderr)
    if quiet:
        from gtp_migrate.report.problems import problem_lines

        for line in problem_lines(outcome.problems, every=verbose) if not annotated else ():
            print(line, file=sys.stderr)
        return
    from gtp_migrate.report.table import Verbosity, make_console, print_summary

    verbosity = Verbosity.VERBOSE if verbose else Verbosity.NORMAL
    print_summary(make_console(), outcome, verbosity, has_problems=not annotated)
    if outcome.mode is Mode.CHECK and outcome.edited:
        print("Run without --check to migrate, or with --dry-run to see the changes.", file=sys.stderr)
