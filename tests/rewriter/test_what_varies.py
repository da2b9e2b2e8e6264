"""Values that another file, a resolver, the environment or the command line may change: nothing is frozen unseen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

RECIPE = """\
policy:
  megatron_cfg:
    {more}
    model_overrides:
      {key}: {size}
"""


def recipe(size: object, more: str, key: str = "gtp_weight_remat_size") -> str:
    return RECIPE.format(size=size, key=key, more=more.replace("\n", "\n    "))


TP4 = "tensor_model_parallel_size: 4"
EXPERT = "expert_gtp_weight_remat_size"


@pytest.mark.launcher("grpo")
@pytest.mark.parametrize("size", ["${oc.select:par.gtp,null}", "${oc.select:par.gtp}", "${oc.select:par.gtp, 1}"])
def test_a_resolver_may_read_any_key(becomes: Callable[..., Any], size: str) -> None:
    before = "par: {gtp: 3}\n" + recipe(size, TP4)
    new = f"${{mul:{size},${{..tensor_model_parallel_size}}}}"
    after = before.replace(
        f"gtp_weight_remat_size: {size}",
        f"tensor_parallel_num_weight_shards: {new}",
    )
    becomes({"a.yaml": before}, {"a.yaml": after})


@pytest.mark.launcher("grpo")
@pytest.mark.parametrize(
    ("par", "more", "right"),
    [
        (
            "etp: 2",
            f"{TP4}\nexpert_tensor_parallel_size: ${{oc.select:par.etp}}",
            "${mul:3,${..expert_tensor_parallel_size}}",
        ),
    ],
)
def test_a_parallel_size_by_a_resolver(becomes: Callable[..., Any], par: str, more: str, right: str) -> None:
    before = f"par: {{{par}}}\n" + recipe(3, more, EXPERT)
    after = before.replace(f"{EXPERT}: 3", f"expert_tensor_parallel_num_weight_shards: {right}")
    becomes({"a.yaml": before}, {"a.yaml": after})


@pytest.mark.parametrize(
    "overrides",
    ["${oc.select:sh.a}", "${oc.create:{gtp_weight_remat_size:3}}", "${oc.create:${sh.a}}"],
)
def test_overrides_by_a_resolver_are_not_passed_over(migrate: Callable[..., Any], overrides: str) -> None:
    text = (
        f"policy:\n  megatron_cfg:\n    {TP4}\n    model_overrides: {overrides}\n"
        "sh:\n  a:\n    gtp_weight_remat_size: 3\n"
    )
    ran = migrate({"a.yaml": text}, "--check")
    assert ran.code == 1, ran.stderr
    # Who removes it turns GTP off.
    assert "may be what policy.megatron_cfg gets by a resolver; write" in ran.stderr
    assert "remove it" not in ran.stderr


@pytest.mark.parametrize(("key", "axis"), [("gtp_weight_remat_size", "TP"), ("expert_gtp_weight_remat_size", "ETP")])
@pytest.mark.parametrize("heirs", [{}, {"k.yaml": "defaults: a.yaml\nx: 1\n"}], ids=["alone", "with an heir"])
@pytest.mark.parametrize("target", ["model-overrides", "megatron-cfg"])
def test_a_size_that_the_run_gives(
    stays: Callable[..., Any], heirs: dict[str, str], target: str, key: str, axis: str
) -> None:
    """By its name, and as a size: neither is right any more."""
    text = recipe("'???'", f"{TP4}\nexpert_tensor_parallel_size: 2", key)
    ran = stays({"a.yaml": text, **heirs}, "--target", target)
    (problem,) = ran.problems
    count = key.replace("gtp_weight_remat_size", "tensor_parallel_num_weight_shards")
    assert problem.endswith(
        f": {key} is ???: the run gives a size, and would have to give a number of shards; "
        f"write {count}: ??? here and give size × {axis} instead"
    )


def test_a_size_that_all_heirs_give(migrate: Callable[..., Any]) -> None:
    """The base is none to run, and goes with them."""
    heir = "defaults: a.yaml\npolicy: {megatron_cfg: {model_overrides: {gtp_weight_remat_size: 3}}}\n"
    ran = migrate({"a.yaml": recipe("'???'", TP4), "k.yaml": heir})
    assert ran.code == 0, ran.stderr
    assert "tensor_parallel_num_weight_shards: '???'" in ran.files["a.yaml"]
    assert "tensor_parallel_num_weight_shards: 12" in ran.files["k.yaml"]
    # One that does not is to be run as it is.
    again = migrate({"a.yaml": recipe("'???'", TP4), "k.yaml": heir, "l.yaml": "defaults: a.yaml\n"})
    assert (again.code, again.files["k.yaml"]) == (3, heir)


def test_why_of_a_count_that_the_run_gives(migrate: Callable[..., Any]) -> None:
    text = recipe("'???'", TP4).replace("gtp_weight_remat_size", "tensor_parallel_num_weight_shards")
    ran = migrate({"a.yaml": text}, "--explain", paths=("a.yaml",))
    assert "the run gives what is ??? here" in ran.stdout
    assert "GTP is not set" not in ran.stdout


@pytest.mark.parametrize("size", ["[3]", "{a: 3}", "[]"])
def test_a_size_that_is_a_container(stays: Callable[..., Any], size: str) -> None:
    ran = stays({"a.yaml": recipe(size, TP4)})
    assert ran.problems[0].endswith(
        ": gtp_weight_remat_size must be a positive integer or null; correct it and run again"
    )


@pytest.mark.launcher("grpo")
@pytest.mark.parametrize(
    "defaults",
    [
        "defaults: ${oc.env:GTP_TEST_PARENT}.yaml",
        'root: base\ndefaults: "${root}.yaml"',
        "root: base.yaml\ndefaults:\n- ${root}",
    ],
)
def test_defaults_by_an_interpolation(
    becomes: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, defaults: str
) -> None:
    monkeypatch.setenv("GTP_TEST_PARENT", "base")
    base = recipe(3, TP4)
    child = f"{defaults}\npolicy: {{megatron_cfg: {{tensor_model_parallel_size: 8}}}}\n"
    new = "tensor_parallel_num_weight_shards: ${mul:3,${..tensor_model_parallel_size}}"
    becomes(
        {"base.yaml": base, "k.yaml": child}, {"base.yaml": base.replace("gtp_weight_remat_size: 3", new)}, proven=False
    )


def test_parents_that_cannot_be_told(stays: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The file may inherit from any that is to be changed."""
    monkeypatch.delenv("GTP_TEST_PARENT", raising=False)
    files = {"base.yaml": recipe(3, TP4), "k.yaml": "defaults: ${oc.env:GTP_TEST_PARENT}.yaml\n"}
    ran = stays(files)
    assert "k.yaml:1:1: inherits from ${oc.env:GTP_TEST_PARENT}.yaml, which cannot be told" in ran.stderr
    assert "--exclude" in ran.stderr


