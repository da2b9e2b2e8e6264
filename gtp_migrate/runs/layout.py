"""GPUs → copies of the model and data lanes, and whether a recipe fits.

Ranks: world = TP x GTP x CP x PP x copies (dense), and ETP x EP x expert GTP x PP x expert copies.
Source: Core's `parallel_state.py`; the GPUs as `grpo.py` and `distillation.py` of NeMo-RL count them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gtp_migrate.forms import Target
from gtp_migrate.recipes.interpolation import value_of
from gtp_migrate.recipes.keys import CP, EP, PP
from gtp_migrate.recipes.values import mapping_at
from gtp_migrate.runs.models import Kind, Model
from gtp_migrate.runs.topology import Topology, TopologyError, parallel_size, topology
from gtp_migrate.shards import DENSE, EXPERT


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
                return f"does not fit: {what} needs {needed} GPUs, there are {self.gpus}"
            if self.gpus % needed:
                return f"does not fit: {self.gpus} GPUs are not a multiple of {needed} ({what})"
        return None


def layout(recipe: dict[Any, Any], model: Model, target: Target, *, before: bool, is_pinned: bool) -> Layout | None:
    """The layout of a model that is in use, and says all that is needed.

    Args:
        recipe: resolved.
        model: one of its models.
        target: the form that this NeMo-RL takes.
        before: as it ran with the old setting.
        is_pinned: the run keeps the model's weights whole, whatever its counts.
    """
    if not model.is_on:
        return None
    try:
        if is_pinned:
            sizes = Topology(parallel_size(model.cfg, DENSE), parallel_size(model.cfg, EXPERT), 1, 1)
        else:
            sizes = topology(model.cfg, target, before=before)
    except TopologyError:
        return None
    cp, pp, ep = (_size(model.cfg.get(key)) for key in (CP, PP, EP))
    if cp is None or pp is None or ep is None:
        return None
    gpus = _gpus(recipe, model)
    return Layout(model.name, sizes, cp, pp, ep, gpus, _per_node(recipe, gpus))


def _gpus(recipe: dict[Any, Any], model: Model) -> int | None:
    """GPUs of the cluster, less what generation takes for itself; for generation of its own, those; for a teacher,
    its own."""
    if model.kind is Kind.TEACHER:
        return None
    cluster = mapping_at(recipe, ("cluster",)) or {}
    per_node, nodes = value_of(cluster.get("gpus_per_node")), value_of(cluster.get("num_nodes"))
    if not _is_count(per_node) or not _is_count(nodes):
        return None
    colocated = mapping_at(recipe, ("policy", "generation", "colocated")) or {}
    if value_of(colocated.get("enabled")) is not False:
        return int(per_node * nodes)
    resources = mapping_at(colocated, ("resources",)) or {}
    apart = _apart(per_node, nodes, value_of(resources.get("gpus_per_node")), value_of(resources.get("num_nodes")))
    if apart is None:
        return None
    return apart if model.kind is Kind.GENERATION else int(per_node * nodes - apart)


def _per_node(recipe: dict[Any, Any], gpus: int | None) -> int | None:
    """A model that has less than a node's GPUs has them on one node."""
    per_node = value_of((mapping_at(recipe, ("cluster",)) or {}).get("gpus_per_node"))
    return min(per_node, gpus) if gpus is not None and _is_count(per_node) else None


def _apart(per_node: int, nodes: int, generation_gpus: Any, generation_nodes: Any) -> int | None:
    """GPUs that generation takes for itself."""
    if nodes == 1:
        return generation_gpus if _is_count(generation_gpus) and generation_gpus < per_node else None
    if not _is_count(generation_nodes) or generation_nodes >= nodes:
        return None
    return int(per_node * generation_nodes)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _size(value: Any) -> int | None:
    """A parallel size, 1 where it is not set; None where it is not known."""
    value = value_of(value)
    if value is None:
        return 1
    return value if _is_count(value) else None
