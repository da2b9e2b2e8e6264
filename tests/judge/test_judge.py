"""What the judge answers, and what it does where it cannot."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gtp_migrate.judge import Judge, JudgeError, Model, Request, Sizes

from .conftest import NEW_BRIDGE, REAL_TREE, needs_nemo_rl


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "r.yaml") -> str:
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


POLICY = """
    grpo: {}
    policy: {megatron_cfg: {tensor_model_parallel_size: 4, expert_tensor_parallel_size: 2,
                            expert_model_parallel_size: 8, model_overrides: {gtp_weight_remat_size: 3}}}
"""


@needs_nemo_rl
def test_sizes_of_the_policy(judge: Judge, write) -> None:
    answer = judge.ask(Request(write(POLICY)))
    assert answer.models == {"policy": Model(enabled=False, sizes=Sizes(tp=4, etp=2, ep=8, gtp=3, expert_gtp=1))}


@needs_nemo_rl
def test_what_is_missing_is_said(judge: Judge, write) -> None:
    answer = judge.ask(Request(write("policy: {megatron_cfg: {enabled: true, tensor_model_parallel_size: 4}}")))
    missing = ("expert_tensor_parallel_size", "expert_model_parallel_size")
    assert answer.models == {"policy": Model(enabled=True, sizes=Sizes(4, 4, 1, 1, 1), missing=missing)}
    assert answer.untyped == "no section of an algorithm: no launcher takes this recipe as it is"


@needs_nemo_rl
def test_names_are_paths(judge: Judge, write) -> None:
    recipe = """
        megatron_cfg: {tensor_model_parallel_size: 1}
        a: {b: [{megatron_cfg: {tensor_model_parallel_size: 2}}, {c: {megatron_cfg: {tensor_model_parallel_size: 3}}}]}
        text: {megatron_cfg: none}
    """
    models = judge.ask(Request(write(recipe))).models
    assert {name: model.sizes.tp for name, model in models.items()} == {".": 1, "a.b[0]": 2, "a.b[1].c": 3}


@needs_nemo_rl
def test_an_overlay_stands_in_for_the_disk(judge: Judge, write, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    base = write(POLICY)
    kid = write("defaults: ../r.yaml\npolicy: {megatron_cfg: {tensor_model_parallel_size: 8}}\n", "sub/kid.yaml")
    edited = POLICY.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: 16")
    assert judge.ask(Request(kid)).models["policy"].sizes.gtp == 3
    assert judge.ask(Request(kid, overlay={base: textwrap.dedent(edited)})).models["policy"].sizes.gtp == 2
    assert judge.ask(Request(kid)).models["policy"].sizes.gtp == 3


@needs_nemo_rl
def test_overrides_are_hydras(judge: Judge, write) -> None:
    recipe = write(POLICY)
    key = "policy.megatron_cfg.model_overrides.tensor_parallel_num_weight_shards"
    refused = judge.ask(Request(recipe, overrides=(f"{key}=20",)))
    assert refused.failure is not None
    assert refused.failure.stage == "load"
    assert judge.ask(Request(recipe, overrides=(f"+{key}=20",))).models["policy"].sizes.gtp == 5


@needs_nemo_rl
def test_resolvers_are_there_for_one_request_only(judge: Judge, write) -> None:
    recipe = write("policy: {megatron_cfg: {tensor_model_parallel_size: '${mul:2,2}'}}")
    assert judge.ask(Request(recipe)).models["policy"].sizes.tp == 4
    failure = judge.ask(Request(recipe, resolvers=False)).failure
    assert failure is not None
    assert failure.stage == "resolve"
    assert "Unsupported interpolation type mul" in failure.message


@needs_nemo_rl
def test_variables_are_there_for_one_request_only(judge: Judge, write) -> None:
    recipe = write("policy: {megatron_cfg: {tensor_model_parallel_size: '${oc.decode:${oc.env:GTP_MIGRATE_TEST_TP}}'}}")
    answer = judge.ask(Request(recipe, environment={"GTP_MIGRATE_TEST_TP": "4"}))
    assert answer.models["policy"].sizes.tp == 4
    assert judge.ask(Request(recipe)).failure.stage == "resolve"


@needs_nemo_rl
def test_an_override_that_nemo_rl_has_a_key_for(judge: Judge, write) -> None:
    recipe = write(POLICY.replace("gtp_weight_remat_size: 3", "moe_grouped_gemm: true"))
    assert "conflicts with policy.megatron_cfg.moe_grouped_gemm" in judge.ask(Request(recipe)).models["policy"].error


@needs_nemo_rl
def test_one_model_that_fails_hides_no_other(judge: Judge, write) -> None:
    recipe = """
        policy: {megatron_cfg: {tensor_model_parallel_size: 4, model_overrides: {tensor_parallel_num_weight_shards: 6}}}
        value: {megatron_cfg: {tensor_model_parallel_size: 2, model_overrides: {tensor_parallel_num_weight_shards: 6}}}
    """
    models = judge.ask(Request(write(recipe))).models
    assert models["policy"].sizes is None
    assert "must be divisible by tensor_model_parallel_size (4)" in models["policy"].error
    assert models["value"].sizes.gtp == 3


@needs_nemo_rl
def test_new_bridge_refuses_the_old_key(judge: Judge, write) -> None:
    model = judge.ask(Request(write(POLICY), provider=NEW_BRIDGE)).models["policy"]
    assert model.sizes is None
    assert "gtp_weight_remat_size does not match a configurable field" in model.error


TEACHERS = """
    grpo: {}
    policy: {megatron_cfg: {tensor_model_parallel_size: 4, expert_tensor_parallel_size: 1,
                            model_overrides: {gtp_weight_remat_size: 5}}}
    on_policy_distillation:
      enabled: true
      teacher_model_by_agent_name: {math: /m/math, code: /m/code, again: /m/math}
      non_colocated_teachers:
        enabled: true
        default_teacher_cfg:
          tensor_model_parallel_size: 8
          megatron_cfg_overrides: {model_overrides: {gtp_weight_remat_size: 2}}
        teacher_overrides:
          code: {num_nodes: 2, model_overrides: {gtp_weight_remat_size: 3}}
