"""Who starts a recipe decides whether there are resolvers: interpolations where there are, numbers everywhere else.

The recipes are those of the other examples; here is what becomes of them without a section that names a launcher, and
with one whose launcher registers nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Migrate, Ran
from .test_examples import BASE, BASE_WITH_INTERPOLATION, BASE_WITH_NUMBER, CHILD_WITH_TP, NO_TP, ONLY_TP, TEACHER

Becomes = Callable[..., Ran]
Stays = Callable[..., Ran]

OLD, NEW = "gtp_weight_remat_size", "tensor_parallel_num_weight_shards"
INTERPOLATION = "${mul:3,${..tensor_model_parallel_size}}"
OWN = "    model_overrides:\n      tensor_parallel_num_weight_shards: 24\n"

WITH = ("grpo", "ppo", "sft", "distillation")
WITHOUT = ("dpo", "rm", "eval")


def by(section: str, text: str) -> str:
    return text + (f"{section}: {{max_num_steps: 1}}\n" if section else "")


@pytest.mark.parametrize("section", WITH)
def test_launchers_with_resolvers(becomes: Becomes, section: str) -> None:
    becomes(
        {"base.yaml": by(section, BASE), "child.yaml": CHILD_WITH_TP},
        {"base.yaml": by(section, BASE_WITH_INTERPOLATION)},
    )


@pytest.mark.parametrize("section", ["", *WITHOUT])
def test_launchers_without(becomes: Becomes, section: str) -> None:
    becomes(
        {"base.yaml": by(section, BASE), "child.yaml": CHILD_WITH_TP},
        {"base.yaml": by(section, BASE_WITH_NUMBER), "child.yaml": CHILD_WITH_TP + OWN},
    )


@pytest.mark.parametrize("section", ["", *WITHOUT])
def test_an_interpolation_is_refused_without(stays: Stays, section: str) -> None:
    ran = stays({"base.yaml": by(section, BASE)}, "--style", "interpolation")
    assert ran.problems == [
        f"base.yaml:5:7: {OLD} is used by base.yaml, whose launcher is not known to have the resolver mul; "
        "write the numbers with --style literal"
    ]


@pytest.mark.parametrize("other", WITHOUT)
def test_a_recipe_of_two_launchers_has_the_resolvers_of_both(becomes: Becomes, other: str) -> None:
    before, after = (by(other, by("grpo", text)) for text in (BASE, BASE_WITH_NUMBER))
    becomes({"base.yaml": before, "child.yaml": CHILD_WITH_TP}, {"base.yaml": after, "child.yaml": CHILD_WITH_TP + OWN})


@pytest.mark.parametrize("call", ["${add:1,2}", "${max:1,2}", "${div:4,2}", "'x${mul:1,2}y'"])
def test_a_recipe_that_uses_a_resolver_already_has_them(becomes: Becomes, call: str) -> None:
    """It could not be started otherwise, whoever does."""
    used = f"batch: {call}\n"
    becomes(
        {"base.yaml": used + BASE, "child.yaml": CHILD_WITH_TP},
        {"base.yaml": used + BASE_WITH_INTERPOLATION},
    )


@pytest.mark.parametrize("section", ["grpo", "dpo"])
def test_the_heirs_of_an_ingredient_decide(becomes: Becomes, section: str) -> None:
    """What no launcher starts by itself is judged by what inherits from it."""
    child = by(section, CHILD_WITH_TP)
    if section == "grpo":
        becomes({"base.yaml": BASE, "child.yaml": child}, {"base.yaml": BASE_WITH_INTERPOLATION}, proven=False)
    else:
        own = CHILD_WITH_TP + OWN
        becomes(
            {"base.yaml": BASE, "child.yaml": child}, {"base.yaml": BASE_WITH_NUMBER, "child.yaml": by(section, own)}
        )


@pytest.mark.parametrize(
    ("heirs", "base", "own"),
    [
        ({"dpo": 8, "sft": 8}, "24", {}),
        ({"dpo": 8, "sft": 4}, "24", {"sft": 12}),
        ({"grpo": 8, "dpo": 8}, "24", {}),
        ({"grpo": 8, "ppo": 4}, "${mul:3,${..tensor_model_parallel_size}}", {}),
    ],
)
def test_an_ingredient_without_a_tp(becomes: Becomes, heirs: dict[str, int], base: str, own: dict[str, int]) -> None:
    """Nobody starts it, so that no TP is to be assumed for it."""
    before = "policy:\n  megatron_cfg:\n    model_overrides:\n      gtp_weight_remat_size: 3\n"
    files = {name: by(name, CHILD_WITH_TP.replace("8", str(tp))) for name, tp in heirs.items()}
    after = {
        name: by(name, CHILD_WITH_TP.replace("8", str(heirs[name])) + OWN.replace("24", str(number)))
        for name, number in own.items()
    }
    becomes(
        {"base.yaml": before, **{f"{name}.yaml": text for name, text in files.items()}},
        {
            "base.yaml": before.replace("gtp_weight_remat_size: 3", f"tensor_parallel_num_weight_shards: {base}"),
            **{f"{name}.yaml": text for name, text in after.items()},
        },
        proven=False,
    )


def test_one_heir_without_resolvers_is_enough(becomes: Becomes) -> None:
    """Each gets its own number: the base's interpolation would kill the other one at its start."""
    grpo, dpo = by("grpo", CHILD_WITH_TP), by("dpo", CHILD_WITH_TP.replace("8", "2"))
    own = OWN.replace("24", "6")
    becomes(
        {"base.yaml": BASE, "grpo.yaml": grpo, "dpo.yaml": dpo},
        {
            "base.yaml": BASE_WITH_NUMBER,
            "grpo.yaml": by("grpo", CHILD_WITH_TP + OWN),
            "dpo.yaml": by("dpo", CHILD_WITH_TP.replace("8", "2") + own),
        },
    )


