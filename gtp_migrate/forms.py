"""The three ways to write the setting, and which of them a NeMo-RL accepts.

A  `megatron_cfg.model_overrides.gtp_weight_remat_size: 3` — the old one.
B  `megatron_cfg.model_overrides.tensor_parallel_num_weight_shards: 12` — until NeMo-RL types the field.
C  `megatron_cfg.tensor_parallel_num_weight_shards: 12` — where NeMo-RL types it.
"""

from __future__ import annotations

from enum import Enum


class Form(Enum):
    """How an entry says it."""

    SIZE = "A"
    OVERRIDE = "B"
    TYPED = "C"


class Target(str, Enum):
    """The form to write."""

    MODEL_OVERRIDES = "model-overrides"
    MEGATRON_CFG = "megatron-cfg"


class Style(str, Enum):
    """How the new value is spelled."""

    AUTO = "auto"
    LITERAL = "literal"
    INTERPOLATION = "interpolation"


class Mode(Enum):
    """What becomes of the changes."""

    WRITE = "write"
    DRY_RUN = "dry-run"
    CHECK = "check"
