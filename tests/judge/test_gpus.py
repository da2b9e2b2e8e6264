"""Who gets which GPUs, held against the lines of NeMo-RL that share them out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gtp_migrate.migrate import Options, migrate
from gtp_migrate.recipes.interpolation import Resolution
from gtp_migrate.recipes.survey import survey
from gtp_migrate.runs.gpus import Gpus, gpus_of
from gtp_migrate.runs.models import models
from gtp_migrate.runs.runs import Resolved

from .conftest import NEMO_RL, REAL_TREE, needs_nemo_rl

#: A launcher's section, and the module that it starts.
MODULES = {
    "grpo": "grpo",
    "ppo": "ppo",
    "distillation": "distillation",
    "sft": "sft",
    "dpo": "dpo",
    "rm": "rm",
    "off-policy": "xtoken_off_policy_distillation",
    "single controller": "single_controller_utils/setup",
}

COLOCATED: list[dict[str, Any]] = [{"enabled": True, "resources": {"num_nodes": None, "gpus_per_node": None}}]
COLOCATED += [
    {"enabled": False, "resources": {"num_nodes": nodes, "gpus_per_node": per_node}}
    for nodes, per_node in product((None, 1, 2, 5), (None, 3, 4, 8))
]
REWARD_MODELS = [None, (1, 1), (1, 8), (2, 4)]
TEACHERS: list[dict[str, Any] | None] = [
    None,
    {"default_teacher_cfg": {"num_nodes": 2}},
    {"default_teacher_cfg": {"gpus_per_node": 4}},
    {"default_teacher_cfg": {"num_nodes": 2, "gpus_per_node": 4}, "teacher_overrides": {"b": {"gpus_per_node": 4}}},
    {"default_teacher_cfg": {"num_nodes": 2}, "teacher_overrides": {"a": {"num_nodes": 1}}},
]


def recipes() -> Iterator[tuple[str, dict[str, Any]]]:
    for launcher, backend in [*((launcher, "vllm") for launcher in MODULES), ("grpo", "megatron")]:
        teachers = TEACHERS if launcher == "grpo" else TEACHERS[:2]
        for nodes, colocated, reward, teaching in product((1, 2, 3, 4, 9), COLOCATED, REWARD_MODELS, teachers):
            for per_node in (4, 8):
                recipe = _recipe(launcher, (nodes, per_node), {"backend": backend, "colocated": colocated}, reward)
                if teaching is not None:
                    recipe["on_policy_distillation"] = {
                        "enabled": True,
                        "teacher_model_by_agent_name": {"a": "one", "b": "two", "c": "one"},
                        "non_colocated_teachers": {"enabled": True, **teaching},
                    }
                yield launcher, recipe


def _recipe(
    launcher: str, cluster: tuple[int, int], generation: dict[str, Any], reward: tuple[int, int] | None
) -> dict[str, Any]:
    section = {"off-policy": "distillation", "single controller": "grpo"}.get(launcher, launcher)
    resources = dict(zip(("num_nodes", "gpus_per_node"), reward or (1, 1), strict=True))
    recipe: dict[str, Any] = {
        section: {},
        "cluster": dict(zip(("num_nodes", "gpus_per_node"), cluster, strict=True)),
        "data": {"train": [{"env_name": "reward_model" if reward else "math"}], "default": None},
        "env": {"reward_model": {"resources": resources}},
        "policy": {"megatron_cfg": {"tensor_model_parallel_size": 1}, "generation": generation},
    }
    if launcher == "off-policy":
        recipe["teachers"] = []
    if launcher == "single controller":
        recipe["async_rl"] = {}
    return recipe


def ours(recipe: dict[str, Any]) -> dict[str, Gpus | None]:
    found = models(recipe, [(("policy", "megatron_cfg"), recipe["policy"]["megatron_cfg"])], as_launched=True)
    resolved = Resolved(Resolution(recipe, (), frozenset()), recipe, tuple(found))
    return {model.name: gpus_of(resolved, model) for model in found}


def theirs(asked: list[tuple[str, dict[str, Any]]]) -> list[dict[str, list[int]] | None]:
    script = Path(__file__).with_name("clusters.py")
    text = json.dumps([[MODULES[launcher], recipe] for launcher, recipe in asked])
    answer = subprocess.run(
        [sys.executable, str(script)], input=text, env={"PYTHONPATH": str(NEMO_RL)}, capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr
    found: list[dict[str, list[int]] | None] = json.loads(answer.stdout.splitlines()[-1])
    return found


@needs_nemo_rl
def test_as_nemo_rl_shares_them_out() -> None:
    asked = list(recipes())
    known = Counter[str]()
    for (launcher, recipe), clusters in zip(asked, theirs(asked), strict=True):
        for name, gpus in ours(recipe).items():
            if name.startswith("teacher") and launcher == "single controller":
                continue  # GRPO's launcher alone makes it
            where = f"{launcher} {name}: {recipe}"
            if clusters is None or any(min(size) < 1 for size in clusters.values()):
                # A null that can be given as one number alone is taken for that one.
                resources = recipe["policy"]["generation"]["colocated"]["resources"]
                is_beside = name.startswith("teacher") or resources["gpus_per_node"] is None
                assert gpus is None or is_beside, where
                continue
            role = name.replace(" ", "_") if name.startswith("teacher") else "inference" if name == "generation" else ""
            (right,) = [Gpus(*size) for cluster, size in clusters.items() if _is_of(cluster, role)]
            # GRPO's launcher may start it just as well, and may share them out in another way.
            assert gpus == right or (gpus is None and launcher == "single controller"), where
            known[launcher] += gpus is not None
    assert known.keys() == MODULES.keys()
    assert min(known.values()) > 20, known


@pytest.mark.skipif(not REAL_TREE.is_dir(), reason="needs a copy of NeMo-RL's recipes in ../shared/corpus/nemo_rl")
@pytest.mark.parametrize(
    ("parent", "expected"),
    [
        # 3 nodes: one trains, one generates, one teaches.
        (
            "recipes/llm/mopd-qwen3-1.7b-3n8g-megatron-pack.yaml",
            {"policy.megatron_cfg": Gpus(1, 8), "teacher default_teacher": Gpus(1, 8)},
        ),
        # 2 GPUs, one for the reward model.
        ("grpo_rm_1B.yaml", {"policy.megatron_cfg": Gpus(1, 1)}),
        # 10 nodes, two generate.
        (
            "recipes/llm/grpo-qwen3-30ba3b-10n8g-megatron-cp2-r3-async-single-controller.yaml",
            {"policy.megatron_cfg": Gpus(8, 8)},
        ),
    ],
)
def test_nemo_rl_s_own_recipes(parent: str, expected: dict[str, Gpus], tmp_path: Path) -> None:
    child = tmp_path / "child.yaml"
    child.write_text(
        f"defaults: {REAL_TREE / 'configs' / parent}\n"
        "policy: {megatron_cfg: {enabled: true, model_overrides: {gtp_weight_remat_size: 2}}}\n"
    )
    outcome = migrate(Options((str(child),)), survey([str(child)]))
    (run,) = outcome.runs
    layouts = {model.name: model.layout for model in run.models if model.layout is not None}
    assert {name: (each.gpus, each.gpus_per_node) for name, each in layouts.items()} == {
        name: (gpus.total, gpus.per_node) for name, gpus in expected.items()
    }


def _is_of(cluster: str, role: str) -> bool:
    """Whether a cluster, by its name, is that of a teacher, of generation (`inference`), or of training."""
    if role.startswith("teacher"):
        return cluster == role
    is_other = cluster.startswith("teacher") or "inference" in cluster
    return "inference" in cluster if role == "inference" else not is_other