@pytest.mark.parametrize("tp", ["4", "${tp}"])
def test_two_heirs_of_another_tp(becomes: Becomes, tp: str) -> None:
    """The base keeps the number that is right beside its own TP, though most need another."""
    before, after = ("tp: 4\n" + text.replace("_size: 4", f"_size: {tp}") for text in (BASE, BASE_WITH_NUMBER))
    becomes(
        {"base.yaml": before, "one.yaml": CHILD_WITH_TP, "two.yaml": CHILD_WITH_TP},
        {"base.yaml": after, "one.yaml": CHILD_WITH_TP + OWN, "two.yaml": CHILD_WITH_TP + OWN},
    )


def test_launchers_of_the_nemo_rl_around(migrate: Migrate) -> None:
    """One whose run_dpo.py registers them, and whose run_sft.py does not."""
    registers = "from nemo_rl.utils.config import register_omegaconf_resolvers\n\nregister_omegaconf_resolvers()\n"
    files = {
        "nemo_rl/models/policy/__init__.py": "class MegatronConfig(TypedDict):\n    enabled: bool\n",
        "nemo_rl/utils/config.py": 'def register_omegaconf_resolvers():\n    OmegaConf.register_new_resolver("mul", f)\n',
        "examples/run_dpo.py": registers,
        "examples/run_sft.py": "import nemo_rl\n",
        "dpo.yaml": by("dpo", BASE),
        "dpo8.yaml": CHILD_WITH_TP.replace("base", "dpo"),
        "sft.yaml": by("sft", BASE),
        "sft8.yaml": CHILD_WITH_TP.replace("base", "sft"),
    }
    ran = migrate(files)
    assert ran.code == 0, ran.stderr
    assert ran.files["dpo.yaml"] == by("dpo", BASE_WITH_INTERPOLATION)
    assert ran.files["sft.yaml"] == by("sft", BASE_WITH_NUMBER)
    assert ran.files["sft8.yaml"] == CHILD_WITH_TP.replace("base", "sft") + OWN


