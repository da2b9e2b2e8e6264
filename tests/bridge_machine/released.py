"""A provider of one's own on released Bridge."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.bridge.models.gpt_provider import GPTModelProvider


@dataclass
class OwnDefaults(GPTModelProvider):
    """Declares the count fields again, with defaults of its own."""

    tensor_parallel_num_weight_shards: int | None = 8
    gtp_weight_remat_size: int = 2


@dataclass
class OwnFinalize(GPTModelProvider):
    finalized: int = 0

    def finalize(self) -> None:
        self.finalized += 1
        super().finalize()
