"""Config classes that treat the GTP size as Bridge does since it takes shard counts: the size is no
constructor argument, ``finalize()`` derives it from the shard count and refuses a count that does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.models.transformer_config import (
    HeterogeneousTransformerConfig,
    MLATransformerConfig,
    TransformerConfig,
)


def derive_gtp_sizes(config) -> None:
    if config.expert_tensor_parallel_size is None and config.expert_model_parallel_size > 1:
        config.expert_tensor_parallel_size = 1
    tp = config.tensor_model_parallel_size
    etp = config.expert_tensor_parallel_size or tp
    config.gtp_weight_remat_size = _size(config.tensor_parallel_num_weight_shards, tp)
    config.expert_gtp_weight_remat_size = _size(config.expert_tensor_parallel_num_weight_shards, etp)


def _size(shards: int | None, parallel_size: int) -> int:
    if shards is None:
        return 1
    if shards < parallel_size or shards % parallel_size:
        raise ValueError(f"{shards} weight shards do not fit parallel size {parallel_size}")
    return shards // parallel_size


@dataclass
class NewGPTModelProvider(GPTModelProvider):
    gtp_weight_remat_size: int = field(init=False, default=1)
    expert_gtp_weight_remat_size: int = field(init=False, default=1)

    def finalize(self) -> None:
        derive_gtp_sizes(self)
        super().finalize()


@dataclass
class NewTransformerConfig(TransformerConfig):
    gtp_weight_remat_size: int = field(init=False, default=1)
    expert_gtp_weight_remat_size: int = field(init=False, default=1)

    def finalize(self) -> None:
        derive_gtp_sizes(self)
        super().finalize()


@dataclass
class NewMLATransformerConfig(MLATransformerConfig):
    gtp_weight_remat_size: int = field(init=False, default=1)
    expert_gtp_weight_remat_size: int = field(init=False, default=1)

    def finalize(self) -> None:
        derive_gtp_sizes(self)
        super().finalize()


@dataclass
class NewHeterogeneousTransformerConfig(HeterogeneousTransformerConfig):
    gtp_weight_remat_size: int = field(init=False, default=1)
    expert_gtp_weight_remat_size: int = field(init=False, default=1)

    def finalize(self) -> None:
        derive_gtp_sizes(self)
        super().finalize()


@dataclass
class NewOwnFinalize(NewGPTModelProvider):
    """A provider of one's own, as :class:`bridge_machine.released.OwnFinalize`."""

    finalized: int = 0

    def finalize(self) -> None:
        self.finalized += 1
        super().finalize()


def checkpoint_weight_topology(config) -> tuple[int, int, int, int]:
    """TP, GTP, ETP and expert GTP, of a config or a serialized one; counts come before sizes."""

    def get(name, default):
        value = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
        return default if value is None else value

    tp = get("tensor_model_parallel_size", 1)
    etp = get("expert_tensor_parallel_size", tp)
    found = []
    for size, prefix in ((tp, ""), (etp, "expert_")):
        shards = get(f"{prefix}tensor_parallel_num_weight_shards", None)
        found += [size, shards // size if shards else get(f"{prefix}gtp_weight_remat_size", 1)]
    return tuple(found)


def read_model_section(checkpoint: str) -> dict:
    with open(f"{checkpoint}/run_config.yaml") as file:
        return yaml.safe_load(file)["model"]


def validate_checkpoint_weight_topology(*, saved, requested) -> None:
    """New Bridge's check: each axis on its own, where it has GTP on either side."""
    for axis in (slice(0, 2), slice(2, 4)):
        before, now = saved[axis], requested[axis]
        if max(before[1], now[1]) > 1 and before != now:
            raise ValueError("not supported: keep the saved sizes (mp_overrides), or export to HF and import")
