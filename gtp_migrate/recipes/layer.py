"""One recipe file, parsed: what it adds to a recipe, and where the settings in it stand."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from gtp_migrate.problems import Place, Problem, RecipeError, one_line
from gtp_migrate.recipes.keys import KeyPath
from gtp_migrate.recipes.reader import Reader, UnknownParentsError, fast_loader, problem_at, pure_loader
from gtp_migrate.recipes.values import Landmarks, Leaf, Source, landmarks

BOM = "\ufeff"


@dataclass(frozen=True)
class Layer:
    """What one file adds to a recipe."""

    source: Source
    #: The file's content without `defaults`; values that matter are a `Leaf`, those with an interpolation always.
    data: dict[Any, Any] = field(default_factory=dict)
    #: The same as PyYAML 6.0.4 reads lists of merges, where that differs from how 6.0.3 does.
    other_reading: dict[Any, Any] | None = None
    landmarks: Landmarks = field(default_factory=Landmarks)
    other_landmarks: Landmarks = field(default_factory=Landmarks)
    #: The files this one inherits from, as written, and where that stands.
    defaults: tuple[str, ...] = ()
    defaults_place: Place | None = None
    #: Old and new keys, wherever they stand, in the order of the text.
    settings: tuple[Leaf, ...] = ()
    #: Where an old key is mentioned in a text or as a part of a longer key.
    mentions: tuple[Place, ...] = ()
    #: Keys that a mapping has through `<<` alone, by the mapping's path.
    merged_keys: dict[KeyPath, frozenset[Any]] = field(default_factory=dict)
    #: Settings that come by `<<` into a mapping which has its own: whose, by that of the own one.
    shadowed: tuple[tuple[Leaf, Leaf], ...] = ()
    #: All comments, in the order of the text.
    comments: tuple[str, ...] = ()


def decode(data: bytes, shown: str) -> str:
    """The text of a file, a byte order mark included.

    Raises:
        RecipeError: the file is not UTF-8.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8")) + 1
        problem = Problem(
            Place(shown, line, column),
            "is not UTF-8, which is all that NeMo-RL reads",
            "save the file as UTF-8 and run again",
        )
        raise RecipeError(problem) from None


def read_layer(text: str, source: Source) -> Layer:
    """Parses the text of one recipe.

    Raises:
        RecipeError: the text is not YAML that OmegaConf would load, or not a mapping.
    """
    body = text.removeprefix(BOM)
    loader_class = fast_loader()
    if "\t" in body:
        # libyaml takes tabs in places where the pure parser, with which NeMo-RL reads, does not.
        loader_class = pure_loader()
    try:
        return _read(loader_class, body, source)
    except UnknownParentsError:
        raise
    except RecipeError as error:
        raise RecipeError(_with_template(error.problem, body)) from None
    except yaml.YAMLError as error:
        # libyaml also refuses a few things that the pure parser takes.
        with contextlib.suppress(yaml.YAMLError):
            if loader_class is not pure_loader():
                return _read(pure_loader(), body, source)
        raise RecipeError(_with_template(_yaml_problem(source, error), body)) from None


def _read(loader_class: Any, text: str, source: Source) -> Layer:
    reader = Reader(loader_class, text, source, later_wins=False)
    data = reader.read()
    other = Reader(loader_class, text, source, later_wins=True).read() if reader.is_ambiguous else None
    defaults, place = reader.take_defaults(data)
    if other is not None:
        other.pop("defaults", None)
    try:
        found = landmarks(data)
        other_found = landmarks(other) if other is not None else Landmarks()
    except OverflowError:
        what = "has aliases that expand to more than can be loaded"
        raise RecipeError(problem_at(source, None, what, "write the values out and run again")) from None
    return Layer(
        source,
        data,
        other,
        found,
        other_found,
        defaults,
        place,
        tuple(sorted(reader.settings, key=lambda leaf: leaf.offset)),
        tuple(reader.mentions),
        reader.merged_keys,
        tuple(reader.shadowed),
        tuple(_comments(text, reader.spans)),
    )


def _comments(text: str, spans: list[tuple[int, int]]) -> Iterator[str]:
    """What stands behind a `#` between the scalars of a text."""
    position = text.find("#")
    while position >= 0:
        # The last scalar that begins before it may go on behind it.
        index = bisect_right(spans, (position, len(text)))
        end = spans[index - 1][1] if index else 0
        if end <= position:
            end = text.find("\n", position)
            end = end if end >= 0 else len(text)
            yield text[position:end].strip()
        position = text.find("#", end)


def _yaml_problem(source: Source, error: yaml.YAMLError) -> Problem:
    mark, what = None, one_line(error)
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        what = one_line(error.problem or error.context or "cannot be parsed")
    return problem_at(source, mark, f"is not YAML that NeMo-RL can load ({what})")


def _with_template(problem: Problem, text: str) -> Problem:
    """The same, with another way out for a file that is to be rendered first."""
    if "{{" not in text and "{%" not in text:
        return problem
    todo = "it looks like a template: give the recipe that it is rendered to, and correct the template by hand"
    return Problem(problem.place, problem.what, todo)
