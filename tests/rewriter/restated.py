"""A recipe's models as NeMo-RL, Bridge and Core work them out, restated with nothing but OmegaConf.

For machines that have none of them. Short and literal: each function names what it restates (NeMo-RL's files below
``nemo_rl/``). Where the three are there, ``tests/judge/test_restated.py`` holds this against them. Nothing of
`gtp_migrate` is imported, and the resolvers are there during a call only.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from omegaconf import DictConfig, OmegaConf

TP, PP, CP = "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"
ETP, EP = "expert_tensor_parallel_size", "expert_model_parallel_size"
OLD = ("gtp_weight_remat_size", "expert_gtp_weight_remat_size")
COUNTS = ("tensor_parallel_num_weight_shards", "expert_tensor_parallel_num_weight_shards")

#: (TP, ETP, EP, GTP, expert GTP), or None where NeMo-RL, Bridge or Core raises.
Sizes = tuple[int, int, int, int, int] | None


@dataclass(frozen=True)
class Versions:
    """What runs the recipe."""

    #: NeMo-RL has the counts as fields of its own in `megatron_cfg` (pull request 3857).
    typed_counts: bool = False
    #: Bridge takes no GTP size, and derives it from the counts.
    new_bridge: bool = False
    #: The launcher puts its MasterConfig between the recipe and the teachers, as all of them do.
    master_config: bool = True


class Refused(Exception):
    """NeMo-RL raises here."""


def models(
    recipe: Path,
    *,
    overlay: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
    resolvers: bool = True,
    versions: Versions = Versions(),
) -> dict[str, Sizes]:
    """Each model of the run, by name. Raises whatever OmegaConf raises where the recipe does not load or resolve."""
    with registered(resolvers), instead_of_the_disk(overlay or {}):
        tree = load_config(recipe)
        if overrides:
            apply_overrides(tree, overrides)
        config = OmegaConf.to_container(tree, resolve=True)
    assert isinstance(config, dict)
    return dict(models_of(config, versions))


# Files: utils/config.py, and the first lines of main() in examples/run_*.py.


@contextmanager
def registered(resolvers: bool) -> Iterator[None]:
    """register_omegaconf_resolvers(), for as long as this lasts."""
    OmegaConf.clear_resolvers()
    if resolvers:
        OmegaConf.register_new_resolver("add", lambda a, b: a + b)
        OmegaConf.register_new_resolver("mul", lambda a, b: a * b)
        OmegaConf.register_new_resolver("div", lambda a, b: a / b)
        OmegaConf.register_new_resolver("max", lambda a, b: max(a, b))
    try:
        yield
    finally:
        OmegaConf.clear_resolvers()


@contextmanager
def instead_of_the_disk(overlay: Mapping[str, str]) -> Iterator[None]:
    texts = {os.path.realpath(path): text for path, text in overlay.items()}
    load = OmegaConf.load

    def load_or_stand_in(path: Any) -> Any:
        text = texts.get(os.path.realpath(path))
        return load(path if text is None else io.StringIO(text, newline=None))

    with mock.patch.object(OmegaConf, "load", load_or_stand_in):
        yield


def load_config(path: Path) -> DictConfig:
    """load_config_with_inheritance"""
    config = OmegaConf.load(path)
    assert isinstance(config, DictConfig)
    if "defaults" not in config:
        return config
    defaults = config.pop("defaults")
    base = OmegaConf.create({})
    for parent in [defaults] if isinstance(defaults, str) else [str(each) for each in defaults]:
        base = merge_with_override(base, load_config(Path(os.path.join(path.parent, parent))))
    return merge_with_override(base, config)


def merge_with_override(base: DictConfig, config: DictConfig) -> DictConfig:
    for key in list(config):
        if OmegaConf.is_missing(config, key):
            continue
        value = config[key]
        if isinstance(value, DictConfig) and value.get("_override_", False):
            value.pop("_override_")
            base.pop(key, None)
    return OmegaConf.merge(base, config)


def apply_overrides(tree: DictConfig, overrides: Sequence[str]) -> None:
    """parse_hydra_overrides"""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra.core.override_parser.overrides_parser import OverridesParser

    OmegaConf.set_struct(tree, True)
    ConfigLoaderImpl._apply_overrides_to_config(OverridesParser.create().parse_overrides(list(overrides)), tree)


# Which models: algorithms/*.py.


def models_of(config: dict[str, Any], versions: Versions) -> Iterator[tuple[str, Sizes]]:
    algorithms = {"grpo", "ppo", "sft", "dpo", "rm", "distillation", "eval"} & set(config)
    for name, megatron_cfg in megatron_cfgs(config, ""):
        yield name, sizes(megatron_cfg, versions)
    if not algorithms or "grpo" in algorithms:
        yield from teachers(config, versions)
    if not algorithms or algorithms & {"grpo", "distillation"}:
        yield from generation(config.get("policy"), versions)


def megatron_cfgs(node: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        if isinstance(node.get("megatron_cfg"), dict):
            yield path or ".", node["megatron_cfg"]
        for key, value in node.items():
            yield from megatron_cfgs(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from megatron_cfgs(value, f"{path}[{index}]")


# One model: models/megatron/setup.py; finalize() of Bridge's and __post_init__ of Core's config.


def sizes(megatron_cfg: dict[str, Any], versions: Versions) -> Sizes:
    try:
        return finalize(settings_of(megatron_cfg, versions))
    except (Refused, TypeError, AttributeError):
        return None


def settings_of(megatron_cfg: dict[str, Any], versions: Versions) -> dict[str, Any]:
    """setup_model_config, up to finalize(): what the provider is given."""
    overrides = megatron_cfg.get("model_overrides")
    first_class = MEGATRON_CONFIG | set(megatron_cfg) | (set(COUNTS) if versions.typed_counts else set())
    settings = {TP: megatron_cfg.get(TP), ETP: megatron_cfg.get(ETP), EP: megatron_cfg.get(EP, 1)}
    if overrides:
        # _validate_model_override_conflicts
        if set(overrides) & (first_class - {"model_overrides"}):
            raise Refused
        # _merge_model_overrides
        if versions.new_bridge and set(overrides) & set(OLD):
            raise Refused
        settings |= {key: value for key, value in overrides.items() if key in OLD + COUNTS}
    if versions.typed_counts:
        settings |= {count: megatron_cfg.get(count) for count in COUNTS}
    return settings


def finalize(settings: dict[str, Any]) -> Sizes:
    tp, etp, ep = settings[TP], settings[ETP], settings[EP]
    if etp is None:
        etp = 1 if ep > 1 else tp
    for size in (tp, etp, ep):
        if type(size) is not int or size < 1:
            raise Refused
    found = []
    for old, count, parallel in zip(OLD, COUNTS, (tp, etp), strict=True):
        size, shards = settings.get(old, 1), settings.get(count)
        # resolve_tensor_parallel_weight_shards
        if shards is not None:
            if shards < parallel or shards % parallel:
                raise Refused
            size = shards // parallel
        if type(size) is not int or size < 1:
            raise Refused
        found.append(size)
    return tp, etp, ep, found[0], found[1]


# Teachers: algorithms/opd.py and models/policy/teacher_worker_group.py.

TEACHER_DEFAULTS: dict[str, Any] = {
    TP: 1,
    PP: 1,
    CP: 1,
    EP: 1,
    "num_nodes": 1,
    "gpus_per_node": 8,
    "precision": "bf16",
    "micro_batch_size": 4,
    "megatron_cfg_overrides": {},
}


def teachers(config: dict[str, Any], versions: Versions) -> Iterator[tuple[str, Sizes]]:
    try:
        teacher_configs = teacher_configs_of(config.get("on_policy_distillation"), versions)
    except (Refused, TypeError, ValueError, AttributeError):
        yield "teachers", None
        return
    for alias, teacher in teacher_configs:
        try:
            megatron_cfg = teacher_megatron_cfg(teacher, config.get("policy"))
        except (Refused, TypeError, AttributeError):
            yield f"teacher {alias}", None
        else:
            yield f"teacher {alias}", sizes(megatron_cfg, versions)


def teacher_configs_of(section: Any, versions: Versions) -> list[tuple[str, dict[str, Any]]]:
    """create_teacher_configs_from_opd_config, of what _opd_cfg hands it."""
    if section is None:
        return []
    opd = dumped(section) if versions.master_config else section
    non_colocated = opd.get("non_colocated_teachers", {})
    if not opd.get("enabled", False) or not non_colocated.get("enabled", False):
        return []
    model_by_alias = dict(opd.get("teacher_model_by_agent_name", {}))
    fallback = opd.get("default_teacher_alias")
    if not opd.get("strict_agent_name_match", False) and fallback is not None and fallback not in model_by_alias:
        raise Refused
    found, seen = [], set()
    for alias, model in model_by_alias.items():
        if opd.get("deduplicate_shared_teacher_checkpoints", True) and model in seen:
            continue
        seen.add(model)
        own = non_colocated.get("teacher_overrides", {}).get(alias, {})
        found.append((alias, teacher_resource_config({**non_colocated.get("default_teacher_cfg", {}), **own})))
    return found


def dumped(section: dict[str, Any]) -> dict[str, Any]:
    """OnPolicyDistillationConfig(**section).model_dump(exclude_none=True): every default is written out."""
    opd = without_none(section)
    for name in ("enabled", "strict_agent_name_match", "deduplicate_shared_teacher_checkpoints"):
        if name in section and section[name] is None:
            raise Refused
    dict_of_text(section.get("teacher_model_by_agent_name", {}))
    non_colocated = section.get("non_colocated_teachers")
    if non_colocated is None:
        return opd
    if non_colocated.get("enabled", False) is None:
        raise Refused
    opd["non_colocated_teachers"] = {
        **without_none(non_colocated),
        "default_teacher_cfg": without_none(teacher_resource_config(non_colocated.get("default_teacher_cfg", {}))),
        "teacher_overrides": {
            alias: without_none(teacher_resource_config(own))
            for alias, own in non_colocated.get("teacher_overrides", {}).items()
        },
    }
    return opd


def teacher_resource_config(given: dict[str, Any]) -> dict[str, Any]:
    """TeacherResourceConfig(**given): defaults, and pydantic's idea of an int."""
    teacher = {**TEACHER_DEFAULTS, **given}
    for name, default in TEACHER_DEFAULTS.items():
        teacher[name] = integer(teacher[name]) if type(default) is int else teacher[name]
    if not isinstance(teacher["precision"], str) or not isinstance(teacher["megatron_cfg_overrides"], dict):
        raise Refused
    return teacher


