"""What a checkpoint saved: the parallel size, the shard count and the GTP size of each side.

Source: Megatron-Bridge writes the finalized model config to ``run_config.yaml`` (``save_checkpoint`` in
``megatron/bridge/training/checkpointing.py``), a builder config (``_builder_``) with its transformer config
nested under ``transformer`` (``ModelConfig.as_dict`` in ``megatron/training/models/base.py``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gtp_migrate.shards import DENSE, EXPERT, Axis, expert_parallel_size, positive_int, size_from_shards

RUN_CONFIG = "run_config.yaml"
EXPERT_MODEL_PARALLEL_SIZE = "expert_model_parallel_size"

#: The four counts, and the defaults Core gives them (``ModelParallelConfig``).
COUNTS: Mapping[str, int | None] = {
    DENSE.num_weight_shards: None,
    DENSE.gtp_size: 1,
    EXPERT.num_weight_shards: None,
    EXPERT.gtp_size: 1,
}
#: Every field a topology is read from, with the defaults Core gives them.
FIELDS: Mapping[str, int | None] = {
    DENSE.parallel_size: 1,
    EXPERT.parallel_size: None,
    EXPERT_MODEL_PARALLEL_SIZE: 1,
    **COUNTS,
}


@dataclass(frozen=True)
class Side:
    """One side, dense or expert, as recorded; nothing is checked until :meth:`gtp` is asked for."""

    axis: Axis
    #: Ranks a layer's computation is split over. The expert side's is the effective one: never unset.
    parallel_size: Any
    #: Shards per weight, or None where only the GTP size was recorded.
    num_weight_shards: Any
    #: The recorded GTP size; Core ignores it where there is a shard count.
    gtp_size: Any

    def gtp(self) -> int:
        """The GTP size this side runs with; 1 is GTP off.

        Raises:
            ShardsError: the recorded numbers make no sense together.
        """
        if self.num_weight_shards is not None:
            return size_from_shards(self.num_weight_shards, self.parallel_size)
        positive_int(self.parallel_size, "the parallel size")
        return positive_int(self.gtp_size, "the GTP size")

    def __str__(self) -> str:
        shards = "" if self.num_weight_shards is None else f", {self.num_weight_shards} weight shards"
        try:
            size: Any = self.gtp()
        except ValueError:
            size = self.gtp_size
        return f"{self.axis.abbreviation} {self.parallel_size}{shards}, GTP size {size}"


@dataclass(frozen=True)
class SavedTopology:
    """Both sides of a checkpoint, and where it lies (for messages).

    Make one with :meth:`of`, which takes what is at hand.
    """

    dense: Side
    expert: Side
    checkpoint: str = "the checkpoint"

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.dense, self.expert

    @classmethod
    def of(cls, saved: Any, checkpoint: str | None = None) -> SavedTopology:
        """Read ``saved``: a SavedTopology, a mapping (a run_config or its ``model``), or a checkpoint folder.

        A folder is one with a ``run_config.yaml``, or one of ``iter_…`` folders, of which the last counts.

        Raises:
            FileNotFoundError: the folder has no run_config.yaml.
            ValueError: it does not hold a model config.
            TypeError: ``saved`` is none of these.
        """
        if isinstance(saved, SavedTopology):
            return saved
        if isinstance(saved, Mapping):
            return cls.of_config(model_section(saved), checkpoint)
        if isinstance(saved, (str, os.PathLike)):
            path = run_config_path(saved)
            return cls.of_config(model_section(read_yaml(path)), checkpoint or os.path.dirname(path))
        raise TypeError(f"saved must be a mapping, a checkpoint folder or a SavedTopology, not {type(saved).__name__}")

    @classmethod
    def of_config(cls, config: Any, checkpoint: str | None = None) -> SavedTopology:
        """Read a model config: a mapping or an object, a builder config by its ``transformer``.

        ETP unset means what it means to the config's class: Bridge's classes (those with ``finalize``) and
        serialized configs take 1 where EP > 1, else TP; Core's classes take TP.
        """
        config = transformer_config(config)
        values = {name: _value(config, name, default) for name, default in FIELDS.items()}
        tp, etp, ep = (
            values[DENSE.parallel_size],
            values[EXPERT.parallel_size],
            values[EXPERT_MODEL_PARALLEL_SIZE],
        )
        if etp is None:
            bridge = isinstance(config, Mapping) or hasattr(config, "finalize")
            etp = expert_parallel_size(None, ep if bridge and isinstance(ep, int) else 1, tp)
        return cls(
            Side(DENSE, tp, values[DENSE.num_weight_shards], values[DENSE.gtp_size]),
            Side(EXPERT, etp, values[EXPERT.num_weight_shards], values[EXPERT.gtp_size]),
            checkpoint or "the checkpoint",
        )


def _value(config: Any, name: str, default: Any) -> Any:
    return config.get(name, default) if isinstance(config, Mapping) else getattr(config, name, default)


def transformer_config(config: Any) -> Any:
    """What holds the counts: the nested ``transformer`` of a builder config, else the config itself."""
    own = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
    nested = own.get("transformer")
    if nested is None or (isinstance(config, Mapping) and not isinstance(nested, Mapping)):
        return config
    return nested


def model_section(run_config: Any) -> Mapping[str, Any]:
    """The model config of a run_config, or the mapping itself where it already is one.

    Raises:
        ValueError: there is none.
    """
    section = run_config.get("model", run_config) if isinstance(run_config, Mapping) else None
    if not isinstance(section, Mapping):
        raise ValueError("a run_config must be a mapping with a model section")
    return section


def run_config_path(checkpoint: str | os.PathLike[str]) -> str:
    """The run_config.yaml of a checkpoint folder.

    Raises:
        FileNotFoundError: there is none.
    """
    root = os.fspath(checkpoint)
    if os.path.isfile(root):
        return root
    candidates = [root]
    if os.path.isdir(root):
        iterations = [name for name in os.listdir(root) if re.fullmatch(r"iter_\d+", name)]
        candidates += [os.path.join(root, max(iterations, key=lambda name: int(name[5:])))] if iterations else []
    for folder in candidates:
        path = os.path.join(folder, RUN_CONFIG)
        if os.path.isfile(path):
            return path
    raise FileNotFoundError(f"{root}: no {RUN_CONFIG} in it nor in an iter_… folder of it")


def read_yaml(path: str) -> Any:
    """Raises ValueError where the file is not YAML."""
    import yaml

    with open(path, encoding="utf-8") as file:
        try:
            return yaml.safe_load(file)
        except yaml.YAMLError as error:
            raise ValueError(f"{path}: not readable as YAML: {error}") from error