"""


@needs_nemo_rl
def test_a_launcher_writes_out_the_defaults_of_a_teacher(judge: Judge, write) -> None:
    """A teacher with an entry of its own has nothing from `default_teacher_cfg` but loose keys."""
    launched = judge.ask(Request(write(TEACHERS))).models
    plain = judge.ask(Request(write(TEACHERS), typed=False)).models
    assert list(launched) == list(plain) == ["policy", "teacher math", "teacher code"]
    assert launched["teacher math"].sizes == plain["teacher math"].sizes == Sizes(8, 1, 1, 2, 1)
    assert launched["teacher code"].sizes == Sizes(1, 1, 1, 3, 1)
    assert plain["teacher code"].sizes == Sizes(8, 1, 1, 2, 1)


@needs_nemo_rl
def test_teachers_that_cannot_be_made_out(judge: Judge, write) -> None:
    broken = TEACHERS.replace("tensor_model_parallel_size: 8", "tensor_model_parallel_size: many")
    models = judge.ask(Request(write(broken))).models
    assert models["policy"].sizes is not None
    assert "Input should be a valid integer" in models["teachers"].error


GENERATION = """
    grpo: {{}}
    policy:
      megatron_cfg: {{enabled: true, tensor_model_parallel_size: 4, model_overrides: {{{setting}}}}}
      generation:
        backend: megatron
        colocated: {{enabled: {colocated}}}
        mcore_generation_config: {{tensor_model_parallel_size: {tp}}}