@pytest.mark.parametrize(
    "defaults",
    [
        "defaults: ${oc.env:GTP_TEST_PARENT,other.yaml}",
        "defaults: [other.yaml, '${oc.env:GTP_TEST_PARENT, other.yaml}']",
        "a: {b: '${oc.env:GTP_TEST_PARENT,other}'}\nroot: ${a.b}\ndefaults: ${root}.yaml",
    ],
)
def test_parents_that_the_environment_may_change(
    stays: Callable[..., Any], migrate: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, defaults: str
) -> None:
    """Unset here, the variable may be set where the recipe runs; set here, it is a person's word."""
    monkeypatch.delenv("GTP_TEST_PARENT", raising=False)
    child = f"{defaults}\npolicy: {{megatron_cfg: {{tensor_model_parallel_size: 8}}}}\n"
    files = {"base.yaml": recipe(3, TP4), "other.yaml": "x: 1\n", "k.yaml": child}
    ran = stays(files)
    assert "which cannot be told (the environment may set GTP_TEST_PARENT); set what it needs, or leave" in ran.stderr
    monkeypatch.setenv("GTP_TEST_PARENT", "other" if "root" in defaults else "other.yaml")
    assert migrate({}).code == 0


def test_parents_that_cannot_be_told_left_out(migrate: Callable[..., Any]) -> None:
    files = {"base.yaml": recipe(3, TP4), "k.yaml": "defaults: ${oc.env:GTP_TEST_NO_SUCH}.yaml\n"}
    ran = migrate(files, "--exclude", "k.yaml")
    assert ran.code == 0, ran.stderr
    assert "tensor_parallel_num_weight_shards: 12" in ran.files["base.yaml"]


