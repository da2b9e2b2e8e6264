"""The names a recipe uses, and where in it they mean something."""

from __future__ import annotations

from gtp_migrate.shards import AXES

#: Where a value stands in a recipe: the keys (and list indices) from the root to it.
KeyPath = tuple["str | int", ...]

MEGATRON_CFG = "megatron_cfg"
MODEL_OVERRIDES = "model_overrides"
#: Drops the inherited mapping of the same name; honoured by NeMo-RL in mappings at the top level only.
OVERRIDE_MARKER = "_override_"

TP = "tensor_model_parallel_size"
ETP = "expert_tensor_parallel_size"
EP = "expert_model_parallel_size"
PP = "pipeline_model_parallel_size"
CP = "context_parallel_size"

OLD_KEYS = frozenset(axis.gtp_size for axis in AXES)
NEW_KEYS = frozenset(axis.num_weight_shards for axis in AXES)
#: What is read of a mapping named `megatron_cfg`, beside its `model_overrides`.
MEGATRON_KEYS = frozenset({TP, ETP, EP, PP, CP, "enabled"}) | NEW_KEYS
#: What is read of a `model_overrides`.
OVERRIDE_KEYS = OLD_KEYS | NEW_KEYS

#: How an old key and a new key look in the bytes of a file; each is part of both its axes' names.
OLD_KEY_BYTES = b"gtp_weight_remat_size"
NEW_KEY_BYTES = b"tensor_parallel_num_weight_shards"

_COLOCATED: KeyPath = ("policy", "generation", "colocated")
#: What is read of a recipe outside its `megatron_cfg`s: the GPUs it trains on.
LAYOUT_PATHS: frozenset[KeyPath] = frozenset(
    {
        ("cluster", "gpus_per_node"),
        ("cluster", "num_nodes"),
        (*_COLOCATED, "enabled"),
        (*_COLOCATED, "resources", "gpus_per_node"),
        (*_COLOCATED, "resources", "num_nodes"),
    }
)


#: Where NeMo-RL's own recipes have a `megatron_cfg`, and what is around it.
USUAL_HOLDERS: frozenset[KeyPath] = frozenset(
    path for section in ("policy", "teacher", "value") for path in ((section,), (section, MEGATRON_CFG))
)


def dotted(path: KeyPath) -> str:
    """`policy.megatron_cfg`, `teachers[0].megatron_cfg`: a path as OmegaConf writes it."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return text
