"""A recipe through NeMo-RL's own functions to the finalized provider of every model. Runs in the judge's process.

Named in the comments: files of NeMo-RL below ``nemo_rl/``. NeMo-RL and Bridge have no types to check against, so
they are ``Any`` here.
"""

from __future__ import annotations

import copy
import functools
import importlib
import importlib.metadata
import io
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

from gtp_migrate.judge.protocol import Answer, Failure, Model, Request, Sizes

TP, ETP, EP = "tensor_model_parallel_size", "expert_tensor_parallel_size", "expert_model_parallel_size"
GTP, EXPERT_GTP = "gtp_weight_remat_size", "expert_gtp_weight_remat_size"
SHARDS, EXPERT_SHARDS = "tensor_parallel_num_weight_shards", "expert_tensor_parallel_num_weight_shards"
SETTINGS = (GTP, EXPERT_GTP, SHARDS, EXPERT_SHARDS)
#: What `dedicated_inference_megatron_cfg` compares beside TP.
LAYOUT = (ETP, EP, "pipeline_model_parallel_size", "context_parallel_size")

#: Top-level section, and the modules whose MasterConfig its launchers use (examples/run_*.py).
ALGORITHMS = {
    "grpo": ("nemo_rl.algorithms.grpo", "nemo_rl.algorithms.single_controller_utils.config"),
    "ppo": ("nemo_rl.algorithms.ppo",),
    "sft": ("nemo_rl.algorithms.sft",),
    "dpo": ("nemo_rl.algorithms.dpo",),
    "rm": ("nemo_rl.algorithms.rm",),
    "distillation": ("nemo_rl.algorithms.distillation", "nemo_rl.algorithms.xtoken_off_policy_distillation"),
    "eval": ("nemo_rl.evals.eval",),
}
#: Only these build teachers of on-policy distillation, or let Megatron generate.
BUILD_TEACHERS = {"grpo"}
BUILD_GENERATION = {"grpo", "distillation"}

Config = dict[str, Any]


class _Stop(BaseException):
    """Raised where NeMo-RL turns to the cluster; no handler on the way takes it for an error of its own."""


class _Settings(Config):
    """A `megatron_cfg` cut down to the sizes: what else NeMo-RL asks it for is what the provider has already."""

    provider: Any

    def __missing__(self, key: str) -> Any:
        return getattr(self.provider, key, None)


class NeMoRL:
    """NeMo-RL and Bridge, imported once.

    Raises:
        ImportError: one of them, or what they need, is not there.
    """

    def __init__(self) -> None:
        load = importlib.import_module
        self.omegaconf = load("omegaconf").OmegaConf
        self._load = self.omegaconf.load
        self.config = load("nemo_rl.utils.config")
        self.setup = load("nemo_rl.models.megatron.setup")
        self.generation = load("nemo_rl.models.generation.megatron.megatron_generation")
        self.opd = load("nemo_rl.algorithms.opd")
        self.teachers = load("nemo_rl.models.policy.teacher_worker_group")
        self.worker_groups = load("nemo_rl.distributed.worker_groups")
        self.provider = load("megatron.bridge.models.gpt_provider").GPTModelProvider
        self.bridge_version: str = importlib.metadata.version("megatron-bridge")
        self.path: str = os.path.dirname(str(load("nemo_rl").__file__))

    def judge(self, request: Request, factory: Callable[..., Any] | None = None) -> Answer:
        """Every model of the run that a launcher starts with this recipe."""
        # One request must not help another: a resolver that is there once is there for all of the process.
        self.omegaconf.clear_resolvers()
        if request.resolvers:
            self.config.register_omegaconf_resolvers()
        stage = "load"
        try:
            with self._instead_of_the_disk(request.overlay):
                tree = self.config.load_config(request.recipe)
            if request.overrides:
                tree = self.config.parse_hydra_overrides(tree, list(request.overrides))
            stage = "resolve"
            with mock.patch.dict(os.environ, request.environment):
                recipe: Config = self.omegaconf.to_container(tree, resolve=True)
        except Exception as error:
            return Answer(Failure(stage, _one_line(error)))
        master, untyped = self._master(recipe) if request.typed else (None, None)
        run = _Run(self, recipe, master, request.typed, factory or self.provider)
        return Answer(None, dict(run.models()), untyped)

    @contextmanager
    def _instead_of_the_disk(self, overlay: Mapping[str, str]) -> Iterator[None]:
        """`OmegaConf.load` of a path in `overlay` reads that text; `load_config` itself is NeMo-RL's."""
        texts = {os.path.realpath(path): text for path, text in overlay.items()}

        def load_or_stand_in(path: Any) -> Any:
            text = texts.get(os.path.realpath(path))
            # load_config changes what it is given.
            return copy.deepcopy(self._parsed(_read(path) if text is None else text))

        with mock.patch.object(self.omegaconf, "load", load_or_stand_in):
            yield

    @functools.lru_cache(maxsize=1024)  # noqa: B019 - one instance a process
    def _parsed(self, text: str) -> Any:
        # newline=None: line ends are read as a file in text mode reads them.
        return self._load(io.StringIO(text, newline=None))

    def _master(self, recipe: Config) -> tuple[Any, str | None]:
        """The recipe as its launcher types it, or None and why not."""
        refusals = []
        for module in (module for section in ALGORITHMS if section in recipe for module in ALGORITHMS[section]):
            try:
                return importlib.import_module(module).MasterConfig(**copy.deepcopy(recipe)), None
            except Exception as error:
                refusals.append(f"{module}: {_one_line(error)}")
        return None, refusals[0] if refusals else "no section of an algorithm: no launcher takes this recipe as it is"


