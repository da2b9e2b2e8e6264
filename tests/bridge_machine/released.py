"""A provider of one's own on released Bridge."""

from __future__ import annotations

from dataclasses import dataclass

from megatron.bridge.models.gpt_provider import GPTModelProvider


@dataclass
class OwnFinalize(GPTModelProvider):
    finalized: int = 0

    def finalize(self) -> None:
        self.finalized += 1
        super().finalize()
