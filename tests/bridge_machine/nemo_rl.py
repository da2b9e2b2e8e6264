"""What NeMo-RL does to a provider it loaded, restated from ``nemo_rl/models/megatron/setup.py``."""

from __future__ import annotations

import dataclasses
from typing import Any


def merge_model_overrides(provider: Any, overrides: dict[str, Any]) -> Any:
    """Every key must be a constructor field; the provider is built anew with ``dataclasses.replace``."""
    allowed = {field.name for field in dataclasses.fields(provider) if field.init}
    for name in overrides:
        if name not in allowed:
            raise AttributeError(f"policy.megatron_cfg.model_overrides.{name} does not match a configurable field")
    return dataclasses.replace(provider, **overrides)


def set_up(provider: Any, overrides: dict[str, Any], *, tp: int, etp: int = 1, ep: int = 1) -> Any:
    """The order of ``setup_model_config``; without overrides nothing there calls ``finalize()``."""
    if overrides:
        provider = merge_model_overrides(provider, overrides)
    provider.tensor_model_parallel_size = tp
    provider.pipeline_model_parallel_size = 1
    provider.context_parallel_size = 1
    provider.expert_tensor_parallel_size = etp
    provider.expert_model_parallel_size = ep
    if overrides:
        provider.finalize()
    provider.__post_init__()
    return provider
