"""Which form a NeMo-RL takes: found around the recipes or installed, read without being imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Content, Migrate, Ran

SOURCE = "nemo_rl/models/policy/__init__.py"
RECIPE = (
    "policy:\n"
    "  megatron_cfg:\n"
    "    tensor_model_parallel_size: 4\n"
    "    model_overrides:\n"
    "      gtp_weight_remat_size: 3\n"
)
FORM_B = RECIPE.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: 12")
FORM_C = "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 4\n    tensor_parallel_num_weight_shards: 12\n"

BOTH = "    tensor_parallel_num_weight_shards: int | None\n    expert_tensor_parallel_num_weight_shards: int | None\n"
TYPED = f"import no_such_module\n\nclass MegatronConfig(TypedDict):\n    enabled: bool\n{BOTH}"
NOT_TYPED = "raise RuntimeError('imported')\n\nclass MegatronConfig(TypedDict):\n    enabled: bool\n"
IN_A_BASE = f"class Shards(TypedDict):\n{BOTH}\nclass MegatronConfig(Shards, total=False):\n    enabled: bool\n"
IN_A_BRANCH = f"if True:\n    class MegatronConfig(TypedDict):\n{BOTH}".replace("    tensor", "        tensor").replace(
    "    expert", "        expert"
)
NOT_REQUIRED = TYPED.replace("int | None", "NotRequired[int | None]")
SOMEWHERE_ELSE = f"{NOT_TYPED}\nclass OtherConfig(TypedDict):\n{BOTH}"
ONLY_A_COMMENT = NOT_TYPED + "    # tensor_parallel_num_weight_shards: int | None\n"


def in_checkout(source: str, recipe: str = RECIPE, at: str = "examples/configs/a.yaml") -> dict[str, Content]:
    return {SOURCE: source, at: recipe}


@pytest.mark.parametrize("paths", [(".",), ("examples",), ("examples/configs/a.yaml",)])
@pytest.mark.parametrize("source", [TYPED, IN_A_BASE, IN_A_BRANCH, NOT_REQUIRED])
def test_a_checkout_that_types_the_fields(migrate: Migrate, source: str, paths: tuple[str, ...]) -> None:
    ran = migrate(in_checkout(source), paths=paths)
    assert ran.code == 0, ran.stderr
    assert ran.files["examples/configs/a.yaml"] == FORM_C
    assert "megatron-cfg" in ran.stderr
    assert SOURCE in ran.stderr
    assert "types the fields" in ran.stderr


@pytest.mark.parametrize("paths", [(".",), ("examples",), ("examples/configs/a.yaml",)])
@pytest.mark.parametrize("source", [NOT_TYPED, SOMEWHERE_ELSE, ONLY_A_COMMENT, ""])
def test_a_checkout_that_does_not_type_the_fields(migrate: Migrate, source: str, paths: tuple[str, ...]) -> None:
    ran = migrate(in_checkout(source), paths=paths)
    assert ran.code == 0, ran.stderr
    assert ran.files["examples/configs/a.yaml"] == FORM_B
    assert "model-overrides" in ran.stderr
    assert SOURCE in ran.stderr
    assert "does not type the fields" in ran.stderr


def test_no_nemo_rl_anywhere(migrate: Migrate) -> None:
    ran = migrate({"a.yaml": RECIPE})
    assert ran.files["a.yaml"] == FORM_B
    assert "model-overrides (no NeMo-RL found around the recipes or installed)" in ran.stderr


def test_the_option_wins(migrate: Migrate) -> None:
    ran = migrate(in_checkout(TYPED), "--target", "model-overrides")
    assert ran.files["examples/configs/a.yaml"] == FORM_B
    assert "model-overrides (--target)" in ran.stderr


def test_a_checkout_further_up_than_the_current_folder(migrate: Migrate) -> None:
    ran = migrate(in_checkout(TYPED, at="mine/recipes/deep/a.yaml"), paths=("mine/recipes/deep",))
    assert ran.files["mine/recipes/deep/a.yaml"] == FORM_C


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (TYPED.replace("    expert_tensor_parallel_num_weight_shards: int | None\n", ""), "types only"),
        ("class MegatronConfig(TypedDict:\n", "cannot be read"),
        ("class MegatronConfig:\n    x = '\0'\n", "cannot be read"),
        ("class MegatronConfig:\n    pass  # \ud800\n", "cannot be read"),
    ],
    ids=["one field", "syntax error", "NUL", "not UTF-8"],
)
def test_a_checkout_that_cannot_be_told(migrate: Migrate, source: str, said: str) -> None:
    """Nothing is guessed: one line, and the option to give."""
    files = {**in_checkout(""), SOURCE: source.encode("utf-8", "surrogatepass")}
    ran = migrate(files)
    assert ran.code == 2
    assert ran.files["examples/configs/a.yaml"] == RECIPE
    assert len(ran.stderr.splitlines()) == 1
    assert said in ran.stderr
    assert "--target" in ran.stderr
    assert migrate(files, "--target", "megatron-cfg").files["examples/configs/a.yaml"] == FORM_C


def test_a_checkout_that_cannot_be_told_does_not_matter_without_settings(migrate: Migrate) -> None:
    assert migrate(in_checkout("class (\n", "policy: {}\n")).code == 0


def two_checkouts(one: str, other: str) -> dict[str, Content]:
    files: dict[str, Content] = {}
    for name, source in (("one", one), ("two", other)):
        files.update({f"{name}/{path}": content for path, content in in_checkout(source).items()})
    return files


def test_two_checkouts_that_take_the_same_form(migrate: Migrate) -> None:
    ran = migrate(two_checkouts(TYPED, IN_A_BASE), paths=("one/examples", "two/examples"))
    assert ran.code == 0
    assert [ran.files[f"{name}/examples/configs/a.yaml"] for name in ("one", "two")] == [FORM_C, FORM_C]


def test_two_checkouts_that_differ(migrate: Migrate) -> None:
    ran = migrate(two_checkouts(TYPED, NOT_TYPED), paths=("one/examples", "two/examples"))
    assert ran.code == 2
    assert len(ran.stderr.splitlines()) == 1
    assert "one/nemo_rl" in ran.stderr
    assert "two/nemo_rl" in ran.stderr
    assert "--target" in ran.stderr
    assert ran.files["one/examples/configs/a.yaml"] == RECIPE


def test_checkouts_below_a_given_folder(migrate: Migrate) -> None:
    """The folder above two checkouts holds both: each form is asked for, or a person is."""
    ran = migrate(two_checkouts(TYPED, TYPED))
    assert ran.code == 0, ran.stderr
    assert [ran.files[f"{name}/examples/configs/a.yaml"] for name in ("one", "two")] == [FORM_C, FORM_C]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a `nemo_rl` on the import path."""

    def install(source: str) -> None:
        site = tmp_path / "site"
        (site / SOURCE).parent.mkdir(parents=True)
        (site / SOURCE).write_text(source)
        for package in ("nemo_rl", "nemo_rl/models"):
            (site / package / "__init__.py").write_text("raise RuntimeError('imported')\n")
        monkeypatch.delitem(sys.modules, "nemo_rl")
        monkeypatch.syspath_prepend(site)

    return install


