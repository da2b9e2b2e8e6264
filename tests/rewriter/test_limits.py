"""Values that only a parser could invent, and depths and numbers that no recipe has: found, or an error of that file."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from . import oracle
from .conftest import Migrate, Ran

Stays = Callable[..., Ran]

OLD, NEW = "gtp_weight_remat_size", "tensor_parallel_num_weight_shards"
FINE = f"policy:\n  megatron_cfg:\n    tensor_model_parallel_size: 2\n    model_overrides: {{{OLD}: 2}}\n"
DONE = FINE.replace(f"{OLD}: 2", f"{NEW}: 4")
BASE = f"policy:\n  megatron_cfg: &B\n    tensor_model_parallel_size: 4\n    model_overrides: {{{OLD}: 3}}\n"
DEEPEST = "megatron_cfg: {<<: *B, tensor_model_parallel_size: 6}\n"


def deep(levels: int, kind: str) -> str:
    """A `megatron_cfg` below so many mappings or lists."""
    if kind == "block":
        return BASE + "".join(f"{'  ' * level}d:\n" for level in range(levels)) + "  " * levels + DEEPEST
    opening, closing = ("{d: ", "}") if kind == "flow" else ("[", "]")
    return f"{BASE}d: {opening * levels}{{{DEEPEST.strip()}}}{closing * levels}\n"


@pytest.mark.parametrize("kind", ["block", "flow", "lists"])
@pytest.mark.parametrize("levels", [20, 49, 50, 51, 60])
def test_a_deep_holder_is_found(migrate: Migrate, kind: str, levels: int) -> None:
    text = deep(levels, kind)
    ran = migrate({"a.yaml": text})
    assert ran.code == 0, ran.stderr
    assert OLD not in ran.files["a.yaml"]
    assert ran.files["a.yaml"].count(NEW) == 2
    assert f"{NEW}: 18" in ran.files["a.yaml"]


@pytest.mark.parametrize("kind", ["block", "flow", "lists"])
@pytest.mark.parametrize("levels", [150, 250, 900])
def test_one_that_is_too_deep_is_an_error_or_found(migrate: Migrate, kind: str, levels: int) -> None:
    """Never 'not there'; the good file beside it is done."""
    ran = migrate({"a.yaml": deep(levels, kind), "fine.yaml": FINE})
    assert ran.files["fine.yaml"] == DONE
    if ran.code == 0:
        assert OLD not in ran.files["a.yaml"]
    else:
        assert ran.code == 3
        assert [line.split(":")[0] for line in ran.problems] == ["a.yaml"]
        assert ran.files["a.yaml"] == deep(levels, kind)


@pytest.mark.parametrize("before", [20_000, 40_000])
def test_a_holder_behind_many_values(migrate: Migrate, before: int) -> None:
    text = BASE + "".join(f"x{number}: {number}\n" for number in range(before)) + f"teacher: {{{DEEPEST.strip()}}}\n"
    ran = migrate({"a.yaml": text})
    assert ran.code == 0, ran.stderr
    assert OLD not in ran.files["a.yaml"]
    assert ran.files["a.yaml"].count(NEW) == 2


def test_a_holder_behind_many_items(migrate: Migrate) -> None:
    items = f"[{', '.join(['{a: 1}'] * 20_000)}, {{megatron_cfg: {{tensor_model_parallel_size: 6, model_overrides: {{{OLD}: 2}}}}}}]"
    ran = migrate({"a.yaml": f"items: {items}\n"})
    assert ran.code == 0, ran.stderr
    assert f"{NEW}: 12" in ran.files["a.yaml"]


ODD = {
    "!!int abc": "is no int",
    "!!int ''": "is no int",
    "!!float x": "is no float",
    "!!bool maybe": "is no bool",
    "!!timestamp foo": "",
    "!!binary '*'": "",
    "!thing 1": "!thing",
    "!!python/object:os.system x": "",
    "!!set {a, b}": "",
    "!!omap [a: 1]": "",
    "!thing {a: 1}": "!thing",
    "!thing [1]": "!thing",
    "1" * 5_000: "",
    "2026-13-45": "",
    "*nowhere": "undefined alias",
    "&a [*a]": "",
    "{[1]: 2}": "",
    "{{a: 1}: 2}": "",
    "{null: 1}": "",
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("option", [(), ("--check",), ("--dry-run",)])
def test_an_odd_value_is_an_error_of_its_file(migrate: Migrate, odd: str, option: tuple[str, ...]) -> None:
    """Where OmegaConf takes the value, the file is migrated; where it does not, it is said, and the rest is done."""
    text = FINE + f"x: {odd}\n"
    ran = migrate({"fine.yaml": FINE, "odd.yaml": text}, *option)
    assert "Traceback" not in ran.stderr
    fine = FINE if option else DONE
    assert ran.files["fine.yaml"] == fine
    problems = [line for line in ran.problems if line.startswith("odd.yaml")]
    assert ran.problems == problems
    assert ran.files["odd.yaml"] == (text if option or problems else DONE + f"x: {odd}\n")
    assert len(problems) <= 1
    if problems:
        assert problems[0].startswith("odd.yaml:5:")
        assert ODD[odd] in problems[0]
    if option != ("--check",):
        assert ran.code == (3 if problems else 0)


@pytest.mark.parametrize("odd", ODD)
def test_what_omegaconf_does_not_load_is_said(migrate: Migrate, tmp_path, odd: str) -> None:  # type: ignore[no-untyped-def]
    ran = migrate({"odd.yaml": FINE + f"x: {odd}\n"})
    (tmp_path / "odd.yaml").write_text(FINE + f"x: {odd}\n")
    try:
        oracle.load(tmp_path / "odd.yaml")
    except Exception:
        assert ran.code == 3
        assert ran.problems


@pytest.mark.parametrize(
    "value", ["1" * 5_000, "!!int abc", "!!float x", "!!bool maybe", "!thing 2", "!!timestamp foo"]
)
def test_an_odd_size(stays: Stays, value: str) -> None:
    ran = stays({"a.yaml": FINE.replace(f"{OLD}: 2", f"{OLD}: {value}")})
    assert len(ran.problems) == 1
    assert len(ran.problems[0]) < 1_000
    assert ran.problems[0].startswith("a.yaml:4:")


def test_a_chain_of_1200_defaults(migrate: Migrate) -> None:
    """Longer than NeMo-RL can follow: said once, and the file beside it is done."""
    files = {f"c{number}.yaml": f"defaults: c{number - 1}.yaml\n" for number in range(1, 1_200)}
    ran = migrate({"c0.yaml": FINE, **files, "fine.yaml": FINE})
    assert "Traceback" not in ran.stderr
    assert ran.files["fine.yaml"] == DONE
    assert ran.code in (0, 3)
    if ran.code == 3:
        assert len(ran.problems) <= 4


@pytest.mark.parametrize(
    "bomb",
    [
        "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)),
        "a0: &a0 {k: 1}\n"
        + "".join(f"a{n}: &a{n} {{{', '.join(f'k{i}: *a{n - 1}' for i in range(9))}}}\n" for n in range(1, 10)),
        "a0: &a0 {k: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 30)),
        "a0: xxxxxxxxx\n"
        + "".join(f"a{n}: '{'${a' + str(n - 1) + '}'}{'${a' + str(n - 1) + '}'}'\n" for n in range(1, 60)),
    ],
    ids=["lists", "mappings", "merges", "strings"],
)
@pytest.mark.timeout(120)
def test_bombs(migrate: Migrate, bomb: str) -> None:
    ran = migrate({"bomb.yaml": FINE + bomb, "fine.yaml": FINE})
    assert "Traceback" not in ran.stderr
    assert ran.files["fine.yaml"] == DONE
    assert ran.files["bomb.yaml"] in (FINE + bomb, DONE + bomb)
    assert (ran.code == 0) == (ran.files["bomb.yaml"] == DONE + bomb)