class _Run:
    """The models of one resolved recipe."""

    def __init__(self, nemo_rl: NeMoRL, recipe: Config, master: Any, typed: bool, factory: Callable[..., Any]) -> None:
        self.nemo_rl = nemo_rl
        self.factory = factory
        # The whole recipe is data; what the launcher hands to models is what its MasterConfig made of these.
        checked = {name: getattr(master, name, None) for name in ("policy", "value", "teacher")}
        self.recipe = {**recipe, **{name: held for name, held in checked.items() if isinstance(held, dict)}}
        self.master = master
        self.typed = typed
        self.sections = {section for section in ALGORITHMS if section in recipe}
        self.trained: Any = None

    def models(self) -> Iterator[tuple[str, Model]]:
        policy = self.recipe.get("policy")
        for path, holder in _holders(self.recipe):
            model, provider = self._built(holder)
            if holder is policy:
                self.trained = provider
            yield path, model
        if not self.sections or self.sections & BUILD_TEACHERS:
            yield from self._teachers(policy)
        if not self.sections or self.sections & BUILD_GENERATION:
            yield from self._generation(policy)

    def _built(self, holder: Config) -> tuple[Model, Any]:
        """What the worker of a policy does with its `megatron_cfg` (models/megatron/setup.py, setup_model_config)."""
        given = holder["megatron_cfg"]
        enabled = bool(given.get("enabled", False))
        missing = tuple(key for key in (TP, ETP, EP) if key not in given)
        try:
            provider = self._provider(given)
            return Model(enabled, _sizes(provider), missing=missing), provider
        except Exception as error:
            return Model(enabled, error=_one_line(error), missing=missing), None

    def _provider(self, given: Config) -> Any:
        setup = self.nemo_rl.setup
        provider = _bare(self.factory)
        if given.get(TP) is None:
            raise ValueError(f"{TP} is not set")
        for key in (TP, ETP, EP):
            if given.get(key) == "???":
                raise ValueError(f"{key} is still to be given")
        overrides = given.get("model_overrides")
        if overrides:
            setup._validate_model_override_conflicts(given, overrides)
            provider = setup._merge_model_overrides(provider, _sizes_of(overrides))
        policy = _cut_down(given, provider)
        setup._apply_parallelism_config(provider, policy)
        setup._apply_moe_config(provider, policy)
        # ConfigContainer.validate() does so in any case (models/policy/workers/megatron_policy_worker.py).
        provider.finalize()
        return provider

    def _teachers(self, policy: Any) -> Iterator[tuple[str, Model]]:
        """Teachers of on-policy distillation (algorithms/opd.py, models/policy/teacher_worker_group.py)."""
        opd, teachers = self.nemo_rl.opd, self.nemo_rl.teachers
        try:
            master = self._typed_opd()
            if not opd.is_non_colocated_teachers_enabled(master):
                return
            section = opd._opd_cfg(master)
            opd._validate_default_teacher_alias(section)
            configs = teachers.create_teacher_configs_from_opd_config(section)
        except Exception as error:
            yield "teachers", Model(True, error=_one_line(error))
            return
        for config in configs:
            try:
                holder = self._teacher(config, policy)
            except Exception as error:
                yield f"teacher {config.alias}", Model(True, error=_one_line(error))
            else:
                yield f"teacher {config.alias}", self._built(holder)[0]

    def _typed_opd(self) -> Any:
        """What `_opd_cfg` is handed: the section as MasterConfig types it, which writes out every default."""
        if self.master is not None or not self.typed:
            return self.master or self.recipe
        section = self.recipe.get("on_policy_distillation")
        typed = None if section is None else self.nemo_rl.opd.OnPolicyDistillationConfig(**copy.deepcopy(section))
        return SimpleNamespace(on_policy_distillation=typed)

    def _teacher(self, config: Any, policy: Any) -> Config:
        """The config that `TeacherWorkerGroup` starts its workers with, taken from it where it does."""
        ranks = config.tensor_model_parallel_size * config.pipeline_model_parallel_size * config.context_parallel_size
        cluster = SimpleNamespace(world_size=lambda: ranks)
        with mock.patch.object(self.nemo_rl.worker_groups, "RayWorkerBuilder", side_effect=_Stop) as builder:
            try:
                self.nemo_rl.teachers.TeacherWorkerGroup(config, cluster, policy, tokenizer=None)
            except _Stop:
                holder: Config = builder.call_args.args[1]
                return holder
        raise RuntimeError("TeacherWorkerGroup starts its workers in another way than this version knows")

    def _generation(self, policy: Any) -> Iterator[tuple[str, Model]]:
        """The generation model of the Megatron backend (models/generation/megatron)."""
        generation = policy.get("generation") if isinstance(policy, dict) else None
        if not isinstance(generation, dict) or generation.get("backend") != "megatron":
            return
        try:
            if not generation["colocated"]["enabled"]:
                merged = self.nemo_rl.generation.MegatronGeneration.effective_megatron_cfg(policy)
                yield "generation", self._built({"megatron_cfg": merged})[0]
                return
            inference = self.nemo_rl.setup.dedicated_inference_megatron_cfg(self._with_layout(policy))
            if inference is not None:
                yield "generation", Model(bool(inference.get("enabled")), _sizes(self._resharded(inference)))
        except Exception as error:
            yield "generation", Model(True, error=_one_line(error))

    def _with_layout(self, policy: Config) -> Config:
        """What a launched run has in any case, so that a part of a recipe can be judged too."""
        bare = _bare(self.factory)
        return {**policy, "megatron_cfg": {**{key: getattr(bare, key) for key in LAYOUT}, **policy["megatron_cfg"]}}

    def _resharded(self, inference: Config) -> Any:
        """The copy of the training provider that `build_inference_model` finalizes, taken before it needs ranks."""
        if self.trained is None:
            raise ValueError("there is no training model to copy")
        setup = self.nemo_rl.setup
        provider = copy.deepcopy(self.trained)
        with mock.patch.object(setup.torch.distributed, "get_world_size", side_effect=_Stop):
            try:
                setup.build_inference_model(_cut_down(inference, provider), None, provider)
            except _Stop:
                return provider
        raise RuntimeError("build_inference_model works in another way than this version knows")


