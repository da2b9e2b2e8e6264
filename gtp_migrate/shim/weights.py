"""Where weights are read: a GTP-sharded checkpoint fits only the topology it was written with.

Fused weights (the gate and up halves of a gated MLP's first layer, the input projection of an SSM) written
under GTP > 1 lie in an order that depends on the parallel size and the GTP size; read into another topology
they come out scrambled, and nothing notices. Where Bridge checks this itself
(``_validate_checkpoint_weight_topology`` in ``megatron/bridge/training/gtp.py``), the check here stands back.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
from typing import Any

from gtp_migrate.shim import settings
from gtp_migrate.shim.errors import GTPReshardError
from gtp_migrate.shim.loaded import read_as, settle_all
from gtp_migrate.shim.log import logger, say
from gtp_migrate.shim.settings import ALLOW_RESHARD
from gtp_migrate.shim.topology import SavedTopology, model_section

_BRIDGE_CHECK = "_validate_checkpoint_weight_topology"


def check(saved: SavedTopology, requested: SavedTopology, *, allow: bool = False) -> None:
    """Compare the topology weights were saved with and the one they are read into, each side on its own.

    A side passes where GTP is off on both ends, whatever its parallel sizes, or where parallel size and GTP
    size are the same on both. Numbers that make no sense pass with a warning.

    Args:
        allow: log a warning instead of raising.

    Raises:
        GTPReshardError: a side does not pass.
    """
    for before, now in zip(saved.sides, requested.sides, strict=True):
        try:
            sizes = (before.parallel_size, before.gtp()), (now.parallel_size, now.gtp())
        except ValueError as error:
            say(
                logging.WARNING,
                f"{saved.checkpoint}: its GTP topology cannot be compared with this run's: {error}",
            )
            continue
        if sizes[0] == sizes[1] or (sizes[0][1] == 1 and sizes[1][1] == 1):
            continue
        message = (
            f"{saved.checkpoint}: the {before.axis.name} weights were saved with {before} and would be read "
            f"with {now}. Where GTP is on at either end, fused weights come out right only between the same "
            f"sizes; otherwise their rows are scrambled without an error"
        )
        if allow:
            say(logging.WARNING, f"{message}. Read anyway, as asked for.")
            continue
        ways_out = [
            f"set {before.axis.parallel_size}: {sizes[0][0]} and {before.axis.num_weight_shards}: "
            f"{sizes[0][0] * sizes[0][1]}, as saved",
            "export the checkpoint to HF format at its own sizes and import that",
            f"if its weights are known not to be GTP-sharded (written by a Bridge where GTP was inactive, "
            f"0.6 and older, or a model without fused projections), pass allow_gtp_reshard=True to "
            f"gtp_migrate.shim.install() or set {ALLOW_RESHARD}=1",
        ]
        raise GTPReshardError(f"{message}. Ways out: " + "; or ".join(ways_out))


def bridge_checks_itself() -> bool:
    """Whether the installed Bridge has a check of its own."""
    try:
        return hasattr(importlib.import_module("megatron.bridge.training.gtp"), _BRIDGE_CHECK)
    except ImportError:
        return False


def before_model_weights(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``_load_model_weights_from_checkpoint(checkpoint_path, model, …)`` in Bridge's checkpointing."""
    arguments = _arguments(wrapped, args, kwargs)
    models = arguments.get("model")
    first = models[0] if isinstance(models, (list, tuple)) and models else models
    _guard(arguments.get("checkpoint_path"), _config_of(first))
    return wrapped(*args, **kwargs)


def after_base_checkpoint(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """``_load_base_checkpoint(…, rank0, cfg)``: a load of a torch_dist checkpoint first calls it with
    ``rank0``, which finds the checkpoint and reads no weights; of another format it makes one call."""
    result = wrapped(*args, **kwargs)
    arguments = _arguments(wrapped, args, kwargs)
    checked = not arguments.get("rank0") and getattr(arguments.get("ckpt_cfg"), "ckpt_format", None) == "torch_dist"
    # A local checkpoint has no path, and is read only by the topology that wrote it.
    if not checked and isinstance(result, tuple) and len(result) > 1 and result[0] is not None:
        _guard(result[1], getattr(arguments.get("cfg"), "model", None))
    return result


def _guard(checkpoint: Any, config: Any) -> None:
    if config is None or not isinstance(checkpoint, (str, os.PathLike)) or bridge_checks_itself():
        return
    saved = _saved(os.fspath(checkpoint))
    if saved is not None:
        settle_all(config)
        check(saved, SavedTopology.of_config(config), allow=settings.allow_gtp_reshard())


def _saved(checkpoint: str) -> SavedTopology | None:
    """Through Bridge's own readers: rank 0 reads, all ranks get the same answer."""
    try:
        checkpoint_utils = importlib.import_module("megatron.bridge.training.utils.checkpoint_utils")
        path = checkpoint_utils.get_checkpoint_run_config_filename(checkpoint)
        if checkpoint_utils.file_exists(path):
            section = model_section(checkpoint_utils.read_run_config(path))
            read = read_as(section)
            return SavedTopology.of_config(section if read is None else read.recorded, checkpoint)
        arguments = importlib.import_module("megatron.bridge.training.mlm_compat.arguments")
        return SavedTopology.of_config(arguments._load_args_from_checkpoint(checkpoint), checkpoint)
    except Exception as error:
        logger.debug("%s: what it was saved with is not known: %r", checkpoint, error)
        return None


def _config_of(model: Any) -> Any:
    """The config of a model, through wrappers that hold it as ``module``."""
    while model is not None:
        config = getattr(model, "config", None)
        if config is not None:
            return config
        model = getattr(model, "module", None)
    return None


def _arguments(function: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    return inspect.signature(function).bind(*args, **kwargs).arguments
