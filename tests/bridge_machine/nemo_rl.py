"""What NeMo-RL does to a provider, restated from ``nemo_rl/models/megatron/setup.py`` at commit 7ea279ab, for
those who do not have its source; tests/shim/test_nemo_rl.py holds it against the real one."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import types
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


def build_inference_model(policy_cfg: Any, megatron_cfg: Any, initial_model_provider: Any) -> Any:
    """As far as ``finalize()``: the copy gets the parallel sizes of its own config, and no counts."""
    sizes = policy_cfg["megatron_cfg"]
    initial_model_provider.tensor_model_parallel_size = sizes["tensor_model_parallel_size"]
    initial_model_provider.expert_tensor_parallel_size = sizes["expert_tensor_parallel_size"]
    initial_model_provider.expert_model_parallel_size = sizes["expert_model_parallel_size"]
    initial_model_provider.finalize()
    return initial_model_provider


@contextlib.contextmanager
def module(monkeypatch: Any) -> Any:
    """The restatement under the name of NeMo-RL's module."""
    name = "nemo_rl.models.megatron.setup"
    setup = types.ModuleType(name)
    setup.build_inference_model = build_inference_model
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, name, setup)
        yield setup
