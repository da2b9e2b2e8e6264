"""What the judge is asked and what it answers: frozen data, one JSON object a line. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Request:
    """One run to look at."""

    #: Absolute path of the recipe the launcher is given.
    recipe: str
    #: Texts that stand in for files on the disk, by absolute path: an edited tree that is not written yet.
    overlay: Mapping[str, str] = field(default_factory=dict)
    #: What stands behind the launcher's options, for ``parse_hydra_overrides``.
    overrides: tuple[str, ...] = ()
    #: Whether the launcher calls ``register_omegaconf_resolvers()``; run_dpo, run_rm and run_eval do not.
    resolvers: bool = True
    #: Whether the launcher's ``MasterConfig`` stands between the recipe and the models, as it does in every launcher.
    #: Without it, numbers are taken as they stand and the teachers' settings are merged as plain mappings.
    typed: bool = True
    #: Variables on top of the process's own, for ``${oc.env:…}``.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: ``module:factory`` of the provider to build on, called as ``GPTModelProvider`` is; empty for that one.
    provider: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Request:
        fields = json.loads(line)
        return cls(**{**fields, "overrides": tuple(fields.get("overrides", ()))})


@dataclass(frozen=True)
class Failure:
    """The run stops here, before any model is there."""

    #: "load" (files, inheritance, overrides) or "resolve" (interpolations).
    stage: str
    #: One line, as the library says it.
    message: str


@dataclass(frozen=True)
class Sizes:
    """How a model is laid out: what its provider says after ``finalize()``."""

    tp: int
    etp: int
    ep: int
    gtp: int
    expert_gtp: int


@dataclass(frozen=True)
class Model:
    """A model of the run: its sizes, or why it cannot be built."""

    #: ``enabled`` of its `megatron_cfg` (absent is false); a model that is off is worked out all the same.
    enabled: bool
    sizes: Sizes | None = None
    #: One line, where there are no sizes.
    error: str | None = None
    #: Of TP, ETP and EP what NeMo-RL demands and this `megatron_cfg` lacks; the provider's defaults stood in.
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What becomes of one request: a failure, or every model by its name.

    Names: the dotted path of what holds a `megatron_cfg` (``policy``, ``a.b[0]``, ``.`` for the recipe itself),
    ``teacher <alias>``, ``teachers`` where not even their list can be made, ``generation``.
    """

    failure: Failure | None = None
    models: Mapping[str, Model] = field(default_factory=dict)
    #: Why the launcher's ``MasterConfig`` does not take this recipe, in one line: the run would not start. None where
    #: it does, or was not asked for. The models are then what the plain mappings say.
    untyped: str | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Answer:
        fields: dict[str, Any] = json.loads(line)
        failure = fields["failure"]
        models = {name: _model(model) for name, model in fields["models"].items()}
        return cls(Failure(**failure) if failure else None, models, fields["untyped"])


def _model(fields: dict[str, Any]) -> Model:
    sizes = fields["sizes"]
    return Model(fields["enabled"], Sizes(**sizes) if sizes else None, fields["error"], tuple(fields["missing"]))


@dataclass(frozen=True)
class Hello:
    """The process's first line: what it found, or why it cannot judge."""

    bridge: str = ""
    nemo_rl: str = ""
    error: str | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Hello:
        return cls(**json.loads(line))
