"""A checkpoint's `run_config.yaml`, read as data: nothing that it names is ever made or imported.

Source: `ConfigContainer.to_yaml` in Megatron-Bridge writes it; the finalized model config stands under `model:`, of a
builder config (`_builder_`) under `model.transformer:`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from gtp_migrate.problems import Place, Problem, RecipeError, one_line
from gtp_migrate.recipes.keys import EP, ETP, TP
from gtp_migrate.recipes.layer import decode
from gtp_migrate.shards import AXES, expert_parallel_size

#: The fields that decide how weights are sharded.
FIELDS = (TP, ETP, EP, *(name for axis in AXES for name in (axis.num_weight_shards, axis.gtp_size)))


@dataclass(frozen=True)
class SavedConfig:
    """The model config that a checkpoint was saved with."""

    #: The file's name for people.
    path: str
    #: Its class, as written.
    target: str
    #: Of :data:`FIELDS`, those that it has.
    values: Mapping[str, Any]
    places: Mapping[str, Place]
    has_experts: bool
    #: Whether two halves of a weight are one there, as SwiGLU's are; None where it does not say.
    is_gated: bool | None

    @property
    def tp(self) -> Any:
        """TP; 1 where it is not set."""
        return self.values.get(TP) or 1

    @property
    def etp(self) -> Any:
        """The effective ETP."""
        ep = self.values.get(EP)
        return expert_parallel_size(self.values.get(ETP), ep if isinstance(ep, int) else 1, self.tp)


def read_run_config(data: bytes, shown: str) -> SavedConfig | None:
    """The model config in the bytes of a file; None where it is no run_config.

    Raises:
        RecipeError: it looks like one, and cannot be read.
    """
    if b"_target_" not in data and b"_builder_" not in data:
        return None
    text = decode(data, shown)
    try:
        root = yaml.compose(text, Loader=_Plain)
        if not isinstance(root, yaml.MappingNode):
            return None
        content = yaml.load(text, Loader=_Plain)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = Place(shown, mark.line + 1, mark.column + 1) if mark is not None else Place(shown)
        what = f"is not YAML ({one_line(str(getattr(error, 'problem', None) or error))})"
        raise RecipeError(Problem(place, what, "give a run_config.yaml as Bridge wrote it")) from None
    section, node = content.get("model"), _child(root, "model")
    if not isinstance(section, dict) or node is None:
        return None
    if "_builder_" in section and isinstance(section.get("transformer"), dict):
        section, node = section["transformer"], _child(node, "transformer")
    elif "_target_" not in section:
        return None
    return _saved(section, node, shown)


def _saved(section: dict[Any, Any], node: yaml.MappingNode | None, shown: str) -> SavedConfig:
    places = {
        key.value: Place(shown, key.start_mark.line + 1, key.start_mark.column + 1)
        for key, _ in (node.value if node is not None else ())
        if isinstance(key, yaml.ScalarNode) and key.value in FIELDS
    }
    gated = section.get("gated_linear_unit")
    return SavedConfig(
        path=shown,
        target=str(section.get("_target_", "")),
        values={name: section[name] for name in FIELDS if name in section},
        places=places,
        has_experts=section.get("num_moe_experts") is not None,
        is_gated=gated if isinstance(gated, bool) else None,
    )


def _child(node: yaml.MappingNode, name: str) -> yaml.MappingNode | None:
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and key.value == name and isinstance(value, yaml.MappingNode):
            return value
    return None


class _Plain(yaml.SafeLoader):
    """PyYAML's safe rules, by which Bridge reads too; a tag that they do not know is taken off and never acted on."""


def _as_plain(loader: _Plain, node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return node.value


_Plain.add_constructor(None, _as_plain)