@pytest.mark.parametrize("style", ["auto", "literal", "interpolation"])
@pytest.mark.parametrize(
    "more",
    [
        f"{TP4}\nexpert_model_parallel_size: ${{oc.select:par.ep,1}}",
        f"{TP4}\nexpert_model_parallel_size: ${{oc.decode:${{oc.env:GTP_TEST_EP,1}}}}",
        f"{TP4}\nexpert_tensor_parallel_size: ${{oc.decode:${{oc.env:GTP_TEST_ETP,null}}}}",
    ],
)
def test_an_etp_that_follows_from_the_environment(stays: Callable[..., Any], more: str, style: str) -> None:
    ran = stays({"a.yaml": recipe(3, more, EXPERT)}, "--style", style)
    assert "from the environment; set expert_tensor_parallel_size and run again" in ran.stderr


def test_a_number_does_not_follow_the_environment(stays: Callable[..., Any]) -> None:
    tp = "tensor_model_parallel_size: ${oc.decode:${oc.env:GTP_TEST_TP,4}}"
    ran = stays({"a.yaml": recipe(3, tp)}, "--style", "literal")
    assert "has its TP from the environment, which no number follows" in ran.stderr


def test_a_number_does_not_follow_what_follows_the_environment(stays: Callable[..., Any]) -> None:
    text = "tp: ${oc.decode:${oc.env:GTP_TEST_TP,4}}\n" + recipe(3, "tensor_model_parallel_size: ${tp}")
    ran = stays({"a.yaml": text}, "--style", "literal")
    assert "has its TP from the environment" in ran.stderr


@pytest.mark.parametrize("gtp", ["null", "${oc.decode:${oc.env:GTP_TEST_GTP,null}}"])
def test_a_size_that_is_null_today(stays: Callable[..., Any], gtp: str) -> None:
    """`gtp=8` on the command line would be taken for eight shards."""
    ran = stays({"a.yaml": f"gtp: {gtp}\n" + recipe("${gtp}", TP4)})
    assert "gtp_weight_remat_size (${gtp}) is null in a recipe that gets it" in ran.stderr


@pytest.mark.launcher("grpo")
@pytest.mark.parametrize("target", ["model-overrides", "megatron-cfg"])
def test_a_tp_that_fails_here_is_set_all_the_same(becomes: Callable[..., Any], target: str) -> None:
    """`--tp` is for recipes in which no file says a TP; a resolver of one's own does say it."""
    before = recipe(3, "tensor_model_parallel_size: ${my_resolver:5,1}")
    if target == "model-overrides":
        after = before.replace(
            "gtp_weight_remat_size: 3",
            "tensor_parallel_num_weight_shards: ${mul:3,${..tensor_model_parallel_size}}",
        )
    else:
        after = before.replace(
            "model_overrides:\n      gtp_weight_remat_size: 3",
            "tensor_parallel_num_weight_shards: ${mul:3,${.tensor_model_parallel_size}}",
        )
    becomes({"a.yaml": before}, {"a.yaml": after}, "--tp", "2", "--target", target, proven=False)


def test_an_etp_that_fails_here_is_set_all_the_same(stays: Callable[..., Any]) -> None:
    more = f"{TP4}\nexpert_tensor_parallel_size: ${{my_resolver:5,1}}"
    stays({"a.yaml": recipe(3, more, EXPERT)}, "--etp", "2")


