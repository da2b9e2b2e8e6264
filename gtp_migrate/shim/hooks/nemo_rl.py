"""NeMo-RL's colocated generation model, a deep copy of the training provider at another TP, ETP and EP."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from gtp_migrate.shards import AXES, DENSE, EXPERT, expert_parallel_size


def build_inference_model(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``build_inference_model(policy_cfg, megatron_cfg, initial_model_provider)``: generation has whole weights.

    The counts of the training run ride along with the copy: 12 shards of TP 4 become GTP 12 at TP 1. They are
    pinned to the copy's own TP and ETP, as NeMo-RL's pull request 3857 does, unless the generation config
    sets them (``mcore_generation_config``, or its ``model_overrides``).
    """
    policy_cfg = args[0] if args else kwargs["policy_cfg"]
    provider = args[2] if len(args) > 2 else kwargs["initial_model_provider"]
    if not _done_by_nemo_rl(original):
        megatron_cfg = policy_cfg["megatron_cfg"]
        tp, etp, ep = (
            megatron_cfg[n] for n in (DENSE.parallel_size, EXPERT.parallel_size, "expert_model_parallel_size")
        )
        asked = (policy_cfg.get("generation") or {}).get("mcore_generation_config") or {}
        asked = {**(asked.get("model_overrides") or {}), **asked}
        for axis, parallel_size in ((DENSE, tp), (EXPERT, expert_parallel_size(etp, ep, tp))):
            setattr(provider, axis.num_weight_shards, asked.get(axis.num_weight_shards) or parallel_size)
    return original(*args, **kwargs)


def _done_by_nemo_rl(build: Any) -> bool:
    """Whether NeMo-RL has typed the counts (3857 does both at once), or its function handles them itself."""
    policy = getattr(sys.modules.get("nemo_rl.models.policy"), "MegatronConfig", None)
    code = getattr(build, "__code__", None)
    known = {*getattr(policy, "__annotations__", ()), *getattr(code, "co_names", ()), *getattr(code, "co_consts", ())}
    return any(axis.num_weight_shards in known for axis in AXES)