#: Without resolvers: what it is, and what it becomes.
NUMBERS = {
    "the child sets the size": (
        {
            "base.yaml": ONLY_TP,
            "a.yaml": f"defaults: base.yaml\npolicy: {{megatron_cfg: {{model_overrides: {{{OLD}: 3}}}}}}\n",
        },
        {"a.yaml": f"defaults: base.yaml\npolicy: {{megatron_cfg: {{model_overrides: {{{NEW}: 12}}}}}}\n"},
    ),
    "a tp from another key": (
        {"a.yaml": "tp: 4\n" + BASE.replace("_size: 4", "_size: ${tp}")},
        {"a.yaml": "tp: 4\n" + BASE_WITH_NUMBER.replace("_size: 4", "_size: ${tp}")},
    ),
    "a size from another key": (
        {"a.yaml": "gtp: 3\n" + BASE.replace("remat_size: 3", "remat_size: ${gtp}")},
        {"a.yaml": "gtp: 3\n" + BASE_WITH_NUMBER},
    ),
    "a size of one under an inherited tp": (
        {
            "base.yaml": ONLY_TP,
            "a.yaml": f"defaults: base.yaml\npolicy: {{megatron_cfg: {{model_overrides: {{{OLD}: 1}}}}}}\n",
        },
        {"a.yaml": f"defaults: base.yaml\npolicy: {{megatron_cfg: {{model_overrides: {{{NEW}: 4}}}}}}\n"},
    ),
    "a merge key with another tp": (
        {"a.yaml": TEACHER},
        {"a.yaml": TEACHER.replace(f"{OLD}: 3", f"{NEW}: 6") + f"    model_overrides:\n      {NEW}: 24\n"},
    ),
    "an overridden section": (
        {
            "base.yaml": BASE,
            "a.yaml": "defaults: base.yaml\npolicy:\n  _override_: true\n" + CHILD_WITH_TP.split("policy:\n")[1],
        },
        {"base.yaml": BASE_WITH_NUMBER},
    ),
    "a parent reached twice": (
        {
            "base.yaml": BASE,
            "left.yaml": "defaults: base.yaml\na: 1\n",
            "both.yaml": "defaults: [left.yaml, base.yaml]\n",
        },
        {"base.yaml": BASE_WITH_NUMBER},
    ),
}


@pytest.mark.parametrize("launcher", ["", "dpo"])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_without_resolvers(becomes: Becomes, name: str, launcher: str) -> None:
    before, after = NUMBERS[name]
    becomes(*({file: by(launcher, text) for file, text in files.items()} for files in (before, after)))


#: Where no number is right, and there is no resolver.
REFUSALS = {
    "no tp anywhere": ({"a.yaml": NO_TP}, "a.yaml:4:7", "--tp N"),
    "a tp of three question marks": ({"a.yaml": BASE.replace("_size: 4", "_size: ???")}, "a.yaml:5:7", "--tp N"),
    "a tp from the environment": (
        {"a.yaml": BASE.replace("_size: 4", "_size: ${oc.decode:${oc.env:NO_SUCH_TP,4}}")},
        "a.yaml:5:7",
        "tensor_model_parallel_size",
    ),
    "a tp by a resolver of one's own": (
        {"a.yaml": BASE.replace("_size: 4", "_size: ${my_resolver:4}")},
        "a.yaml:5:7",
        "tensor_model_parallel_size",
    ),
}


@pytest.mark.parametrize("style", ["auto", "literal", "interpolation"])
@pytest.mark.parametrize("launcher", ["", "dpo"])
@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_without_resolvers(stays: Stays, name: str, launcher: str, style: str) -> None:
    files, place, _ = REFUSALS[name]
    ran = stays({file: by(launcher, text) for file, text in files.items()}, "--style", style)
    assert [line.split(": ")[0] for line in ran.problems] == [place]


@pytest.mark.parametrize("launcher", ["", "dpo"])
@pytest.mark.parametrize("name", REFUSALS)
def test_what_helps_without_resolvers(stays: Stays, name: str, launcher: str) -> None:
    files, _, todo = REFUSALS[name]
    ran = stays({file: by(launcher, text) for file, text in files.items()})
    assert todo in ran.problems[0].partition("; ")[2] or todo in ran.problems[0]
    assert "--style" not in ran.problems[0]
