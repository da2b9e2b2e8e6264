"""GPUs → copies of the model and data lanes, and whether a recipe fits.

Ranks: world = TP x GTP x CP x PP x copies (dense), and ETP x EP x expert GTP x PP x expert copies.
Source: Core's `parallel_state.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gtp_migrate.forms import Target
from gtp_migrate.recipes.interpolation import value_of
from gtp_migrate.recipes.keys import CP, EP, PP
from gtp_migrate.runs.gpus import gpus_of, is_open
from gtp_migrate.runs.models import Model
from gtp_migrate.runs.runs import Resolved
from gtp_migrate.runs.topology import Topology, TopologyError, parallel_size, topology
from gtp_migrate.shards import DENSE, EXPERT

_NAMES = {CP: "CP", PP: "PP", EP: "EP"}


class LayoutError(Exception):
    """There is no layout to show: why."""


@dataclass(frozen=True)
class Layout:
    """How a recipe's ranks are laid out over its GPUs."""

    #: The model's name.
    model: str
    topology: Topology
    cp: int
    pp: int
    ep: int
    #: GPUs that it has; None where the recipe does not say.
    gpus: int | None
    #: GPUs of each of its nodes; None where the recipe does not say.
    gpus_per_node: int | None = field(default=None, compare=False)

    def without_gpus(self) -> Layout:
        """The same where it is not known which GPUs it has."""
        return replace(self, gpus=None, gpus_per_node=None)

    @property
    def has_gtp(self) -> bool:
        """Whether GTP is on, on either axis."""
        return (self.topology.gtp or 1) > 1 or (self.topology.expert_gtp or 1) > 1

    @property
    def ranks_per_copy(self) -> int:
        """GPUs that one copy of the model takes."""
        return self.topology.tp * (self.topology.gtp or 1) * self.cp * self.pp

    @property
    def expert_ranks_per_copy(self) -> int:
        """GPUs that one copy of the experts takes."""
        return (self.topology.etp or 1) * (self.topology.expert_gtp or 1) * self.ep * self.pp

    @property
    def copies(self) -> int | None:
        """Copies of the model (DP)."""
        return self.gpus // self.ranks_per_copy if self.gpus is not None and not self.warning else None

    @property
    def data_lanes(self) -> int | None:
        """Groups of ranks that see different data: copies x GTP."""
        copies = self.copies
        return None if copies is None else copies * (self.topology.gtp or 1)

    @property
    def warning(self) -> str | None:
        """Why the GPUs cannot hold it; None where they can, or where they are not known."""
        if self.gpus is None:
            return None
        for needed, what in (
            (self.ranks_per_copy, "TP x GTP x CP x PP"),
            (self.expert_ranks_per_copy, "ETP x EP x expert GTP x PP"),
        ):
            if self.gpus < needed:
                there = f"there {'is' if self.gpus == 1 else 'are'} {self.gpus}"
                return f"does not fit: {what} needs {needed} GPUs, {there}"
            if self.gpus % needed:
                return f"does not fit: {self.gpus} GPUs are not a multiple of {needed} ({what})"
        return None


def layout(resolved: Resolved, model: Model, target: Target, *, before: bool, is_pinned: bool) -> Layout:
    """The layout of a model in one world.

    Args:
        resolved: the run.
        model: one of its models.
        target: the form that this NeMo-RL takes.
        before: as it ran with the old setting.
        is_pinned: the run keeps the model's weights whole, whatever its counts.

    Raises:
        LayoutError: it is not in use, or says too little.
    """
    if not model.is_on:
        raise LayoutError("Megatron is switched off")
    try:
        if is_pinned:
            sizes = Topology(parallel_size(model.cfg, DENSE), parallel_size(model.cfg, EXPERT), 1, 1)
        else:
            sizes = topology(model.cfg, target, before=before)
    except TopologyError as error:
        raise LayoutError(str(error)) from None
    cp, pp, ep = (_size(resolved, model, key) for key in (CP, PP, EP))
    gpus = gpus_of(resolved, model)
    return Layout(model.name, sizes, cp, pp, ep, *((gpus.total, gpus.per_node) if gpus else (None, None)))


def in_all_worlds(layouts: Sequence[Layout]) -> Layout:
    """One layout for all worlds; its GPUs are those that it has in all of them. What its topology leaves open is of
    the first world.

    Raises:
        LayoutError: one of its other sizes is another one in another world.
    """
    first = layouts[0]
    for name in ("pp", "cp", "ep"):
        if len({getattr(each, name) for each in layouts}) > 1:
            raise LayoutError(f"{name.upper()} comes with the run")
    if len({(each.gpus, each.gpus_per_node) for each in layouts}) > 1:
        return first.without_gpus()
    return first


def _size(resolved: Resolved, model: Model, key: str) -> int:
    """A parallel size, 1 where it is not set."""
    value = value_of(model.cfg.get(key))
    if value is None:
        return 1
    if is_open(resolved.resolution, model.cfg[key]):
        raise LayoutError(f"{_NAMES[key]} comes with the run")
    if type(value) is not int or value < 1:
        raise LayoutError(f"{_NAMES[key]} is not known")
    return value