"""


@needs_nemo_rl
@pytest.mark.parametrize(
    ("setting", "colocated", "tp", "gtp"),
    [
        ("gtp_weight_remat_size: 3", "true", 2, 3),
        ("tensor_parallel_num_weight_shards: 12", "true", 2, 6),
        ("tensor_parallel_num_weight_shards: 12", "true", 8, None),
        ("tensor_parallel_num_weight_shards: 12", "false", 2, 6),
        ("tensor_parallel_num_weight_shards: 12", "false", 4, 3),
    ],
)
def test_the_generation_model(judge: Judge, write, setting: str, colocated: str, tp: int, gtp: int | None) -> None:
    recipe = write(GENERATION.format(setting=setting, colocated=colocated, tp=tp))
    model = judge.ask(Request(recipe)).models["generation"]
    assert (model.sizes and model.sizes.gtp) == gtp


@needs_nemo_rl
def test_no_second_model_where_the_layout_is_the_same(judge: Judge, write) -> None:
    recipe = write(GENERATION.format(setting="", colocated="true", tp=4))
    assert list(judge.ask(Request(recipe)).models) == ["policy"]


@needs_nemo_rl
def test_a_nemo_rl_that_types_the_counts(judge: Judge, typing_judge: Judge, write) -> None:
    typed = """
        grpo: {}
        policy:
          megatron_cfg: {tensor_model_parallel_size: 4, tensor_parallel_num_weight_shards: 12}
          generation: {backend: megatron, colocated: {enabled: true}}
    """
    assert judge.ask(Request(write(typed))).models["policy"].sizes.gtp == 1
    models = typing_judge.ask(Request(write(typed))).models
    assert models["policy"].sizes.gtp == 3
    assert models["generation"].sizes.gtp == 1

    untyped = POLICY.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: 12")
    assert judge.ask(Request(write(untyped))).models["policy"].sizes.gtp == 3
    assert "first-class" in typing_judge.ask(Request(write(untyped))).models["policy"].error


@needs_nemo_rl
def test_a_whole_recipe_goes_through_the_launchers_types(judge: Judge) -> None:
    recipe = str(REAL_TREE / "configs" / "grpo_math_1B_megatron.yaml")
    tp = "policy.megatron_cfg.tensor_model_parallel_size"
    text = judge.ask(Request(recipe, overrides=(f"{tp}='4'",)))
    assert text.untyped is None
    assert text.models["policy"].sizes.tp == 4
    assert judge.ask(Request(recipe, overrides=(f"{tp}='4'",), typed=False)).models["policy"].sizes is None

    no_etp = judge.ask(Request(recipe, overrides=("~policy.megatron_cfg.expert_tensor_parallel_size",)))
    assert "MasterConfig" in no_etp.untyped
    assert no_etp.models["policy"].missing == ("expert_tensor_parallel_size",)


def test_a_process_that_ends_is_said(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        """#!/bin/sh\necho '{"bridge": "", "nemo_rl": "", "error": null}'\necho out of memory >&2\nexit 9\n"""
    )
    python.chmod(0o755)
    with Judge(str(python)) as judge, pytest.raises(JudgeError, match=r"ended with exit code 9 \(out of memory\)"):
        judge.ask(Request("r.yaml"))


def test_without_nemo_rl_it_says_what_to_do() -> None:
    """What a library prints on the way does not disturb."""
    env = {"PYTHONPATH": str(Path(__file__).parents[1])}
    with (
        pytest.raises(JudgeError, match=r"cannot import .*No module named 'nemo_rl'.*; run this where NeMo-RL runs"),
        Judge(sys.executable, prepare=["judge.noisy:start"], env=env),
    ):
        pass


def test_no_python_there(tmp_path: Path) -> None:
    with pytest.raises(JudgeError, match=r"No such file or directory; give the Python"), Judge(str(tmp_path / "py")):
        pass


def test_asking_imports_nothing_heavy() -> None:
    code = "import sys, gtp_migrate.judge; print({'torch', 'nemo_rl', 'megatron', 'omegaconf'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