@pytest.mark.launcher("grpo")
def test_all_resolvers_of_nemo_rl(becomes: Callable[..., Any]) -> None:
    before = recipe("${mul:3,${max:1,2}}", "tensor_model_parallel_size: ${add:1,${mul:1,3}}")
    new = "tensor_parallel_num_weight_shards: ${mul:${mul:3,${max:1,2}},${..tensor_model_parallel_size}}"
    becomes({"a.yaml": before}, {"a.yaml": before.replace("gtp_weight_remat_size: ${mul:3,${max:1,2}}", new)})


@pytest.mark.parametrize(
    ("size", "tp", "shards"),
    [
        ("${max:1,3}", "2", 6),
        ("${mul:3,2}", "4", 24),
        ("${add:1,2}", "${add:1,2}", 9),
        ("2", "${mul:3,${max:2,1}}", 12),
    ],
)
def test_the_numbers_of_resolvers(becomes: Callable[..., Any], size: str, tp: str, shards: int) -> None:
    before = recipe(size, f"tensor_model_parallel_size: {tp}")
    after = before.replace(f"gtp_weight_remat_size: {size}", f"tensor_parallel_num_weight_shards: {shards}")
    becomes({"a.yaml": before}, {"a.yaml": after}, "--style", "literal")


SUB = recipe("${sub:5,${max:1,2}}", "tensor_model_parallel_size: ${add:1,${mul:1,3}}")
#: As newer ones register them.
WITH_SUB = """\
from omegaconf import OmegaConf

def register_omegaconf_resolvers():
    OmegaConf.register_new_resolver("add", lambda a, b: a + b)
    OmegaConf.register_new_resolver("mul", lambda a, b: a * b)
    OmegaConf.register_new_resolver("sub", lambda a, b: a - b)
    OmegaConf.register_new_resolver("max", lambda a, b: max(a, b))
"""


@pytest.mark.launcher("grpo")
def test_a_resolver_that_the_oldest_nemo_rl_lacks(stays: Callable[..., Any]) -> None:
    ran = stays({"a.yaml": SUB})
    assert [line.split(": ")[0] for line in ran.problems] == ["a.yaml:5:7"]
    assert "Unsupported interpolation type sub" in ran.problems[0]


@pytest.mark.launcher("grpo")
def test_the_resolvers_of_the_nemo_rl_around(migrate: Callable[..., Any]) -> None:
    files = {
        "nemo_rl/models/policy/__init__.py": "class MegatronConfig(TypedDict):\n    enabled: bool\n",
        "nemo_rl/utils/config.py": WITH_SUB,
        "a.yaml": SUB,
    }
    ran = migrate(files)
    assert ran.code == 0, ran.stderr
    new = "tensor_parallel_num_weight_shards: ${mul:${sub:5,${max:1,2}},${..tensor_model_parallel_size}}"
    assert new in ran.files["a.yaml"]
    literal = migrate(files, "--style", "literal")
    assert "tensor_parallel_num_weight_shards: 12" in literal.files["a.yaml"]


@pytest.mark.launcher("grpo")
def test_a_recipe_without_megatron_still_loads(stays: Callable[..., Any]) -> None:
    """NeMo-RL resolves every interpolation at the start, also one that nothing needs."""
    ran = stays({"a.yaml": recipe(3, "enabled: false")})
    assert "a.yaml:5:7: gtp_weight_remat_size is for policy.megatron_cfg, which has no TP" in ran.problems[0]
    assert "Megatron switched off" in ran.problems[0]
    assert "--tp N" in ran.problems[0]


def test_a_recipe_without_megatron_and_a_tp_to_assume(becomes: Callable[..., Any]) -> None:
    before = recipe(3, "enabled: false")
    after = before.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: 12")
    becomes({"a.yaml": before}, {"a.yaml": after}, "--tp", "4")


