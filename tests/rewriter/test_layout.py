"""GPUs → copies of the model, data lanes, and whether a recipe fits."""

from __future__ import annotations

import re

import pytest

from .conftest import Migrate

CLUSTER = "cluster: {gpus_per_node: 8, num_nodes: 3}\n"


def recipe(cluster: str = CLUSTER, parallel: str = "", size: int | str = 3, extra: str = "") -> str:
    lines = "".join(f"    {line}\n" for line in parallel.split(", ") if line)
    return (
        f"{cluster}policy:\n{extra}  megatron_cfg:\n    tensor_model_parallel_size: 4\n{lines}"
        f"    model_overrides:\n      gtp_weight_remat_size: {size}\n"
    )


def rows(stderr: str) -> list[list[str]]:
    """The cells of the table of layouts, a row that is folded over lines as one."""
    table = stderr[stderr.index("Layouts with GTP on") :]
    found: list[list[str]] = []
    for line in re.findall(r"^│(.*)│$", table, re.M):
        cells = [cell.strip() for cell in line.split("│")]
        if found and not cells[3]:
            found[-1] = [f"{one} {other}".strip() for one, other in zip(found[-1], cells, strict=True)]
        else:
            found.append(cells)
    return found


def row(migrate: Migrate, text: str, *args: str) -> list[str]:
    ran = migrate({"a.yaml": text}, *args)
    assert ran.code == 0, ran.stderr
    (only,) = rows(ran.stderr)
    return only


def test_the_example_of_24_gpus(migrate: Migrate) -> None:
    """12 shards, 2 copies, 6 data lanes."""
    assert row(migrate, recipe()) == [
        "a.yaml", "policy.megatron_cfg", "24", "4 × 3 × 1 × 1", "4 × 1 × 1", "2", "6", "",
    ]  # fmt: skip


def test_the_example_on_8_gpus(migrate: Migrate) -> None:
    found = row(migrate, recipe("cluster: {gpus_per_node: 8, num_nodes: 1}\n"))
    assert found[2] == "8"
    assert found[5:7] == ["?", "?"]
    assert "does not fit" in found[7]
    assert "needs 12 GPUs" in found[7]
    assert "8" in found[7]


@pytest.mark.parametrize("option", ["--dry-run", "--check"])
def test_it_is_said_before_anything_is_written(migrate: Migrate, option: str) -> None:
    ran = migrate({"a.yaml": recipe()}, option)
    assert rows(ran.stderr)[0][5:7] == ["2", "6"]


@pytest.mark.parametrize(
    ("parallel", "cluster", "copies", "lanes"),
    [
        ("", "cluster: {gpus_per_node: 4, num_nodes: 3}\n", "1", "3"),
        ("pipeline_model_parallel_size: 2", CLUSTER, "1", "3"),
        ("context_parallel_size: 2", CLUSTER, "1", "3"),
        ("pipeline_model_parallel_size: 2, context_parallel_size: 2", CLUSTER.replace("3", "6"), "1", "3"),
        ("pipeline_model_parallel_size: null", CLUSTER, "2", "6"),
        ("", CLUSTER.replace("8", "'${mul:2,4}'"), "2", "6"),
    ],
)
def test_numbers(migrate: Migrate, parallel: str, cluster: str, copies: str, lanes: str) -> None:
    assert row(migrate, recipe(cluster, parallel))[5:] == [copies, lanes, ""]


@pytest.mark.parametrize(
    ("cluster", "needed"),
    [
        ("cluster: {gpus_per_node: 8, num_nodes: 2}\n", "not a multiple of 12"),
        ("cluster: {gpus_per_node: 11, num_nodes: 1}\n", "needs 12 GPUs"),
    ],
)
def test_gpus_that_cannot_hold_it(migrate: Migrate, cluster: str, needed: str) -> None:
    assert needed in row(migrate, recipe(cluster))[7]


@pytest.mark.parametrize(
    "cluster", ["", "cluster: {gpus_per_node: 8}\n", "cluster: {gpus_per_node: '???', num_nodes: 1}\n"]
)
def test_gpus_that_no_file_says(migrate: Migrate, cluster: str) -> None:
    found = row(migrate, recipe(cluster))
    assert (found[2], found[5:]) == ("?", ["?", "?", ""])


EXPERTS = "expert_model_parallel_size: 8"


def test_the_experts_fit(migrate: Migrate) -> None:
    """ETP 1 × EP 8 × expert GTP 3 = 24."""
    found = row(migrate, recipe(parallel=EXPERTS) + "      expert_gtp_weight_remat_size: 3\n")
    assert found[3:] == ["4 × 3 × 1 × 1", "1 × 8 × 3", "2", "6", ""]


