"""The GPUs that each model of a run gets: how the nodes of the cluster are shared out.

Source, all in NeMo-RL's `nemo_rl/algorithms/`, what stands below "Cluster" in each `setup`:

- `grpo.py` (lines 720–1060): the reward model's and the teachers' nodes go off first, then generation's where it is
  not colocated. Of a cluster of one node the reward model takes GPUs, and so does generation of a policy that has one
  node left.
- `ppo.py` (480–710): the same without teachers. `distillation.py` (336–466): generation alone goes off.
- `single_controller_utils/setup.py` (`_build_clusters`): generation alone goes off; its nodes may be null for one.
- `sft.py`, `dpo.py`, `rm.py`, `xtoken_off_policy_distillation.py`: all GPUs of all nodes.
- `opd.py` (`TeacherResourceConfig`, `reserve_teacher_clusters`): each teacher has nodes of its own, one of 8 GPUs where
  nothing is said. `environments/reward_model_environment.py`: so has the reward model.

What these refuse with an error has no answer here, either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gtp_migrate.recipes.interpolation import Computed, Resolution, Unresolved, value_of
from gtp_migrate.recipes.keys import MEGATRON_CFG, MISSING, KeyPath
from gtp_migrate.recipes.values import at, mapping_at, truth
from gtp_migrate.runs.models import IS_COLOCATED, TEACHERS, Kind, Model, algorithms
from gtp_migrate.runs.runs import Resolved, open_leaves

_REWARD_MODEL: KeyPath = ("env", "reward_model")
#: What is on the GPUs for training; the teachers of off-policy distillation, a list, are there too.
_TRAINED = frozenset((holder, MEGATRON_CFG) for holder in ("policy", "value", "teacher"))

#: Names of launchers beside those of `ALGORITHMS`: they share a section with `grpo` and `distillation`.
_SINGLE_CONTROLLER, _OFF_POLICY = "single controller", "off-policy distillation"
_WITH_REWARD_MODEL = frozenset({"grpo", "ppo"})
_WITH_TEACHERS = frozenset({"grpo"})
_WITH_GENERATION = frozenset({"grpo", "ppo", "distillation", _SINGLE_CONTROLLER})


@dataclass(frozen=True)
class Gpus:
    """Nodes with equally many GPUs each."""

    nodes: int
    per_node: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.nodes * self.per_node


class _UnknownError(Exception):
    """The recipe does not say, or no run starts so."""


def gpus_of(resolved: Resolved, model: Model) -> Gpus | None:
    """What a model of a run gets; None where that cannot be known.

    Where more than one launcher may start the recipe, they have to agree.
    """
    reckonings = [_Reckoning(resolved, launcher) for launcher in _launchers(resolved.tree)]
    try:
        found = {reckoning.of(model) for reckoning in reckonings}
    except _UnknownError:
        return None
    return found.pop() if len(found) == 1 else None


def are_open(resolved: Resolved) -> bool:
    """Whether it comes with the run how the nodes are shared out: who is colocated, and which teachers there are.

    Args:
        resolved: a run with nothing supplied.
    """
    tree = resolved.tree
    decisive = [at(tree, path) for path in (IS_COLOCATED, (*TEACHERS[:1], "enabled"), (*TEACHERS, "enabled"))]
    aliases = mapping_at(tree, (*TEACHERS[:1], "teacher_model_by_agent_name")) or {}
    if len(aliases) > 1:
        # Two that turn out to be the same are one teacher.
        decisive += aliases.values()
    return any(is_open(resolved.resolution, value) for value in decisive)


def is_open(resolution: Resolution, value: Any) -> bool:
    """Whether a value of a resolved recipe comes with the run."""
    if isinstance(value, Computed):
        return bool(open_leaves(resolution, value))
    return bool(value_of(value) == MISSING)


def _launchers(recipe: dict[Any, Any]) -> Iterator[str]:
    """Those that may start a recipe. Where no section tells, GRPO's stands for all: whatever makes a difference to one
    of the others, it knows."""
    for name in algorithms(recipe) or ("grpo",):
        if name == "grpo" and "async_rl" in recipe:
            yield _SINGLE_CONTROLLER
        is_off_policy = name == "distillation" and isinstance(at(recipe, ("teachers",)), list)
        yield _OFF_POLICY if is_off_policy else name


class _Reckoning:
    """One launcher's way of sharing out the nodes."""

    def __init__(self, resolved: Resolved, launcher: str) -> None:
        self.recipe = resolved.tree
        self.resolution = resolved.resolution
        self.models = resolved.models
        self.launcher = launcher

    def of(self, model: Model) -> Gpus:
        """
        Raises:
            _UnknownError: nobody can tell.
        """
        if model.kind is Kind.TEACHER:
            return self._teacher(model)
        if model.kind is Kind.GENERATION:
            return self._shares()[1]
        if model.path == (*_REWARD_MODEL, MEGATRON_CFG):
            return self._gpus(self._mapping((*_REWARD_MODEL, "resources")))
        if model.path not in _TRAINED and model.path[0] != "teachers":
            # Of somebody's own code: nobody knows where that puts it.
            raise _UnknownError
        return self._shares()[0]

    def _shares(self) -> tuple[Gpus, Gpus]:
        """What is left for training, and what generation gets: the very same where it is colocated."""
        cluster = self._gpus(self._mapping(("cluster",)))
        nodes, per_node = cluster.nodes, cluster.per_node
        if self._has_reward_model():
            reward = self._gpus(self._mapping((*_REWARD_MODEL, "resources")))
            if cluster.nodes == 1:
                per_node -= reward.per_node
            else:
                nodes -= reward.nodes
        if self.launcher in _WITH_TEACHERS:
            nodes -= sum(self._teacher(model).nodes for model in self.models if model.kind is Kind.TEACHER)
        training = _some(Gpus(nodes, per_node))
        if self.launcher not in _WITH_GENERATION or self._is_colocated():
            return training, training
        apart = self._generation(training, cluster)
        if training.nodes == 1:
            return _some(Gpus(1, per_node - apart.per_node)), apart
        return _some(Gpus(nodes - apart.nodes, per_node)), apart

    def _generation(self, training: Gpus, cluster: Gpus) -> Gpus:
        """What generation takes of what training would have without it: of one node GPUs, of more whole nodes."""
        resources = self._mapping((*IS_COLOCATED[:-1], "resources"))
        nodes, per_node = resources.get("num_nodes"), resources.get("gpus_per_node")
        if training.nodes == 1:
            if value_of(nodes) not in (None, 1) and self.launcher != _SINGLE_CONTROLLER:
                raise _UnknownError
            return Gpus(1, self._count(per_node))
        if value_of(nodes) is None and self.launcher == _SINGLE_CONTROLLER:
            nodes = 1
        # A number that is null here is still to be given, and no other one is taken.
        per_node = cluster.per_node if value_of(per_node) is None else self._count(per_node)
        if per_node != cluster.per_node and self.launcher != _SINGLE_CONTROLLER:
            raise _UnknownError
        return Gpus(self._count(nodes), per_node)

    def _teacher(self, teacher: Model) -> Gpus:
        """A teacher's own nodes: each has to be one of the cluster's."""
        gpus = self._gpus(teacher.resources)
        if gpus.per_node > self._count(self._mapping(("cluster",)).get("gpus_per_node")):
            raise _UnknownError
        return gpus

    def _has_reward_model(self) -> bool:
        """Whether the data names it as an environment (`extract_necessary_env_names`)."""
        names = list(self._environments()) if self.launcher in _WITH_REWARD_MODEL else []
        if any(is_open(self.resolution, name) or isinstance(value_of(name), Unresolved) for name in names):
            raise _UnknownError
        return any(value_of(name) == "reward_model" for name in names)

    def _environments(self) -> Iterator[Any]:
        for key in ("train", "validation", "default"):
            found = at(self.recipe, ("data", key))
            for each in found if isinstance(found, list) else [found]:
                if isinstance(each, dict) and "env_name" in each:
                    yield each["env_name"]

    def _is_colocated(self) -> bool:
        """Also where nothing is said of it, unless there is a generation model of its own all the same."""
        is_apart = any(model.kind is Kind.GENERATION for model in self.models)
        value = self._mapping(IS_COLOCATED[:-1]).get("enabled", None if is_apart else True)
        is_colocated = truth(value_of(value))
        if is_open(self.resolution, value) or is_colocated is None:
            raise _UnknownError
        return is_colocated

    def _gpus(self, resources: dict[Any, Any]) -> Gpus:
        return Gpus(self._count(resources.get("num_nodes")), self._count(resources.get("gpus_per_node")))

    def _mapping(self, path: KeyPath) -> dict[Any, Any]:
        return mapping_at(self.recipe, path) or {}

    def _count(self, value: Any) -> int:
        number = value_of(value)
        if type(number) is not int or number < 1 or is_open(self.resolution, value):
            raise _UnknownError
        return number


def _some(gpus: Gpus) -> Gpus:
    if gpus.nodes < 1 or gpus.per_node < 1:
        raise _UnknownError
    return gpus
