"""NeMo-RL as its pull request 3857 (open in September 2026) makes it: `megatron_cfg` has both shard counts as fields
of its own, null is off; generation never uses GTP.

Restated from the pull request's description, on top of the NeMo-RL that is there: ``start`` comes in place of
``bridge_machine.start``, in a process that sees no other NeMo-RL.
"""

from __future__ import annotations

import importlib
from typing import NotRequired

import bridge_machine

TP, ETP = "tensor_model_parallel_size", "expert_tensor_parallel_size"
SHARDS, EXPERT_SHARDS = "tensor_parallel_num_weight_shards", "expert_tensor_parallel_num_weight_shards"


def start() -> None:
    bridge_machine.start()
    policy = importlib.import_module("nemo_rl.models.policy")
    for name in (SHARDS, EXPERT_SHARDS):
        policy.MegatronConfig.__annotations__[name] = NotRequired[int | None]
    _set_the_counts(importlib.import_module("nemo_rl.models.megatron.setup"))
    _generate_without_gtp(importlib.import_module("nemo_rl.models.generation.megatron.config"))


def _set_the_counts(setup) -> None:
    apply = setup._apply_parallelism_config

    def apply_with_counts(model_cfg, config) -> None:
        apply(model_cfg, config)
        for name in (SHARDS, EXPERT_SHARDS):
            setattr(model_cfg, name, config["megatron_cfg"].get(name))

    setup._apply_parallelism_config = apply_with_counts


def _generate_without_gtp(config) -> None:
    merged, dedicated = config.merged_inference_megatron_cfg, config.dedicated_inference_megatron_cfg

    def merged_without_gtp(policy_config):
        """A count equal to the parallel size is off."""
        megatron_cfg = merged(policy_config)
        return {**megatron_cfg, SHARDS: megatron_cfg[TP], EXPERT_SHARDS: megatron_cfg.get(ETP)}

    def dedicated_where_gtp_is_on(policy_config):
        """GTP in training alone makes the layouts differ."""
        training = policy_config["megatron_cfg"]
        inference = dedicated(policy_config)
        if inference is None and any(
            training.get(count) not in (None, training.get(size))
            for count, size in ((SHARDS, TP), (EXPERT_SHARDS, ETP))
        ):
            return {**merged_without_gtp(policy_config), "context_parallel_size": 1}
        return inference

    for module in (config, *map(importlib.import_module, _IMPORTED_BY)):
        module.merged_inference_megatron_cfg = merged_without_gtp
        module.dedicated_inference_megatron_cfg = dedicated_where_gtp_is_on


_IMPORTED_BY = ("nemo_rl.models.generation.megatron.megatron_generation", "nemo_rl.models.megatron.setup")
