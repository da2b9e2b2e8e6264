"""Config classes that treat the GTP size as Bridge does since it takes shard counts: the size is no
constructor argument, ``finalize()`` derives it from the shard count and refuses a count that does not fit."""

from __future__ import annotations

from dataclasses import dataclass, field

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
