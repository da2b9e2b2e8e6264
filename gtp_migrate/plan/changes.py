"""The outcome of planning, and all that editing needs to know: one change an entry of a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gtp_migrate.recipes.keys import KeyPath


@dataclass(frozen=True)
class Spot:
    """Where an entry `key: value` stands in the text of a file, a byte order mark not counted."""

    #: Offset of the key, with its tag if it has one, in characters.
    offset: int
    #: Of the key, from 1.
    line: int
    column: int


@dataclass(frozen=True)
class Replace:
    """Another key, and another value unless `value` is None, in the same place.

    `gtp_weight_remat_size: 3  # why`  ->  `tensor_parallel_num_weight_shards: 12  # why`
    """

    spot: Spot
    old_key: str
    new_key: str
    #: The plain YAML scalar to write (`12`, `null`, `${mul:3,${..tensor_model_parallel_size}}`); None keeps the text of
    #: the old value.
    value: str | None
    #: The old value is null: see `keep_nulls` of `gtp_migrate.edit.edit`.
    is_null: bool = False


@dataclass(frozen=True)
class Move:
    """The same, out of the mapping `model_overrides` into the mapping that holds it (form A or B -> form C).

    The holder is any mapping that has the key `model_overrides`: a `megatron_cfg`, an `mcore_generation_config`, a
    `megatron_cfg_overrides`, a teacher's.
    """

    spot: Spot
    old_key: str
    new_key: str
    value: str | None
    is_null: bool = False
    #: `model_overrides: {}` stays where nothing is left of it: something refers to it.
    keep_husk: bool = False


@dataclass(frozen=True)
class Drop:
    """Away: the new setting stands beside it already. Its comments stay."""

    spot: Spot
    old_key: str
    is_null: bool = False
    keep_husk: bool = False


@dataclass(frozen=True)
class Add:
    """A new entry `key: value` in the mapping at `path` of the file, with the mappings on the way that are missing.

    It goes behind the entry named `after` where the mapping has that, else behind the last one (in flow style, to the
    front).
    """

    path: KeyPath
    key: str
    #: A plain YAML scalar as text, or a mapping (plain Python data, nested), which is written in the style of its
    #: surroundings: flow in flow, block in block.
    value: str | dict[str, Any]
    after: str | None = None


Change = Replace | Move | Drop | Add
