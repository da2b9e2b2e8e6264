"""GPUs → copies of the model and data lanes, and whether a recipe fits.

Ranks: world = TP x GTP x CP x PP x copies (dense), and ETP x EP x expert GTP x PP x expert copies.
Source: Core's `parallel_state.py`; the GPUs as `grpo.py` and `distillation.py` of NeMo-RL count them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gtp_migrate.forms import Target
from gtp_migrate.recipes.keys import dotted
from gtp_migrate.recipes.resolve import ABSENT, Holder, Resolved
from gtp_migrate.topology import Topology, TopologyError, topology


@dataclass(frozen=True)
class Layout:
    """How a recipe's ranks are laid out over its GPUs."""

    #: Of the `megatron_cfg`.
    holder: str
    topology: Topology
    cp: int
    pp: int
    ep: int
    #: GPUs that train; None where the recipe does not say.
    gpus: int | None

    @property
    def ranks_per_copy(self) -> int:
        """GPUs that one copy of the model takes."""
        return self.topology.tp * (self.topology.gtp or 1) * self.cp * self.pp

    @property
    def expert_ranks_per_copy(self) -> int:
        """GPUs that one copy of the experts takes."""
        return self.topology.etp * (self.topology.expert_gtp or 1) * self.ep * self.pp

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


def layouts(resolved: Resolved, target: Target, *, before: bool) -> list[Layout]:
    """The layout of each `megatron_cfg` of a recipe that is in use, has GTP on and says all that is needed."""
    found = []
    for holder in resolved.holders:
        layout = _layout(holder, resolved, target, before)
        if layout and ((layout.topology.gtp or 1) > 1 or (layout.topology.expert_gtp or 1) > 1):
            found.append(layout)
    return found


def _layout(holder: Holder, resolved: Resolved, target: Target, before: bool) -> Layout | None:
    if not holder.is_on or len(holder.cases) > 1:
        return None
    settings = holder.settings
    try:
        sizes = topology(settings, target, before=before)
    except TopologyError:
        return None
    cp, pp, ep = (_size(value) for value in (settings.cp, settings.pp, settings.ep))
    if cp is None or pp is None or ep is None:
        return None
    return Layout(dotted(holder.path), sizes, cp, pp, ep, training_gpus(resolved))


def training_gpus(resolved: Resolved) -> int | None:
    """GPUs of the cluster, less what generation takes for itself; None where a recipe does not say."""
    per_node, nodes = resolved.gpus_per_node, resolved.num_nodes
    if not _is_count(per_node) or not _is_count(nodes):
        return None
    if resolved.colocated is not False:
        return int(per_node * nodes)
    generation_gpus, generation_nodes = resolved.generation_gpus_per_node, resolved.generation_nodes
    if nodes == 1:
        return per_node - generation_gpus if _is_count(generation_gpus) and generation_gpus < per_node else None
    if not _is_count(generation_nodes) or generation_nodes >= nodes:
        return None
    return int(per_node * (nodes - generation_nodes))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _size(value: Any) -> int | None:
    """A parallel size, 1 where it is not set; None where it is not known."""
    if value is ABSENT or value is None:
        return 1
    return value if _is_count(value) else None