@pytest.mark.launcher("grpo")
@pytest.mark.parametrize("more", ["enabled: false", ""], ids=["off", "not built"])
def test_an_assumed_tp_that_nobody_puts_in(becomes: Callable[..., Any], more: str) -> None:
    """The run needs none there: what refers to it would not load."""
    name = "policy" if more else "value"
    before = recipe(3, more).replace("policy", name)
    if not more:
        before = "policy: {megatron_cfg: {tensor_model_parallel_size: 1}}\n" + before
    child = f"defaults: base.yaml\n{name}:\n  megatron_cfg:\n    enabled: true\n    tensor_model_parallel_size: 8\n"
    after = before.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: 6")
    own = child + "    model_overrides:\n      tensor_parallel_num_weight_shards: 24\n"
    becomes({"base.yaml": before, "child.yaml": child}, {"base.yaml": after, "child.yaml": own}, "--tp", "2")


@pytest.mark.launcher("grpo")
def test_an_assumed_tp_that_nobody_puts_in_and_an_interpolation(stays: Callable[..., Any]) -> None:
    ran = stays({"a.yaml": recipe(3, "enabled: false")}, "--tp", "2", "--style", "interpolation")
    assert "--style literal" in ran.problems[0]


@pytest.mark.launcher("grpo")
def test_a_parent_through_a_link_to_a_folder(migrate: Callable[..., Any], tmp_path: Any) -> None:
    """OmegaConf takes `..` by name: behind the link stands the folder that the link is in."""
    (tmp_path / "work" / "recipes").mkdir(parents=True)
    (tmp_path / "work" / "recipes" / "team").symlink_to("../shared/team")
    files = {
        "recipes/base.yaml": recipe(3, TP4),
        "shared/team/k.yaml": "defaults: ../base.yaml\npolicy: {megatron_cfg: {tensor_model_parallel_size: 8}}\n",
    }
    ran = migrate(files, paths=("recipes", "shared"))
    assert ran.code == 0, ran.stderr
    assert "${mul:3,${..tensor_model_parallel_size}}" in ran.files["recipes/base.yaml"]
    assert "recipes/team/k.yaml" in ran.stderr


def test_an_old_key_deeper_in_the_overrides_is_said(stays: Callable[..., Any]) -> None:
    """NeMo-RL hands it on, and new Bridge rejects it there as well."""
    text = recipe("3", TP4).replace("      gtp", "      transformer:\n        gtp")
    ran = stays({"a.yaml": text})
    message = "a.yaml:6:9: policy.megatron_cfg.model_overrides.transformer.gtp_weight_remat_size stands deeper"
    assert message in ran.stderr
    assert stays({"a.yaml": text}, "--check", code=1)


@pytest.mark.launcher("grpo")
def test_a_child_over_a_mapping_that_is_an_interpolation(becomes: Callable[..., Any]) -> None:
    """OmegaConf copies what the interpolation stands for, and merges over the copy."""
    base = recipe(3, TP4) + "teacher: ${policy}\n"
    child = "defaults: base.yaml\nteacher: {megatron_cfg: {tensor_model_parallel_size: 8}}\n"
    new = "tensor_parallel_num_weight_shards: ${mul:3,${..tensor_model_parallel_size}}"
    becomes({"base.yaml": base, "k.yaml": child}, {"base.yaml": base.replace("gtp_weight_remat_size: 3", new)})


@pytest.mark.launcher("grpo")
def test_a_megatron_cfg_that_stands_under_another_name(becomes: Callable[..., Any]) -> None:
    base = (
        "presets:\n  big:\n    tensor_model_parallel_size: 4\n    model_overrides:\n      gtp_weight_remat_size: 3\n"
        "policy:\n  megatron_cfg: ${presets.big}\n"
    )
    child = "defaults: base.yaml\npresets: {big: {tensor_model_parallel_size: 8}}\n"
    new = "tensor_parallel_num_weight_shards: ${mul:3,${..tensor_model_parallel_size}}"
    becomes({"base.yaml": base, "k.yaml": child}, {"base.yaml": base.replace("gtp_weight_remat_size: 3", new)})