@pytest.mark.parametrize(
    ("parallel", "size", "said"),
    [
        (EXPERTS, 6, "needs 48 GPUs"),
        (EXPERTS, 2, "not a multiple of 16"),
        (f"{EXPERTS}, expert_tensor_parallel_size: 2", 3, "needs 48 GPUs"),
        ("expert_model_parallel_size: 4, pipeline_model_parallel_size: 2", 5, "needs 40 GPUs"),
    ],
)
def test_the_experts_do_not_fit(migrate: Migrate, parallel: str, size: int, said: str) -> None:
    found = row(migrate, recipe(parallel=parallel) + f"      expert_gtp_weight_remat_size: {size}\n")
    assert said in found[7]
    assert "ETP" in found[7]


@pytest.mark.parametrize(
    ("cluster", "resources", "gpus"),
    [
        # On several nodes generation takes whole nodes, on one node some of its GPUs.
        ("{gpus_per_node: 8, num_nodes: 5}", "{num_nodes: 2, gpus_per_node: 8}", "24"),
        ("{gpus_per_node: 8, num_nodes: 5}", "{num_nodes: 2, gpus_per_node: null}", "24"),
        ("{gpus_per_node: 16, num_nodes: 1}", "{num_nodes: null, gpus_per_node: 4}", "12"),
        ("{gpus_per_node: 16, num_nodes: 1}", "{num_nodes: 1, gpus_per_node: 4}", "12"),
        # Not enough, or not said.
        ("{gpus_per_node: 8, num_nodes: 2}", "{num_nodes: 2, gpus_per_node: 8}", "?"),
        ("{gpus_per_node: 8, num_nodes: 5}", "{num_nodes: null, gpus_per_node: null}", "?"),
    ],
)
def test_generation_that_takes_gpus_of_its_own(migrate: Migrate, cluster: str, resources: str, gpus: str) -> None:
    generation = f"  generation: {{colocated: {{enabled: false, resources: {resources}}}}}\n"
    assert row(migrate, recipe(f"cluster: {cluster}\n", extra=generation))[2] == gpus


def test_colocated_generation_takes_none(migrate: Migrate) -> None:
    generation = "  generation: {colocated: {enabled: true, resources: {num_nodes: 1, gpus_per_node: 8}}}\n"
    assert row(migrate, recipe(extra=generation))[2] == "24"


def test_each_recipe_that_inherits_has_its_layout(migrate: Migrate) -> None:
    files = {
        "a.yaml": recipe(),
        "b.yaml": "defaults: a.yaml\ncluster: {num_nodes: 1}\n",
        "c.yaml": "defaults: a.yaml\npolicy: {megatron_cfg: {tensor_model_parallel_size: 8}}\n",
        "off.yaml": "defaults: a.yaml\npolicy: {megatron_cfg: {model_overrides: {gtp_weight_remat_size: null}}}\n",
    }
    found = {cells[0]: cells[2:7] for cells in rows(migrate(files).stderr)}
    assert found == {
        "a.yaml": ["24", "4 × 3 × 1 × 1", "4 × 1 × 1", "2", "6"],
        "b.yaml": ["8", "4 × 3 × 1 × 1", "4 × 1 × 1", "?", "?"],
        "c.yaml": ["24", "8 × 3 × 1 × 1", "8 × 1 × 1", "1", "3"],
    }


def test_each_holder_has_its_layout(migrate: Migrate) -> None:
    text = recipe() + "teacher:\n" + recipe("").removeprefix("policy:\n").replace(": 4", ": 8")
    found = {cells[1]: cells[3] for cells in rows(migrate({"a.yaml": text}).stderr)}
    assert found == {"policy.megatron_cfg": "4 × 3 × 1 × 1", "teacher.megatron_cfg": "8 × 3 × 1 × 1"}


def test_gtp_that_is_off_has_no_layout(migrate: Migrate) -> None:
    for size in ("1", "null"):
        ran = migrate({"a.yaml": recipe(size=size)})
        assert "1 setting in 1 file migrated" in ran.stderr
        assert "Layouts" not in ran.stderr


def test_the_layout_is_that_of_the_written_form(migrate: Migrate) -> None:
    assert row(migrate, recipe(), "--target", "megatron-cfg")[3:7] == ["4 × 3 × 1 × 1", "4 × 1 × 1", "2", "6"]