def _bare(factory: Callable[..., Any]) -> Any:
    """A provider that fits any TP, ETP and EP up to 256: only counts of shards can be refused."""
    divisible = math.lcm(*range(1, 257))
    return factory(
        num_layers=1,
        hidden_size=divisible,
        num_attention_heads=divisible,
        num_moe_experts=divisible,
        add_bias_linear=False,
    )


def _cut_down(given: Config, provider: Any) -> Config:
    """The policy that NeMo-RL's functions are handed: nothing but sizes, so that no other check speaks up."""
    settings = _Settings({key: given[key] for key in (TP, ETP, EP, SHARDS, EXPERT_SHARDS) if key in given})
    settings.provider = provider
    return {"megatron_cfg": settings}


def _sizes_of(overrides: Any) -> Any:
    """The overrides that matter; others are for models with other fields than the bare provider's."""
    if not isinstance(overrides, Mapping):
        return overrides
    return {key: value for key, value in overrides.items() if key in SETTINGS}


def _sizes(provider: Any) -> Sizes:
    """The sizes of a finalized provider; Core does not check each of them."""
    names = (TP, ETP, EP, GTP, EXPERT_GTP)
    for name in names:
        size = getattr(provider, name)
        if type(size) is not int or size < 1:
            raise ValueError(f"{name} comes out as {size!r}")
    return Sizes(*(getattr(provider, name) for name in names))


def _holders(recipe: Config) -> Iterator[tuple[str, Config]]:
    """Each mapping that holds a mapping named `megatron_cfg`, with its dotted path, in the order of the recipe."""
    waiting: list[tuple[str, Any]] = [("", recipe)]
    while waiting:
        path, node = waiting.pop()
        if isinstance(node, dict):
            if isinstance(node.get("megatron_cfg"), dict):
                yield path or ".", node
            inside = [(f"{path}.{key}" if path else str(key), value) for key, value in node.items()]
        else:
            inside = [(f"{path}[{index}]", value) for index, value in enumerate(node)]
        waiting.extend((path, value) for path, value in reversed(inside) if isinstance(value, (dict, list)))


def _read(path: Any) -> str:
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def _one_line(error: BaseException) -> str:
    """What pydantic and OmegaConf say stands in their first three lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])}" if lines else type(error).__name__