@pytest.mark.launcher("grpo")
@pytest.mark.parametrize("given", [(), ("tp8.yaml",), ("off.yaml",)], ids=["alone", "with one", "with the other"])
def test_an_interpolation_stays_where_it_is_right(
    migrate: Callable[..., Any], tmp_path: Any, given: tuple[str, ...]
) -> None:
    """One child needs what no number of its base can say. It alone is said: nobody is told that a number would be
    wrong for the other child."""
    (tmp_path / "work" / ".git").mkdir(parents=True)
    over = "defaults: base.yaml\npolicy:\n  megatron_cfg:\n    "
    files = {
        "base.yaml": recipe(3, TP4),
        "tp8.yaml": f"{over}tensor_model_parallel_size: 8\n",
        "off.yaml": f"{over}model_overrides: {{gtp_weight_remat_size: null}}\n",
    }
    ran = migrate(files, "--check", paths=("base.yaml", *given))
    assert ran.code == 1
    if "off.yaml" in given:
        assert ran.problems == []
        assert "${mul:3,${..tensor_model_parallel_size}}" in ran.stderr
    else:
        (problem,) = ran.problems
        assert "off.yaml: policy.megatron_cfg would change from TP 4, ETP 4, GTP 1" in problem
        assert problem.endswith("give this file too")


