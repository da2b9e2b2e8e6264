"""Whether there is anything to do at all: most runs, in hooks and in CI, find nothing."""

from __future__ import annotations

import sys

from gtp_migrate.recipes.survey import Survey, survey

#: Options that have no say in whether there is anything to do, and take no value.
_PLAIN_OPTIONS = frozenset({"--dry-run", "--check", "-q", "--quiet", "-v", "--verbose", "--no-ignore"})


def first_look(arguments: list[str]) -> Survey | None:
    """Reads the given files, where the arguments are plain enough to tell which; None where they are not."""
    options = {argument for argument in arguments if argument.startswith("-")}
    paths = [argument for argument in arguments if not argument.startswith("-")]
    if not paths or not options <= _PLAIN_OPTIONS or {"--dry-run", "--check"} <= options:
        return None
    try:
        return survey(paths, no_ignore="--no-ignore" in options)
    except OSError:
        return None


def has_nothing(surveyed: Survey) -> bool:
    """Whether no file, given or inherited from, can hold a setting, and nothing has to be said of any."""
    if surveyed.data or surveyed.problems or surveyed.unmatched or surveyed.ignored or surveyed.unfinished:
        return False
    return not surveyed.inherits_from_outside()


def say_nothing_to_do(surveyed: Survey) -> None:
    """The last line of a run that finds nothing."""
    files = "1 file" if surveyed.count == 1 else f"{surveyed.count:,} files"
    print(f"Nothing to migrate in {files}.", file=sys.stderr)
