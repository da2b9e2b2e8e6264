"""Random trees of recipes that mostly can be run: shelves, teachers, generation, launchers of all kinds, open sizes.

Where `tests/judge/random_recipes.py` tries all that may be wrong in a recipe, nearly everything here could be started, so
that nearly everything is written.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import yaml

TP, PP, CP = "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"
ETP, EP = "expert_tensor_parallel_size", "expert_model_parallel_size"
OLD = ("gtp_weight_remat_size", "expert_gtp_weight_remat_size")

Config = dict[str, Any]

#: What the environment may say of the recipes: one of each pair.
ENVIRONMENT = {
    "GTP_TEST_TEACH": ("true", "false"),
    "GTP_TEST_APART": ("true", "false"),
    "GTP_TEST_TEACHER": ("/models/math", "/models/code"),
    "GTP_TEST_TP": ("2", "8"),
}


def write_tree(random: Random, folder: Path) -> None:
    """Two to five files, all but the first on top of one or two of those before."""
    folder.mkdir(parents=True, exist_ok=True)
    names: list[str] = []
    section = random.choice(["grpo"] * 5 + ["distillation", "sft", "dpo", "dpo", ""])
    for number in range(random.randint(2, 5)):
        name = f"r{number}.yaml"
        config: Config = {}
        if names:
            parents = random.sample(names, 2 if len(names) > 1 and random.random() < 0.2 else 1)
            config["defaults"] = parents[0] if len(parents) == 1 else parents
        if section and (not names or random.random() < 0.2):
            config[section] = {"seed": number}
        config |= _child(random) if names else _root(random)
        text = yaml.safe_dump(config, sort_keys=False).replace("'<<':", "<<:")
        (folder / name).write_text(text)
        names.append(name)


def _root(random: Random) -> Config:
    config: Config = {"tp": random.choice([2, 4]), "policy": {"megatron_cfg": _megatron_cfg(random)}}
    chance = random.random()
    if chance < 0.25:
        shelf = {"model_overrides": _overrides(random)}
        config = {"shelf": shelf, **config}
        config["policy"]["megatron_cfg"] = {"<<": shelf, **_sizes(random)}
        config["teacher"] = {"megatron_cfg": {"<<": shelf, **_sizes(random)}}
    elif chance < 0.4:
        config["teacher"] = {"megatron_cfg": "${policy.megatron_cfg}"}
    elif chance < 0.6:
        config["value"] = {"megatron_cfg": _megatron_cfg(random)}
    if random.random() < 0.35:
        config["policy"]["generation"] = _generation(random)
    if random.random() < 0.35:
        config["on_policy_distillation"] = _distillation(random)
    return config


def _child(random: Random) -> Config:
    config: Config = {}
    policy: Config = {}
    if random.random() < 0.8:
        cfg = policy["megatron_cfg"] = {}
        if random.random() < 0.6:
            cfg |= _sizes(random)
        if random.random() < 0.6 or not cfg:
            cfg["model_overrides"] = _overrides(random)
    if random.random() < 0.15:
        policy["generation"] = _generation(random)
    if policy:
        config["policy"] = policy
    if random.random() < 0.2:
        config[random.choice(["teacher", "value"])] = {"megatron_cfg": _megatron_cfg(random)}
    if random.random() < 0.15:
        config["on_policy_distillation"] = _distillation(random)
    return config or {"cluster": {"num_nodes": 2}}


def _megatron_cfg(random: Random) -> Config:
    cfg = _sizes(random)
    if random.random() < 0.85:
        cfg["model_overrides"] = _overrides(random)
    return cfg


def _sizes(random: Random) -> Config:
    cfg: Config = {}
    if random.random() < 0.92:
        cfg[TP] = random.choice([1, 2, 4, 8, 3, 2, 4, "${tp}"])
    if random.random() < 0.4:
        cfg[ETP] = random.choice([1, 2, 4])
    if random.random() < 0.4:
        cfg[EP] = random.choice([1, 2, 8])
    if random.random() < 0.3:
        cfg[PP] = random.choice([1, 2])
    return cfg


def _overrides(random: Random) -> Config:
    overrides: Config = {}
    if random.random() < 0.85:
        overrides[OLD[0]] = random.choice([1, 2, 3, 3, 5])
    if random.random() < 0.3 or not overrides:
        overrides[OLD[1]] = random.choice([1, 2, 3])
    if random.random() < 0.3:
        overrides["masked_softmax_fusion"] = False
    return overrides


def _generation(random: Random) -> Config:
    own: Config = {}
    if random.random() < 0.7:
        own[TP] = random.choice([1, 2, 4, 8, *_sometimes(random, "TP", 2)])
    if random.random() < 0.2:
        own[ETP] = random.choice([1, 2])
    if random.random() < 0.2:
        own["model_overrides"] = _overrides(random)
    return {
        "backend": "megatron",
        "colocated": {"enabled": random.choice([False] * 7 + [True, True, *_sometimes(random, "APART", "false")])},
        "mcore_generation_config": own,
    }


def _distillation(random: Random) -> Config:
    teachers: Config = {"enabled": True}
    if random.random() < 0.8:
        teachers["default_teacher_cfg"] = _teacher(random)
    if random.random() < 0.5:
        teachers["teacher_overrides"] = {"code": _teacher(random)}
    return {
        "enabled": random.choice([True] * 7 + [False, 1, *_sometimes(random, "TEACH", "false") * 2]),
        "teacher_model_by_agent_name": {
            "math": "/models/math",
            "code": "${oc.env:GTP_TEST_TEACHER,/models/math}" if random.random() < 0.2 else "/models/code",
        },
        "non_colocated_teachers": teachers,
    }


def _teacher(random: Random) -> Config:
    teacher: Config = {TP: random.choice([1, 2, 4, 8, *_sometimes(random, "TP", 2)])}
    if random.random() < 0.2:
        teacher[EP] = random.choice([1, 2])
    if random.random() < 0.2:
        teacher["num_nodes"] = 2
    if random.random() < 0.2:
        teacher["model_overrides"] = _overrides(random)
    if random.random() < 0.15:
        teacher["megatron_cfg_overrides"] = {"model_overrides": _overrides(random)}
    return teacher


def _sometimes(random: Random, name: str, default: Any) -> list[Any]:
    """A value that the environment has a say in; mostly nothing, so that most recipes say all themselves."""
    return [f"${{oc.decode:${{oc.env:GTP_TEST_{name},{default}}}}}"] if random.random() < 0.4 else []
