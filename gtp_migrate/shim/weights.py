"""Where weights are read: is this load known to come out wrong? By facts, not by what configs ask for.

GTP cuts the rows of a weight into TP x GTP pieces. A fused weight (the gate and up halves of fc1, the projections
of in_proj) is saved part by part; where each rank parts its own piece, only the same TP and GTP read the rows back
in order. Core saves them in logical order since pull request 7161. Padding for GTP shifts the rows of TP ranks.

This run's side are its process groups. The checkpoint's side is how its weights were cut, as its metadata lists
piece by piece: a row-parallel one by TP in its columns and GTP in its rows, a column-parallel one by TP x GTP in
its rows. Every rank looks for itself; nothing here is a collective.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from gtp_migrate.shards import DENSE, EXPERT, Axis
from gtp_migrate.shim.install import ALLOW_RESHARD, allow_gtp_reshard, warn_once
from gtp_migrate.shim.reset import RUN_CONFIG, model_section, read_yaml
from gtp_migrate.shim.saved import parallel_sizes

_CANNOT_TELL = "{}: whether its weights fit this run's GTP cannot be told: {!r}"
_LOGICAL_ORDER = "megatron.core.tensor_parallel.gtp_ckpt"
_END = r"\.weight\d*"
#: Core's layers, and the LoRA adapters on them; a fused weight has one key, or one for each part.
_ROW_PARALLEL = re.compile(rf"(.*)\.(?:linear_fc2|linear_proj|out_proj)(?:\.adapter\.linear_in)?{_END}$")
_COLUMN_PARALLEL = re.compile(rf".*\.(?:linear_qkv(?:\.adapter\.linear_out)?|linear_fc1\.adapter\.linear_in){_END}$")
_FUSED = re.compile(rf"(.*)\.(linear_fc1|in_proj)(?:\.adapter\.linear_out)?{_END}(_[wv]|\.\w+)?$")


class GTPReshardError(ValueError):
    """Weights were about to be read into a topology where they would come out in the wrong order."""


class Topology(NamedTuple):
    """Over how many ranks weights are cut: by TP or ETP, and by GTP."""

    parallel_size: int
    gtp_size: int

    def __str__(self) -> str:
        return f"{self.parallel_size} and " + (f"GTP size {self.gtp_size}" if self.gtp_size > 1 else "no GTP")


class Cut(NamedTuple):
    """Into how many pieces a weight is cut, and its rows and columns."""

    row_pieces: int
    column_pieces: int
    rows: int
    columns: int


def load(original: Callable[..., Any], sharded_state_dict: Any, checkpoint_dir: Any, *args: Any, **kwargs: Any) -> Any:
    """``dist_checkpointing.load``.

    Raises:
        GTPReshardError: rows would come out in the wrong order, and nobody said to read them anyway.
    """
    checkpoint, wrong = str(checkpoint_dir), []
    try:
        for axis, weights, here in _sides(checkpoint):
            if there := _wrong(weights, here, checkpoint, axis, sharded_state_dict):
                wrong.append((axis, there, here))
    except Exception as error:  # no load that works may fail by looking
        warn_once(_CANNOT_TELL.format(checkpoint, error))
    for axis, there, here in wrong:
        _refuse(checkpoint, axis, there, here)
    return original(sharded_state_dict, checkpoint_dir, *args, **kwargs)


def _refuse(checkpoint: str, axis: Axis, there: Topology, here: Topology) -> None:
    """Say what would go wrong, and only ways out that work in this case."""
    shards = there.parallel_size * there.gtp_size
    sizes = f"{axis.parallel_size}: {there.parallel_size} and {axis.num_weight_shards}: {shards}"
    if there.gtp_size == 1:
        case = "was saved without GTP, as an import from HF is"
        ways = f"run without GTP ({axis.num_weight_shards}: null), or with a Core that reads the logical order"
    elif here.gtp_size == 1:
        case = "was saved with GTP and is read without, as every export to HF at TP 1 does"
        ways = f"read it in a run with the sizes it was saved with ({sizes}), and export it to HF from there"
    else:
        case = "was saved with GTP of another shape"
        ways = f"run with the sizes it was saved with ({sizes}), or export it to HF at those and import that"
    message = (
        f"{checkpoint} {case}: its {axis.name} weights are cut by {axis.abbreviation} {there}, this run's by "
        f"{axis.abbreviation} {here}. Fused or padded rows would come out in the wrong order, without an error. Ways "
        f"out: {ways}; {ALLOW_RESHARD}=1 (gtp-shim --allow-reshard) reads it all the same."
    )
    if importlib.util.find_spec(_LOGICAL_ORDER) is not None:
        if there.gtp_size > 1:  # else this Core reads it right
            warn_once(f"{checkpoint}: its {axis.name} weights are cut by {there} in an order of their own")
    elif allow_gtp_reshard():
        warn_once(f"{message} Read anyway, as asked for.")
    else:
        raise GTPReshardError(message)


def _sides(checkpoint: str) -> Iterator[tuple[Axis, dict[str, Cut], Topology]]:
    """Dense and expert: how the weights in a torch_dist checkpoint were cut, those of two dimensions or more, but not
    the optimizer's; and this process's groups, where there are none whole weights. None where Bridge checks itself."""
    with suppress(ImportError):
        bridge = "megatron.bridge" in sys.modules and importlib.import_module("megatron.bridge.training.gtp")
        if hasattr(bridge, "_validate_checkpoint_weight_topology"):
            return
    reader = importlib.import_module("megatron.core.dist_checkpointing.strategies.torch")._get_filesystem_reader
    cuts = {}
    for key, tensor in reader(checkpoint).read_metadata().state_dict_metadata.items():
        if len(getattr(tensor, "size", ())) > 1 and not key.startswith("optimizer."):
            rows, columns = (len({chunk.offsets[dimension] for chunk in tensor.chunks}) for dimension in (-2, -1))
            cuts[key] = Cut(rows, columns, *tensor.size[-2:])
    for axis, *groups in (
        (DENSE, "tensor_model_parallel", "gtp_weight_remat"),
        (EXPERT, "expert_tensor_parallel", "expert_gtp_weight_remat"),
    ):
        of_axis = {key: cut for key, cut in cuts.items() if (".experts." in key) == (axis is EXPERT)}
        yield axis, of_axis, Topology(*map(_group_size, groups))


def _group_size(name: str) -> int:
    try:
        return getattr(importlib.import_module("megatron.core.parallel_state"), f"get_{name}_world_size")() or 1
    except (AttributeError, AssertionError):  # a Core without it, or no such group
        return 1


def _wrong(weights: dict[str, Cut], here: Topology, checkpoint: str, axis: Axis, asked: Any) -> Topology | None:
    """How the weights that would come out wrong were cut, if there are any."""
    layers = {
        m[1]: Topology(c.column_pieces, c.row_pieces) for k, c in weights.items() if (m := _ROW_PARALLEL.match(k))
    }
    unknown = None
    for key, cut in weights.items():
        if match := _FUSED.match(key):
            try:
                there = layers.get(match[1]) or _topology(weights, set(layers.values()), checkpoint, axis)
                order = _order(match, cut.row_pieces, there)
            except LookupError as error:
                unknown = error
                continue
            if order not in (None, here) and max(order.gtp_size, here.gtp_size) > 1:
                return order
    for there in set(layers.values()) - {here}:
        if any(size.gtp_size > 1 and size.parallel_size > 1 for size in (there, here)) and _padded(weights, asked):
            return there
    if unknown is not None:
        warn_once(_CANNOT_TELL.format(checkpoint, unknown))
    return None


def _order(fused: re.Match[str], pieces: int, there: Topology) -> Topology | None:
    """The topology that the rows were put in order for, GTP size 1 for the logical order; None: any reads them.

    LookupError, here and below: it cannot be told.
    """
    fc1, parts = fused[2] == "linear_fc1", 1 if fused[3] else 2
    if pieces == parts * there.parallel_size * there.gtp_size:
        return there if fc1 or there.gtp_size > 1 else None
    if pieces == parts * there.parallel_size and there.gtp_size != 2:
        return Topology(there.parallel_size, 1) if fc1 else None
    if pieces == there.parallel_size * there.gtp_size:
        return None  # not gated (with GTP size 2 it may be fused in logical order: then, too, all but GTP reads it)
    raise LookupError(f"{fused.string} is cut into {pieces} pieces, other weights by {there}")


def _topology(weights: dict[str, Cut], others: set[Topology], checkpoint: str, axis: Axis) -> Topology:
    """Without a row-parallel weight beside it: that of all others, or by the recorded TP, which is a fact."""
    if len(others) == 1:
        return others.copy().pop()
    try:
        section = model_section(read_yaml(os.path.join(checkpoint, RUN_CONFIG)))
    except (OSError, ValueError):
        raise LookupError(f"no row-parallel weight, and no {RUN_CONFIG} that says {axis.abbreviation}") from None
    pieces = {cut.row_pieces for key, cut in weights.items() if _COLUMN_PARALLEL.match(key)}
    gtp_size, rest = divmod(max(pieces, default=0), parallel_sizes(section)[axis])
    if len(pieces) != 1 or rest or not gtp_size:
        raise LookupError("no weight tells how rows were cut")
    return Topology(parallel_sizes(section)[axis], gtp_size)


def _padded(weights: dict[str, Cut], asked: Any) -> bool:
    """Whether a column-parallel weight has padded rows there or here: fc1 more than fc2 has columns, or others there
    than this run asks for. Those of a vocabulary may differ: every load allows for its padding."""
    nested_values = importlib.import_module("megatron.core.dist_checkpointing.dict_utils").nested_values
    here = {e.key: e.global_shape[-2] for e in nested_values(asked) if len(getattr(e, "global_shape", ())) > 1}
    for key, cut in weights.items():
        fc2 = weights.get(key.removesuffix("fc1.weight") + "fc2.weight")
        if fc2 is not None and cut.rows % fc2.columns:
            return True
        differs = here.get(key, cut.rows) != cut.rows
        if differs and not _ROW_PARALLEL.match(key) and not re.search("embedding|output_layer", key):
            return True
    return False
