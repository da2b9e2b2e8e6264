"""The weights of one MLP, cut over real ranks as Core 0.19.2 cuts them, and read back by others.

Each number says where in the whole weight it belongs, so that a read knows whether its rows are right. TP cuts
fc1 by rows (each half of a gated one for itself) and fc2 by columns; GTP cuts the rows of what TP leaves, padded
to a multiple of the GTP size. Source: ``make_sharded_tensors_for_checkpoint_with_gtp_remat`` in
``megatron/core/tensor_parallel/generalized_tensor_parallelism.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.transformer.mlp import apply_swiglu_sharded_factory

from bridge_machine import ranks

HIDDEN = 8
PREFIX = "decoder.layers.0.mlp."


@dataclass(frozen=True)
class Mlp:
    """What is cut, and how."""

    tp: int = 1
    gtp: int = 1
    gated: bool = True
    #: Rows of fc1 (of one half, if gated).
    rows: int = 20
    #: GTP pads the rows that TP leaves to a multiple of this times the GTP size.
    alignment: int = 1
    #: Saved and read in logical order, as Core does since pull request 7161.
    logical: bool = False
    expert: bool = False
    #: LoRA adapters on fc1 alone instead of the weights.
    adapters: bool = False

    @property
    def ranks(self) -> int:
        return self.tp * self.gtp

    @property
    def prefix(self) -> str:
        return PREFIX + ("experts.experts." if self.expert else "")

    def whole(self) -> dict[str, torch.Tensor]:
        halves = 2 if self.gated else 1
        fc1 = torch.arange(halves * self.rows * HIDDEN, dtype=torch.float32).reshape(-1, HIDDEN)
        if self.adapters:
            return {
                "linear_fc1.adapter.linear_in.weight": 5 + fc1[: self.rows],
                "linear_fc1.adapter.linear_out.weight": fc1,
            }
        fc2 = torch.arange(HIDDEN * self.rows, dtype=torch.float32).reshape(HIDDEN, -1)
        return {"linear_fc1.weight": fc1, "linear_fc2.weight": fc2}

    def local(self, tp_rank: int, gtp_rank: int) -> dict[str, torch.Tensor]:
        """This rank's pieces, as the model holds them."""
        found = {}
        for name, whole in self.whole().items():
            if "fc2" in name:
                piece = whole.chunk(self.tp, dim=1)[tp_rank]
            else:
                halves = whole.chunk(2) if self.fused(name) else [whole]
                piece = torch.cat([half.chunk(self.tp)[tp_rank] for half in halves])
            padding = -len(piece) % (self.alignment * self.gtp) if self.gtp > 1 else 0
            piece = torch.nn.functional.pad(piece, (0, 0, 0, padding), value=-1)
            found[name] = piece.chunk(self.gtp)[gtp_rank].clone()
        return found

    def fused(self, name: str) -> bool:
        return self.gated and name in ("linear_fc1.weight", "linear_fc1.adapter.linear_out.weight")

    def sharded(self, *, blank: bool) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """The sharded state dict of this rank, and what its tensors must hold."""
        tp_rank, gtp_rank = _rank("expert_tensor_parallel" if self.expert else "tensor_model_parallel", self.tp), 0
        if self.gtp > 1:
            gtp_rank = _rank("expert_gtp_weight_remat" if self.expert else "gtp_weight_remat", self.gtp)
        replica = torch.distributed.get_rank() // self.ranks if torch.distributed.is_initialized() else 0
        entries, right = {}, self.local(tp_rank, gtp_rank)
        for name, piece in right.items():
            data = torch.full_like(piece, -7) if blank else piece
            gtp_offset = (0, gtp_rank, self.gtp)
            offsets = [gtp_offset, (1, tp_rank, self.tp)]
            if "fc2" not in name:
                offsets = [(0, tp_rank * self.gtp + gtp_rank, self.tp * self.gtp)]
            entry = ShardedTensor.from_rank_offsets(
                self.prefix + name, data, *offsets, replica_id=(0, 0, replica), allow_shape_mismatch=self.gtp > 1
            )
            if self.fused(name):
                entry = self._fused(entry, name, tp_rank, gtp_rank, replica, blank)
            entries[name] = entry
        return entries, right

    def _fused(self, entry: Any, name: str, tp_rank: int, gtp_rank: int, replica: int, blank: bool) -> Any:
        if self.logical and self.gtp > 1:  # all that TP leaves, from one GTP rank; read, and cut then
            whole = replace(self, gtp=1).local(tp_rank, 0)[name]
            data = torch.full_like(whole, -7) if blank else whole
            entry = ShardedTensor.from_rank_offsets(
                entry.key, data, (0, tp_rank, self.tp), replica_id=(0, gtp_rank, replica)
            )
        return apply_swiglu_sharded_factory(entry, ())


def _rank(group: str, size: int) -> int:
    return getattr(parallel_state, f"get_{group}_rank")() if size > 1 else 0


def groups_of(mlp: Mlp) -> None:
    if mlp.expert:
        ranks.groups(expert_tensor_parallel_size=mlp.tp, expert_gtp_remat_size=mlp.gtp)
    else:
        ranks.groups(tensor_model_parallel_size=mlp.tp, gtp_remat_size=mlp.gtp)


def write(rank: int, mlp: Mlp, folder: str) -> None:
    """Real ranks write it; those beyond its own number are replicas."""
    groups_of(mlp)
    dist_checkpointing.save(mlp.sharded(blank=False)[0], folder)


def read(rank: int, mlp: Mlp, folder: str) -> bool:
    """Whether every row read is the right one."""
    groups_of(mlp)
    entries, right = mlp.sharded(blank=True)
    loaded = dist_checkpointing.load(entries, folder)
    for name, piece in right.items():
        rows = loaded[name]
        if mlp.logical and mlp.gtp > 1 and mlp.fused(name):
            rows = rows.chunk(mlp.gtp)[_rank("gtp_weight_remat", mlp.gtp)]
        known = piece >= 0  # what is not padding
        if not torch.equal(rows[known], piece[known]):
            return False
    return True
