"""`--prove real`: NeMo-RL's own functions on a Bridge provider have to say of every run what the proof says.

Only in an environment that has both, such as NeMo-RL's container; no GPU is needed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from gtp_migrate.draft import Draft
from gtp_migrate.plan.stock import Stock, is_pinned
from gtp_migrate.problems import Place
from gtp_migrate.proof import Failure
from gtp_migrate.recipes.keys import MEGATRON_CFG, dotted
from gtp_migrate.runs.models import Kind, Model
from gtp_migrate.runs.runs import World
from gtp_migrate.runs.topology import Topology, TopologyError, topology

if TYPE_CHECKING:
    from gtp_migrate.judge.client import Judge
    from gtp_migrate.judge.protocol import Answer
    from gtp_migrate.judge.protocol import Model as Judged

#: `module:function`, called in the judge's process before it imports NeMo-RL: for machines that lack what Bridge
#: imports.
PREPARE = "GTP_MIGRATE_JUDGE_PREPARE"


class SecondJudge:
    """The judge, for as long as the context lasts; where it is not wanted, one that has nothing to say.

    Args:
        stock: the settings and the runs.
        roots: NeMo-RL checkouts to take NeMo-RL from, where there are any.
        wanted: whether to ask it at all.

    Raises:
        JudgeError: on entering, where NeMo-RL or Bridge is not there; on asking, where the process ends.
    """

    def __init__(self, stock: Stock, roots: Iterable[str], *, wanted: bool) -> None:
        self.stock = stock
        self.notes: list[str] = []
        self._judge: Judge | None = None
        if wanted:
            from gtp_migrate.judge.client import Judge

            path = os.pathsep.join([*roots, *filter(None, [os.environ.get("PYTHONPATH")])])
            prepare = [name for name in os.environ.get(PREPARE, "").split(",") if name]
            self._judge = Judge(prepare=prepare, env={"PYTHONPATH": path})

    def __enter__(self) -> SecondJudge:
        if self._judge is not None:
            self._judge.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._judge is not None:
            self._judge.__exit__(kind, error, traceback)

    def failures(self, latest: Draft) -> Iterator[Failure]:
        """What NeMo-RL says otherwise of the runs that are changed. Notes how many runs it has judged, and how long
        that took."""
        if self._judge is None:
            return
        started = time.monotonic()
        edited = {recipe: file.found for recipe, file in self.stock.tree.files.items()}
        overlay = {
            path: latest.texts[found.real]
            for found in edited.values()
            if found.real in latest.texts
            for path in (found.id, found.real)
        }
        runs, unknown = 0, 0
        for recipe in self.stock.recipes:
            if latest.after.tree.state(recipe):
                runs += 1
                for world in self.stock.runs.run(recipe).worlds:
                    before, after = self._ask(recipe, world, {}), self._ask(recipe, world, overlay)
                    unknown += before.failure is not None and world is self.stock.runs.run(recipe).worlds[0]
                    yield from self._compare(recipe, world, before, after)
        hello, seconds = self._judge.hello, time.monotonic() - started
        said = f"NeMo-RL ({hello.nemo_rl}) and Megatron-Bridge {hello.bridge} were asked about {runs} runs"
        said += f" in {seconds:.1f} s"
        self.notes.append(said + (f"; they cannot load {unknown} of them, before or after" if unknown else ""))

    def _ask(self, recipe: str, world: World, overlay: dict[str, str]) -> Answer:
        from gtp_migrate.judge.protocol import Request

        assert self._judge is not None
        overrides = tuple(f"++{dotted(path)}={value}" for path, value in world.supplied)
        resolvers = self.stock.runs.run(recipe).has_resolvers
        return self._judge.ask(Request(recipe, overlay, overrides, resolvers, world.as_launched))

    def _compare(self, recipe: str, world: World, before: Answer, after: Answer) -> Iterator[Failure]:
        place = Place(self.stock.tree.shown(recipe))
        if before.failure is not None:
            return
        if after.failure is not None:
            what = f"NeMo-RL itself could not {after.failure.stage} it any more: {after.failure.message}"
            yield Failure(recipe, place, what)
            return
        if before.untyped is None and after.untyped is not None:
            yield Failure(recipe, place, f"NeMo-RL itself would not start it any more: {after.untyped}")
        for model in self.stock.runs.resolved(recipe, world).models:
            if not is_pinned(model, self.stock.pins_copies):
                name = _name(model)
                old, new = before.models.get(name), after.models.get(name)
                if (difference := self._difference(model, old, new)) is not None:
                    said = f"{model.name}: by NeMo-RL's own functions {difference}"
                    yield Failure(recipe, place, said, model=model.name)

    def _difference(self, model: Model, old: Judged | None, new: Judged | None) -> str | None:
        if old is None or new is None:
            return "it is built only before" if new is None and old is not None else None
        was = _topology(old) or self._by_the_rule(model, old)
        if was is None:
            return None  # it could not be built before, by anybody's word
        would_be = _topology(new)
        if would_be is None:
            return f"it would change from {was} to a run that cannot start: {new.error}"
        return None if was == would_be else f"it would change from {was} to {would_be}"

    def _by_the_rule(self, model: Model, old: Judged) -> Topology | None:
        """What a model had by the rule, where this Bridge takes the old setting no more."""
        if old.error is None or "gtp_weight_remat_size" not in old.error:
            return None
        try:
            return topology(model.cfg, self.stock.target, before=True)
        except TopologyError:
            return None


def _topology(judged: Judged) -> Topology | None:
    sizes = judged.sizes
    return Topology(sizes.tp, sizes.etp, sizes.gtp, sizes.expert_gtp) if sizes is not None else None


def _name(model: Model) -> str:
    """The judge's name of a model: mappings go by what holds them."""
    if model.kind is not Kind.MAPPING:
        return model.name
    return dotted(model.path[:-1]) or "." if model.path[-1] == MEGATRON_CFG else model.name
