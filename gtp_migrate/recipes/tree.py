"""The files of a run and how they inherit from each other, exactly as NeMo-RL follows `defaults:`.

Source: `load_config_with_inheritance` in NeMo-RL (`nemo_rl/utils/config.py`).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gtp_migrate.problems import Place, Problem, RecipeError
from gtp_migrate.recipes.discover import Found, found, recipe_id
from gtp_migrate.recipes.glance import Glance, glance
from gtp_migrate.recipes.keys import LAYOUT_PATHS, USUAL_HOLDERS, KeyPath
from gtp_migrate.recipes.layer import Layer, UnknownParentsError, decode, read_layer
from gtp_migrate.recipes.survey import Survey, read_bytes


@dataclass
class RecipeFile:
    """One file of the tree."""

    found: Found
    glance: Glance
    #: Whether the file was among the given paths: only those are ever written.
    given: bool
    #: The bytes as first read; kept only of files that mention an old or a new key.
    data: bytes | None = None

    @property
    def shown(self) -> str:
        return self.found.shown


@dataclass
class Tree:
    """All files known so far, by recipe id. Files outside the given paths are read when first asked for."""

    files: dict[str, RecipeFile] = field(default_factory=dict)
    #: Recipes that may inherit from anything.
    unknown_parents: set[str] = field(default_factory=set)
    _layers: dict[str, Layer] = field(default_factory=dict)
    _parents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _checked_parents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _orders: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _wanted: frozenset[KeyPath] = LAYOUT_PATHS
    _around: frozenset[KeyPath] = USUAL_HOLDERS
    #: Bytes that stand in for what is on the disk: the tree as it would be after an edit.
    _edited: dict[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, surveyed: Survey) -> Tree:
        """The tree of the given files."""
        tree = cls()
        for file, seen in surveyed.files():
            tree.files[file.id] = RecipeFile(file, seen, True, surveyed.data.get(file.id))
        return tree

    def add(self, file: Found) -> RecipeFile:
        """Reads a file outside the given paths and takes it in.

        Raises:
            OSError: it cannot be read.
        """
        if not stat.S_ISREG(os.stat(file.id).st_mode):
            raise OSError(errno.EINVAL, "not a file", file.id)
        data = read_bytes(file.id)
        seen = glance(data)
        known = RecipeFile(file, seen, False, data if seen.old or seen.new else None)
        self.files[file.id] = known
        return known

    def file(self, identity: str) -> RecipeFile:
        """The file with this id, read now if it is not known yet.

        Raises:
            OSError: it cannot be read.
        """
        return self.files.get(identity) or self.add(found(identity))

    def text(self, identity: str) -> str:
        """The text of a file, a byte order mark included.

        Raises:
            RecipeError: it is not UTF-8, or cannot be read.
        """
        data = self._edited.get(identity)
        file = self.file(identity)
        if data is None:
            data = file.data
        if data is None:
            try:
                data = read_bytes(identity)
            except OSError as error:
                raise RecipeError(
                    Problem(Place(file.shown), f"cannot be read ({error.strerror})", "make it readable")
                ) from None
        return decode(data, file.shown)

    def layer(self, identity: str) -> Layer:
        """What a file adds to a recipe.

        Raises:
            RecipeError: the file cannot be read or parsed.
        """
        layer = self._layers.get(identity)
        if layer is None:
            layer = read_layer(self.text(identity), self.file(identity).shown, self._wanted, self._around)
            self._layers[identity] = layer
        return layer

    def likely_parents(self, identity: str) -> tuple[str, ...]:
        """The recipes a file inherits from, by a glance where that is enough; none where it cannot be told."""
        known = self._parents.get(identity)
        if known is None:
            defaults = self.file(identity).glance.defaults
            if defaults is None:
                try:
                    defaults = self.layer(identity).defaults
                except UnknownParentsError:
                    self.unknown_parents.add(identity)
                    defaults = ()
                except RecipeError:
                    defaults = ()
            known = self._parents[identity] = _parent_ids(identity, defaults)
        return known

    def parents(self, identity: str) -> tuple[str, ...]:
        """The recipes a file inherits from, in their order.

        Raises:
            RecipeError: the file cannot be read or parsed, or a parent does not exist.
        """
        known = self._checked_parents.get(identity)
        if known is not None:
            return known
        defaults = self.layer(identity).defaults
        ids = _parent_ids(identity, defaults)
        for parent, written in zip(ids, defaults, strict=True):
            try:
                self.file(parent)
            except OSError as error:
                entry = self.layer(identity).entries[("defaults",)]
                raise RecipeError(
                    Problem(
                        Place(self.file(identity).shown, entry.line, entry.column),
                        f"inherits from {written}, which cannot be read ({error.strerror})",
                        "correct `defaults:` or bring the file back, and run again",
                    )
                ) from None
        self._checked_parents[identity] = ids
        return ids

    def order(self, identity: str) -> tuple[str, ...]:
        """The layers of a recipe, earliest first: each parent with all that it inherits, then the file itself.

        A file that is reached twice stands there twice: NeMo-RL merges it again.

        Raises:
            RecipeError: a layer cannot be read, or the files inherit from each other in a circle.
        """
        return self._order(identity, ())

    def _order(self, identity: str, below: tuple[str, ...]) -> tuple[str, ...]:
        known = self._orders.get(identity)
        if known is not None:
            return known
        if identity in below:
            circle = below[below.index(identity) :]
            # Named by the same file whoever runs into it: one circle is one problem.
            first = min(circle)
            circle = circle[circle.index(first) :] + circle[: circle.index(first)] + (first,)
            entry = self.layer(first).entries[("defaults",)]
            raise RecipeError(
                Problem(
                    Place(self.file(first).shown, entry.line, entry.column),
                    "inherits from itself: " + " → ".join(self.file(step).shown for step in circle),
                    "break the circle and run again",
                )
            )
        order: list[str] = []
        for parent in self.parents(identity):
            order.extend(self._order(parent, (*below, identity)))
        order.append(identity)
        if len(order) > 10_000:
            raise RecipeError(
                Problem(Place(self.file(identity).shown), "inherits from too many files", "shorten `defaults:`")
            )
        self._orders[identity] = tuple(order)
        return self._orders[identity]

    def heirs(self, seeds: Iterable[str]) -> set[str]:
        """The seeds and all files known that inherit from them, at any distance."""
        children: dict[str, list[str]] = {}
        for identity in list(self.files):
            for parent in self.likely_parents(identity):
                children.setdefault(parent, []).append(identity)
        reached = set(seeds)
        pending = list(reached)
        while pending:
            for child in children.get(pending.pop(), ()):
                if child not in reached:
                    reached.add(child)
                    pending.append(child)
        return reached

    def read_parents_outside(self) -> None:
        """Takes in all parents of known files, at any distance, that are not known yet and exist."""
        pending = list(self.files)
        while pending:
            for parent in self.likely_parents(pending.pop()):
                if parent not in self.files:
                    try:
                        self.file(parent)
                    except OSError:
                        continue
                    pending.append(parent)

    def widen(self, identities: Iterable[str]) -> frozenset[Any] | None:
        """Makes the layers of these files keep all that their interpolations and `megatron_cfg`s need.

        A layer is pruned to what is known to matter; what an interpolation in it refers to, and a
        `megatron_cfg` deeper than usual, are known only once it is read.

        Returns:
            The keys at the top level that can matter; None for all.
        """
        wanted, around = set(self._wanted), set(self._around)
        while True:
            for identity in identities:
                try:
                    layer = self.layer(identity)
                except RecipeError:
                    continue
                wanted.update(reference for reference in layer.references if not _is_kept(reference, layer))
                wanted.update(holder for holder in layer.holders if len(holder) > 2)
                around.update(path[:length] for path in layer.holders for length in range(1, len(path) + 1))
            if wanted == self._wanted and around == self._around:
                if () in wanted:
                    return None
                tops = {path[0] for path in wanted}
                for identity in identities:
                    if identity in self._layers:
                        layer = self._layers[identity]
                        tops.update(path[0] for path in layer.holders | layer.references)
                return frozenset(tops)
            self._wanted, self._around = frozenset(wanted), frozenset(around)
            self._layers.clear()

    def with_edits(self, edited: dict[str, bytes]) -> Tree:
        """The same tree with other content in some files. Nothing is written."""
        same = {identity: layer for identity, layer in self._layers.items() if identity not in edited}
        return Tree(
            self.files,
            self.unknown_parents,
            same,
            self._parents,
            dict(self._checked_parents),
            dict(self._orders),
            self._wanted,
            self._around,
            edited,
        )


def _is_kept(reference: KeyPath, layer: Layer) -> bool:
    return reference in layer.entries and not layer.entries[reference].is_container


def _parent_ids(identity: str, defaults: Iterable[str]) -> tuple[str, ...]:
    folder = os.path.dirname(identity)
    return tuple(recipe_id(os.path.join(folder, path)) for path in defaults)
