"""Recipes at random, from a seed: what decides which models a run builds, and how large each is."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import yaml

TP, PP, CP = "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"
ETP, EP = "expert_tensor_parallel_size", "expert_model_parallel_size"
OLD = ("gtp_weight_remat_size", "expert_gtp_weight_remat_size")
COUNTS = ("tensor_parallel_num_weight_shards", "expert_tensor_parallel_num_weight_shards")

Config = dict[str, Any]


def write_tree(random: Random, folder: Path) -> list[Path]:
    """One to three recipes, each on top of none, one or two of those before; the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for number in range(random.randint(1, 3)):
        config = recipe(random)
        if files and random.random() < 0.8:
            parents = [file.name for file in random.sample(files, random.randint(1, len(files)))]
            config = {"defaults": parents[0] if len(parents) == 1 else parents, **config}
        files.append(folder / f"r{number}.yaml")
        files[-1].write_text(yaml.safe_dump(config, sort_keys=False))
    return files


def recipe(random: Random) -> Config:
    config: Config = {}
    if random.random() < 0.8:
        config[random.choice(["grpo", "grpo", "grpo", "distillation", "ppo", "sft", "dpo", "rm", "eval"])] = {"seed": 1}
    config["policy"] = policy(random)
    if random.random() < 0.3:
        config["teacher"] = random.choice([policy(random), {"megatron_cfg": "${policy.megatron_cfg}"}])
    if random.random() < 0.3:
        config["value"] = policy(random)
    if random.random() < 0.2:
        config["env"] = {"judges": [{"megatron_cfg": megatron_cfg(random)}, {"n": 1}]}
    if random.random() < 0.1:
        config["megatron_cfg"] = megatron_cfg(random)
    if random.random() < 0.5:
        config["on_policy_distillation"] = distillation(random)
    if random.random() < 0.1:
        config["cluster"] = "???"
    return config


def policy(random: Random) -> Config:
    held: Config = {"megatron_cfg": megatron_cfg(random)}
    if random.random() < 0.05:
        held = {}
    if random.random() < 0.5:
        held["generation"] = generation(random)
    if random.random() < 0.2:
        held["dtensor_cfg"] = {"enabled": random.random() < 0.5}
    if random.random() < 0.15:
        held["_override_"] = random.random() < 0.8
    return held


def megatron_cfg(random: Random) -> Config:
    held: Config = {}
    if random.random() < 0.7:
        held["enabled"] = random.random() < 0.8
    if random.random() < 0.85:
        held[TP] = random.choice([1, 2, 4, 8, 3, "${policy.megatron_cfg." + EP + "}", "${mul:2,2}", "???", None])
    if random.random() < 0.8:
        held[ETP] = random.choice([1, 1, 2, 4, f"${{.{TP}}}", None])
    if random.random() < 0.8:
        held[EP] = random.choice([1, 1, 2, 8, "${add:1,1}"])
    if random.random() < 0.6:
        held[PP] = random.choice([1, 2])
    if random.random() < 0.6:
        held[CP] = random.choice([1, 2])
    if random.random() < 0.2:
        held["transformer_impl"] = random.choice(["inference_optimized", "transformer_engine"])
        held["sequence_parallel"] = random.random() < 0.5
    if random.random() < 0.15:
        held[random.choice(COUNTS)] = random.choice([None, 4, 8, 16])
    if random.random() < 0.75:
        held["model_overrides"] = model_overrides(random)
    return held


def model_overrides(random: Random) -> Any:
    held: Config = {}
    for name in random.sample([*OLD, *COUNTS], random.randint(0, 2)):
        held[name] = random.choice([1, 2, 3, 4, 6, 8, 12, 16, 24, None, "${mul:2,4}", "2", 0])
    if random.random() < 0.3:
        held["masked_softmax_fusion"] = False
    if random.random() < 0.05:
        held[random.choice([TP, CP, "moe_grouped_gemm"])] = 1
    return held or random.choice([{}, None])


def generation(random: Random) -> Config:
    held: Config = {"backend": random.choice(["megatron", "megatron", "megatron", "vllm"])}
    if random.random() < 0.9:
        held["colocated"] = {"enabled": random.random() < 0.6}
    own = {key: random.choice([1, 2, 4, 8]) for key in random.sample([TP, ETP, EP, PP, CP], random.randint(0, 2))}
    if random.random() < 0.2:
        own["transformer_impl"] = "inference_optimized"
    if random.random() < 0.3:
        own["model_overrides"] = model_overrides(random)
    if random.random() < 0.1:
        own[random.choice(COUNTS)] = 8
    if random.random() < 0.8:
        held["mcore_generation_config"] = own or random.choice([{}, None])
    return held


def distillation(random: Random) -> Config:
    held: Config = {"enabled": random.random() < 0.9}
    aliases = random.sample(["math", "code", "chat"], random.randint(0, 3))
    held["teacher_model_by_agent_name"] = {alias: random.choice(["/models/a", "/models/b"]) for alias in aliases}
    if random.random() < 0.2:
        held["deduplicate_shared_teacher_checkpoints"] = random.random() < 0.5
    if random.random() < 0.1:
        held["default_teacher_alias"] = random.choice(["math", "nobody"])
    if random.random() < 0.05:
        held["non_colocated_teachers"] = None
        return held
    non_colocated: Config = {"enabled": random.random() < 0.9}
    if random.random() < 0.7:
        non_colocated["default_teacher_cfg"] = teacher_cfg(random)
    if random.random() < 0.7:
        chosen = random.sample(["math", "code", "chat"], random.randint(0, 2))
        non_colocated["teacher_overrides"] = {alias: teacher_cfg(random) for alias in chosen}
    held["non_colocated_teachers"] = non_colocated
    return held


def teacher_cfg(random: Random) -> Config:
    held: Config = {}
    for key in random.sample([TP, EP, PP, CP], random.randint(0, 3)):
        held[key] = random.choice([1, 2, 4, 8, "4", 2.0])
    if random.random() < 0.3:
        held["num_nodes"] = 2
    if random.random() < 0.05:
        held[TP] = None
    if random.random() < 0.4:
        held.update(loose(random))
    if random.random() < 0.4:
        held["megatron_cfg_overrides"] = {**loose(random), **({TP: 2} if random.random() < 0.1 else {})}
    return held


def loose(random: Random) -> Config:
    held: Config = {}
    if random.random() < 0.3:
        held[ETP] = random.choice([1, 2, 4, None])
    if random.random() < 0.6:
        held["model_overrides"] = random.choice([model_overrides(random), model_overrides(random), None])
    if random.random() < 0.2:
        held[random.choice(COUNTS)] = random.choice([None, 8, 16])
    return held
