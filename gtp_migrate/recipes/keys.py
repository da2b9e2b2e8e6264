"""The names that a recipe uses."""

from __future__ import annotations

from gtp_migrate.shards import AXES

#: Where a value stands in a recipe: the keys (and list indices) from the root to it.
KeyPath = tuple["str | int", ...]

MEGATRON_CFG = "megatron_cfg"
MODEL_OVERRIDES = "model_overrides"
#: The key that merges other mappings into one.
MERGE = "<<"
#: Drops the inherited mapping of the same name; honoured by NeMo-RL in mappings at the top level only.
OVERRIDE_MARKER = "_override_"
#: What OmegaConf takes for a value that is still to be given.
MISSING = "???"

TP = "tensor_model_parallel_size"
ETP = "expert_tensor_parallel_size"
EP = "expert_model_parallel_size"
PP = "pipeline_model_parallel_size"
CP = "context_parallel_size"

OLD_KEYS = frozenset(axis.gtp_size for axis in AXES)
NEW_KEYS = frozenset(axis.num_weight_shards for axis in AXES)
#: The settings: old and new.
SETTINGS = OLD_KEYS | NEW_KEYS
#: Keys whose place in the text is kept: the settings, and what they are multiplied with.
PLACED_KEYS = SETTINGS | {TP, ETP, EP, "defaults"}

#: How an old key and a new key look in the bytes of a file; each is part of both its axes' names.
OLD_KEY_BYTES = b"gtp_weight_remat_size"
NEW_KEY_BYTES = b"tensor_parallel_num_weight_shards"
#: The same in a text.
OLD_KEY_TEXT = OLD_KEY_BYTES.decode()


def dotted(path: KeyPath) -> str:
    """`policy.megatron_cfg`, `teachers[0].megatron_cfg`: a path as OmegaConf writes it."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return text