@pytest.mark.parametrize(("source", "after"), [(TYPED, FORM_C), (NOT_TYPED, FORM_B)])
def test_an_installed_nemo_rl(install: Callable[[str], None], migrate: Migrate, source: str, after: str) -> None:
    install(source)
    ran = migrate({"a.yaml": RECIPE})
    assert ran.code == 0, ran.stderr
    assert ran.files["a.yaml"] == after
    assert f"site/{SOURCE}" in ran.stderr
    assert "nemo_rl" not in sys.modules


def test_a_checkout_wins_over_an_installed_nemo_rl(install: Callable[[str], None], migrate: Migrate) -> None:
    install(NOT_TYPED)
    assert migrate(in_checkout(TYPED)).files["examples/configs/a.yaml"] == FORM_C


def test_an_installed_nemo_rl_of_another_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, migrate: Migrate
) -> None:
    """A package of this name without the file says nothing."""
    (tmp_path / "site" / "nemo_rl").mkdir(parents=True)
    (tmp_path / "site" / "nemo_rl" / "__init__.py").write_text("")
    monkeypatch.delitem(sys.modules, "nemo_rl")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert migrate({"a.yaml": RECIPE}).files["a.yaml"] == FORM_B


def test_the_form_is_said_in_a_dry_run_and_a_check(migrate: Migrate) -> None:
    for option in ("--dry-run", "--check"):
        ran: Ran = migrate(in_checkout(TYPED), option)
        assert "Form: megatron-cfg" in ran.stderr


@pytest.mark.parametrize(
    ("source", "after"),
    [(TYPED, "policy:\n  megatron_cfg:\n    tensor_parallel_num_weight_shards: 12\n"), (NOT_TYPED, None)],
)
def test_the_checkout_of_a_parent(migrate: Migrate, source: str, after: str | None) -> None:
    """The given file is outside of it, as beside a submodule: that NeMo-RL runs what inherits from its recipes."""
    child = "defaults: ../3rdparty/base.yaml\npolicy:\n  megatron_cfg:\n    model_overrides:\n      gtp_weight_remat_size: 3\n"
    files: dict[str, Content] = {
        f"3rdparty/{SOURCE}": source,
        "3rdparty/base.yaml": "policy: {megatron_cfg: {tensor_model_parallel_size: 4}}\n",
        "mine/a.yaml": child,
    }
    ran = migrate(files, paths=("mine",))
    assert ran.code == 0, ran.stderr
    head = child.partition("policy:")[0]
    expected = (
        head + after if after else child.replace("gtp_weight_remat_size: 3", "tensor_parallel_num_weight_shards: 12")
    )
    assert ran.files["mine/a.yaml"] == expected
