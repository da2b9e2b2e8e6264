"""The proof: each recipe trains with the same topology after as before, and nothing else in a file changed.

It looks at the edited text, before anything is written, and knows nothing of how the edit was planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from gtp_migrate.forms import Target
from gtp_migrate.problems import Place, Problem, RecipeError
from gtp_migrate.recipes.keys import MEGATRON_CFG, MODEL_OVERRIDES, NEW_KEYS, OVERRIDE_KEYS, dotted
from gtp_migrate.recipes.layer import BOM, SCANNER, load_everything
from gtp_migrate.recipes.resolve import ABSENT, Holder, Resolver, Settings, of_axis
from gtp_migrate.shards import AXES, Axis
from gtp_migrate.topology import Topology, TopologyError, topology


@dataclass(frozen=True)
class Failure:
    """A recipe that would not train as before, or of which that is not known."""

    recipe: str
    problem: Problem
    #: The `megatron_cfg`, as it was before, and the axis on which it differs; None where it is not about one.
    holder: Holder | None = None
    axis: Axis | None = None


def verify(recipes: Iterable[str], before: Resolver, after: Resolver, target: Target) -> Iterator[Failure]:
    """Compares every recipe before and after.

    Args:
        recipes: ids of all recipes that a changed file is a layer of.
        before: resolves the tree as it is.
        after: resolves the tree as it would be.
        target: the form that this NeMo-RL takes.
    """
    seen: dict[tuple[int, int], list[Failure]] = {}
    for identity in recipes:
        shown = before.tree.file(identity).shown
        try:
            pair = (before.signature(identity), after.signature(identity))
            if pair not in seen:
                seen[pair] = list(_compare(identity, before, after, target))
        except RecipeError as error:
            if _cannot_change(identity, before, after):
                continue
            yield Failure(identity, error.problem)
            continue
        for failure in seen[pair]:
            problem = Problem(Place(shown), failure.problem.what, failure.problem.todo)
            yield Failure(identity, problem, failure.holder, failure.axis)


def _cannot_change(identity: str, before: Resolver, after: Resolver) -> bool:
    """Whether none of the layers of an unreadable recipe was touched."""
    try:
        return not any(before.tree.layer(each) is not after.tree.layer(each) for each in before.tree.order(identity))
    except RecipeError:
        return False


def _compare(identity: str, before: Resolver, after: Resolver, target: Target) -> Iterator[Failure]:
    shown = before.tree.file(identity).shown
    old = {holder.path: holder for holder in before.resolve(identity).holders}
    new = {holder.path: holder for holder in after.resolve(identity).holders}

    def failure(what: str, holder: Holder | None = None, axis: Axis | None = None) -> Failure:
        todo = "nothing that is connected with it was changed; migrate it by hand, or try another --style"
        if not before.tree.file(identity).given:
            todo = "nothing that is connected with it was changed; give this file too"
        return Failure(identity, Problem(Place(shown), what, todo), holder, axis)

    if old.keys() != new.keys():
        yield failure("would gain or lose a megatron_cfg")
        return
    for path, holder in old.items():
        changed = new[path]
        name = dotted(path)
        left_outside = False
        for axis in AXES:
            if of_axis(changed.settings.size, axis) is ABSENT:
                continue
            if _comes_from_outside(identity, changed, axis, after):
                left_outside = True
            else:
                yield failure(f"{name} would still have {axis.gtp_size}", holder, axis)
        if _is_silent(holder) and _is_silent(changed):
            continue
        if holder.loads and not changed.loads:
            yield failure(f"{name} has no TP and Megatron switched off: what refers to TP would not load (give --tp N)")
            continue
        if len(holder.cases) != len(changed.cases):
            yield failure(f"{name} would have another TP")
            continue
        for alternatives, others in zip(holder.cases, changed.cases, strict=True):
            # A recipe that still gets an old key from a file that is not ours waits for that file, and must
            # mean until then what it means now.
            failed = [
                _difference(one, other, target, waits=left_outside)
                for one, other in zip(alternatives, others, strict=True)
            ]
            if all(failed):
                difference = failed[0]
                assert difference is not None
                given_tp = f" (with TP {alternatives[0].tp}, say)" if len(holder.cases) > 1 else ""
                yield failure(f"{name}{given_tp} {difference[0]}", holder, difference[1])
                break


def _difference(one: Settings, other: Settings, target: Target, *, waits: bool) -> tuple[str, Axis | None] | None:
    try:
        old = topology(one, target, before=True)
    except TopologyError as error:
        return f"cannot be proven: {error}", None
    try:
        new = topology(other, target, before=waits)
    except TopologyError as error:
        return f"would change from {old} to a run that cannot start: {error}", error.axis
    if old == new:
        return None
    return f"would change from {old} to {new}", _axis_of(old, new)


def _axis_of(old: Topology, new: Topology) -> Axis:
    return AXES[0] if old.gtp != new.gtp else AXES[1]


def _is_silent(holder: Holder) -> bool:
    """Whether a `megatron_cfg` says nothing of GTP."""
    settings = holder.settings
    return all(
        value is ABSENT or value is None
        for value in (*settings.size, *settings.override_shards, *settings.typed_shards)
    )


def _comes_from_outside(identity: str, holder: Holder, axis: Axis, resolver: Resolver) -> bool:
    """Whether the old key that is left stands in a file that is not ours to write."""
    if holder.overrides is None:
        return False
    tree = resolver.tree
    for layer_id in reversed(tree.order(identity)):
        if (*holder.overrides, axis.gtp_size) in tree.layer(layer_id).entries:
            return not tree.file(layer_id).given
    return False


def same_elsewhere(before: str, after: str) -> bool:
    """Whether two texts of a file load as the same but for the settings, and every comment is still there."""
    return _Comparison().same(load_everything(before), load_everything(after), ()) and _comments(before) == _comments(
        after
    )


class _Comparison:
    """Compares loaded YAML; what aliases share is compared once."""

    def __init__(self) -> None:
        self.known: set[tuple[int, int, bool, bool]] = set()

    def same(self, one: Any, other: Any, path: tuple[Any, ...]) -> bool:
        if type(one) is not type(other):
            return False
        if not isinstance(one, (dict, list)):
            return bool(one == other) or one != one
        in_holder = bool(path) and path[-1] == MEGATRON_CFG
        in_overrides = path[-2:] == (MEGATRON_CFG, MODEL_OVERRIDES)
        mark = (id(one), id(other), in_holder, in_overrides)
        if mark in self.known:
            return True
        self.known.add(mark)
        if isinstance(one, list):
            return len(one) == len(other) and all(
                self.same(a, b, (*path, index)) for index, (a, b) in enumerate(zip(one, other, strict=True))
            )
        ignored: frozenset[str] = frozenset()
        if in_holder:
            ignored = NEW_KEYS
        elif in_overrides or one.keys() & OVERRIDE_KEYS:
            ignored = OVERRIDE_KEYS
        keys = [key for key in {**one, **other} if key not in ignored]
        for key in keys:
            a, b = one.get(key, ABSENT), other.get(key, ABSENT)
            if key in (MODEL_OVERRIDES, MEGATRON_CFG) or not one.keys() >= {key}:
                # Added with a setting in it, or gone with its last one.
                a, b = ({} if a is ABSENT else a), ({} if b is ABSENT else b)
            if not self.same(a, b, (*path, key)):
                return False
        return True


def _comments(text: str) -> Counter[str]:
    """The comments of a text: what stands between its tokens behind a `#`."""
    text = text.removeprefix(BOM)
    comments: Counter[str] = Counter()
    position = 0
    for token in yaml.scan(text, Loader=SCANNER):
        _between(text[position : token.start_mark.index], comments)
        position = max(position, token.end_mark.index)
    _between(text[position:], comments)
    return comments


def _between(gap: str, comments: Counter[str]) -> None:
    for line in gap.split("\n"):
        mark = line.find("#")
        if mark >= 0:
            comments[line[mark:].strip()] += 1