def test_heirs_are_not_searched_behind_links(migrate: Callable[..., Any], tmp_path: Any) -> None:
    """`results -> /lustre/…` in a checkout is no place for recipes."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "k.yaml").write_text("defaults: ../work/base.yaml\n")
    (tmp_path / "work" / ".git").mkdir()
    (tmp_path / "work" / "results").symlink_to(tmp_path / "elsewhere")
    ran = migrate({"base.yaml": recipe(3, TP4)}, paths=("base.yaml",))
    assert ran.code == 0, ran.stderr
    assert "1 recipe proven" in ran.stderr


def test_a_recipe_with_megatron_off_has_no_layout(migrate: Callable[..., Any]) -> None:
    text = recipe(3, f"{TP4}\nenabled: false") + "cluster: {gpus_per_node: 8, num_nodes: 1}\n"
    ran = migrate({"a.yaml": text})
    assert (ran.code, "does not fit" in ran.stderr) == (0, False)
    assert "tensor_parallel_num_weight_shards: 12" in ran.files["a.yaml"]


def test_one_text_by_two_names_that_needs_two_numbers(migrate: Callable[..., Any], tmp_path: Any) -> None:
    """Behind the link the recipe inherits from another file, which a number would not be right for."""
    (tmp_path / "work" / ".git").mkdir(parents=True)
    (tmp_path / "work" / "e").symlink_to("x/d")
    files = {
        "base.yaml": "policy: {megatron_cfg: {tensor_model_parallel_size: 2}}\n",
        "x/base.yaml": "policy: {megatron_cfg: {tensor_model_parallel_size: 8}}\n",
        "x/d/k.yaml": "defaults: ../base.yaml\n" + recipe(3, "enabled: true"),
    }
    ran = migrate(files, "--style", "literal", paths=("x",))
    assert (ran.code, ran.files["x/d/k.yaml"]) == (3, files["x/d/k.yaml"])
    assert "would change from TP 2" in ran.stderr


def test_one_text_by_two_names_that_needs_one_number(migrate: Callable[..., Any], tmp_path: Any) -> None:
    (tmp_path / "work").mkdir(exist_ok=True)
    (tmp_path / "work" / "e").symlink_to("d")
    files = {
        "d/base.yaml": recipe(3, TP4),
        "d/k.yaml": "defaults: base.yaml\npolicy: {megatron_cfg: {tensor_model_parallel_size: 2}}\n",
        "top.yaml": "defaults: e/k.yaml\npolicy: {megatron_cfg: {tensor_model_parallel_size: 8}}\n",
    }
    ran = migrate(files, "--style", "literal")
    assert ran.code == 0, ran.stderr
    assert "tensor_parallel_num_weight_shards: 6" in ran.files["d/k.yaml"]
    assert "tensor_parallel_num_weight_shards: 24" in ran.files["top.yaml"]


def test_parents_that_cannot_be_told_around_the_given_files(migrate: Callable[..., Any], tmp_path: Any) -> None:
    (tmp_path / "work" / ".git").mkdir(parents=True)
    files = {"x/base.yaml": recipe(3, TP4), "y/k.yaml": "defaults: ${oc.env:GTP_TEST_NO_SUCH}.yaml\n"}
    ran = migrate(files, paths=("x",))
    assert ran.code == 3
    assert "y/k.yaml:1:1: inherits from ${oc.env:GTP_TEST_NO_SUCH}.yaml, which cannot be told" in ran.stderr


def test_an_etp_that_is_null_is_known(becomes: Callable[..., Any]) -> None:
    """`--etp` is for recipes in which no file says an ETP; null says that it follows from EP."""
    before = recipe(3, f"{TP4}\nexpert_tensor_parallel_size: null\nexpert_model_parallel_size: 8", EXPERT)
    after = before.replace(f"{EXPERT}: 3", "expert_tensor_parallel_num_weight_shards: 3")
    becomes({"a.yaml": before}, {"a.yaml": after}, "--etp", "2")


ENVIRONMENT_TP = "tensor_model_parallel_size: ${oc.decode:${oc.env:GTP_TEST_TP,4}}"
MISSING_TP = "tensor_model_parallel_size: '???'"


@pytest.mark.parametrize(
    ("section", "tp", "args", "todo", "then", "with_args"),
    [
        ("dpo", ENVIRONMENT_TP, [], "write tensor_model_parallel_size as a number and run again", TP4, []),
        ("dpo", ENVIRONMENT_TP, ["--tp", "4"], "write tensor_model_parallel_size as a number and run again", TP4, []),
        ("dpo", ENVIRONMENT_TP, ["--style", "literal"], "write tensor_model_parallel_size as a number and run again", TP4, []),
        ("grpo", ENVIRONMENT_TP, ["--style", "literal"], "use --style auto", ENVIRONMENT_TP, ["--style", "auto"]),
        ("dpo", MISSING_TP, [], "set tensor_model_parallel_size in a file, or give --tp N", MISSING_TP, ["--tp", "4"]),
        ("rm", MISSING_TP, ["--style", "interpolation"],
         "set tensor_model_parallel_size in a file, or give --tp N and --style literal",
         MISSING_TP, ["--tp", "4", "--style", "literal"]),
        ("rm", TP4, ["--style", "interpolation"], "write the numbers with --style literal", TP4, ["--style", "literal"]),
    ],
)  # fmt: skip
def test_ways_out_lead_out(
    migrate: Callable[..., Any], section: str, tp: str, args: list[str], todo: str, then: str, with_args: list[str]
) -> None:
    text = f"{section}: {{a: 1}}\n{recipe(3, tp)}"
    ran = migrate({"a.yaml": text}, *args)
    assert (ran.code, ran.files["a.yaml"]) == (3, text)
    (problem,) = ran.problems
    assert problem.endswith(f"; {todo}"), problem
    followed = migrate({"a.yaml": text.replace(tp, then)}, *with_args)
    assert (followed.code, followed.problems) == (0, [])


@pytest.mark.parametrize("shards", [12, 8])
def test_a_typed_count_that_is_ignored_beside_a_size(migrate: Callable[..., Any], shards: int) -> None:
    """GTP is on, by the size."""
    text = recipe(3, f"{TP4}\ntensor_parallel_num_weight_shards: {shards}")
    ran = migrate({"a.yaml": text})
    assert (ran.code, ran.files["a.yaml"]) == (3, text)
    assert "GTP is off" not in ran.stderr
    assert "would change" not in ran.stderr
    said = "is ignored by this NeMo-RL: what counts is the gtp_weight_remat_size (a.yaml:6); remove it and run again"
    assert said in ran.stderr
    assert migrate({"a.yaml": recipe(3, TP4)}).code == 0