def integer(value: Any) -> int:
    if isinstance(value, int | float) and value == int(value):
        return int(value)
    if isinstance(value, str):
        return int(value)
    raise Refused


def dict_of_text(value: Any) -> None:
    if not all(isinstance(each, str) for pair in value.items() for each in pair):
        raise Refused


def without_none(mapping: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if value is not None}


def teacher_megatron_cfg(teacher: dict[str, Any], policy: Any) -> dict[str, Any]:
    """TeacherWorkerGroup.__init__, up to where it starts its workers."""
    megatron_cfg = dict(policy.get("megatron_cfg", {}))
    megatron_cfg |= {name: teacher[name] for name in (TP, PP, CP, EP)}
    megatron_cfg |= {name: value for name, value in teacher.items() if name not in TEACHER_DEFAULTS}
    megatron_cfg |= teacher["megatron_cfg_overrides"]
    if policy.get("dtensor_cfg", {}).get("enabled", False):
        raise Refused
    if min(teacher[name] for name in (TP, PP, CP)) < 1:
        raise Refused
    return megatron_cfg


# Generation: models/generation/megatron/config.py and build_inference_model of models/megatron/setup.py.


def generation(policy: Any, versions: Versions) -> Iterator[tuple[str, Sizes]]:
    generation_cfg = policy.get("generation") if isinstance(policy, dict) else None
    if not isinstance(generation_cfg, dict) or generation_cfg.get("backend") != "megatron":
        return
    try:
        training = policy["megatron_cfg"]
        # merged_inference_megatron_cfg
        merged = {**training, **(generation_cfg.get("mcore_generation_config") or {})}
        optimized = merged.get("transformer_impl") == "inference_optimized"
        if optimized and merged[TP] > 1 and not merged["sequence_parallel"]:
            raise Refused
        if versions.typed_counts:
            merged |= dict(zip(COUNTS, (merged[TP], merged.get(ETP)), strict=True))
        if not generation_cfg["colocated"]["enabled"]:
            yield "generation", sizes(merged, versions)
            return
        # What a part of a recipe lacks is as Bridge has it.
        bridge = {ETP: None, EP: 1, PP: 1, CP: 1}
        training, merged = {**bridge, **training}, {**bridge, **merged, CP: 1}
        if layouts_differ(training, merged, versions):
            yield "generation", reshard(training, merged, versions)
    except (Refused, KeyError, TypeError, AttributeError):
        yield "generation", None


