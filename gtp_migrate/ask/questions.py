"""`--explain` and `--doctor`: what is asked → lines on stdout and an exit code. Nothing is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TextIO

from gtp_migrate.problems import RecipeError

if TYPE_CHECKING:
    from gtp_migrate.ask.loading import Load
    from gtp_migrate.ask.run_config import SavedConfig
    from gtp_migrate.migrate import Options
    from gtp_migrate.runs.runs import Assumed

DONE = 0
NEEDS_A_PERSON = 3


def explain(paths: Iterable[str], options: Options, exclude: tuple[str, ...]) -> int:
    """Explains each file: a recipe, or a checkpoint's run_config.yaml, told apart by what is in it.

    Returns:
        3 where something needs a person, else 0.

    Raises:
        OSError: a path is not a file that can be read.
        UndecidedError: nobody can tell which form to write.
    """
    code = DONE
    for index, path in enumerate(paths):
        if index:
            _print([""])
        code = max(code, _explain(path, options, exclude))
    return code


def _explain(path: str, options: Options, exclude: tuple[str, ...]) -> int:
    from dataclasses import replace

    from gtp_migrate.ask.explain import explain_recipe
    from gtp_migrate.ask.run_config import read_run_config
    from gtp_migrate.report.explain import checkpoint_lines, recipe_lines

    if os.path.isdir(path):
        raise IsADirectoryError(0, "a folder", path)
    with open(path, "rb") as stream:
        data = stream.read()
    try:
        saved = read_run_config(data, path)
    except RecipeError as error:
        _print([str(error.problem)], sys.stderr)
        return NEEDS_A_PERSON
    if saved is not None:
        _print(checkpoint_lines(saved, _loads(saved, options.assumed)))
        return DONE
    explained = explain_recipe(replace(options, paths=(path,)), exclude)
    _print(recipe_lines(explained))
    return NEEDS_A_PERSON if explained.problems else DONE


def _loads(saved: SavedConfig, assumed: Assumed) -> Iterator[tuple[str, tuple[Load, ...]]]:
    """The load that is asked about; else one at the saved sizes, and the one that every export to HF makes."""
    from gtp_migrate.ask.loading import loads
    from gtp_migrate.report.explain import asked

    sizes = (assumed.tp, assumed.etp, assumed.ep)
    everywhere = [sizes] if any(sizes) else [(None, None, None), (1, 1, 1)]
    for each in everywhere:
        title = "Loaded at TP 1, as every export to HF does" if each == (1, 1, 1) and not any(sizes) else asked(*each)
        yield title, tuple(loads(saved, *each))


def doctor(paths: Iterable[str], as_json: bool) -> int:
    """Says what is installed here, what it takes, and what to do."""
    from gtp_migrate.ask.doctor import diagnose
    from gtp_migrate.report.doctor import diagnosis_json, diagnosis_lines

    found = diagnose(paths)
    if as_json:
        print(diagnosis_json(found))
    else:
        _print(diagnosis_lines(found))
    return DONE


def _print(lines: Iterable[str], stream: TextIO | None = None) -> None:
    from gtp_migrate.report.lines import print_lines

    print_lines(lines, stream or sys.stdout)