def layouts_differ(training: dict[str, Any], merged: dict[str, Any], versions: Versions) -> bool:
    """dedicated_inference_megatron_cfg"""
    if any(training[key] != merged[key] for key in (TP, PP, EP, ETP, CP)):
        return True
    if versions.typed_counts and any(
        training.get(count) not in (None, training.get(size)) for count, size in zip(COUNTS, (TP, ETP), strict=True)
    ):
        return True
    return training.get("transformer_impl") != merged.get("transformer_impl")


def reshard(training: dict[str, Any], merged: dict[str, Any], versions: Versions) -> Sizes:
    """build_inference_model: the finalized training provider, copied, with the sizes of the other layout."""
    if sizes(training, versions) is None:
        raise Refused
    # What the training was given rides along.
    settings = settings_of(training, versions)
    settings |= {key: merged[key] for key in (TP, ETP, EP)}
    if versions.typed_counts:
        settings |= {count: merged.get(count) for count in COUNTS}
    return finalize(settings)


#: The annotations of MegatronConfig (models/policy/__init__.py).
MEGATRON_CONFIG = frozenset(
    """
    enabled env_vars model_overrides empty_unused_memory_level activation_checkpointing recompute_granularity
    recompute_modules tensor_model_parallel_size pipeline_model_parallel_size num_layers_in_first_pipeline_stage
    num_layers_in_last_pipeline_stage context_parallel_size radio_force_cpe_eval_mode freeze_vision_model
    freeze_vision_projection freeze_sound_encoder freeze_sound_projection pipeline_dtype sequence_parallel
    freeze_moe_router expert_tensor_parallel_size expert_model_parallel_size defer_fp32_logits apply_rope_fusion
    bias_activation_fusion force_reconvert_from_hf attention_backend moe_per_layer_logging moe_enable_deepep
    moe_token_dispatcher_type inference_moe_token_dispatcher_type inference_grouped_gemm_backend
    moe_router_num_groups moe_router_group_topk transformer_impl cuda_graph_impl cuda_graph_modules
    cuda_graph_warmup_steps moe_pad_experts_for_cuda_graph_inference moe_shared_expert_overlap
    fine_grained_activation_offloading offload_modules use_gloo_process_groups moe_grouped_gemm
    moe_flex_dispatcher_backend moe_hybridep_num_sms hybridep_num_ranks_per_nvlink_domain hybridep_use_mnnvl peft
    optimizer scheduler distributed_data_parallel_config checkpoint gradient_accumulation_fusion
    use_fused_weighted_squared_relu use_fused_linear_logprobs fused_linear_logprobs_chunk_size mtp_num_layers
    mtp_loss_scaling_factor mtp_use_repeated_layer mtp_detach_heads clear_memory_caches_before_refit fp8_cfg
    freeze_config
    """.split()  # noqa: SIM905
)
