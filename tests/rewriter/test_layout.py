"""GPUs → copies of the model, data lanes, and whether a recipe fits."""

from __future__ import annotations

import json
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


# -- who takes which GPUs ------------------------------------------------------------------------------

TEACHERS = """
    grpo: {}
    on_policy_distillation:
      enabled: true
      teacher_model_by_agent_name: {math: m, code: c, again: m}
      non_colocated_teachers:
        enabled: true
        default_teacher_cfg: {tensor_model_parallel_size: 8%s}
    policy:
      megatron_cfg:
        tensor_model_parallel_size: 4
        expert_tensor_parallel_size: 1
        model_overrides: {gtp_weight_remat_size: 3}
      generation: {backend: vllm%s}
    cluster: {gpus_per_node: %s, num_nodes: %s}
    """


def gpus(migrate: Migrate, text: str) -> dict[str, list[str]]:
    """By model: GPUs, copies, data lanes, the warning."""
    ran = migrate({"a.yaml": text})
    assert ran.code == 0, ran.stderr
    return {cells[1]: [cells[2], *cells[5:]] for cells in rows(ran.stderr)}


@pytest.mark.parametrize(
    ("more", "nodes", "policy", "teacher"),
    [
        # Two teachers, the third has the checkpoint of the first: each takes nodes of its own.
        (", num_nodes: 3", 9, ["24", "2", "6", ""], ["24", "1", "3", ""]),
        (", num_nodes: 2", 9, ["40", "?", "?", "not a multiple of 12"], ["16", "?", "?", "needs 24 GPUs"]),
        # Without a word of their own: one node of 8.
        ("", 5, ["24", "2", "6", ""], ["8", "?", "?", "needs 24 GPUs"]),
        (", num_nodes: 6, gpus_per_node: 4", 15, ["24", "2", "6", ""], ["24", "1", "3", ""]),
        # No node is left for the policy.
        (", num_nodes: 3", 6, ["?", "?", "?", ""], ["24", "1", "3", ""]),
    ],
)
def test_teachers_on_nodes_of_their_own(
    migrate: Migrate, more: str, nodes: int, policy: list[str], teacher: list[str]
) -> None:
    found = gpus(migrate, TEACHERS % (more, "", 8, nodes))
    assert found.keys() == {"policy.megatron_cfg", "teacher math", "teacher code"}
    for model, expected in (("policy.megatron_cfg", policy), ("teacher math", teacher), ("teacher code", teacher)):
        assert found[model][:3] == expected[:3]
        assert expected[3] in found[model][3]


def test_a_teacher_that_wants_more_gpus_than_a_node_has(migrate: Migrate) -> None:
    """No run starts so: 8 GPUs a node are what a teacher gets where nothing is said."""
    found = gpus(migrate, TEACHERS % (", num_nodes: 3", "", 4, 18))
    assert {model: cells[0] for model, cells in found.items()} == dict.fromkeys(found, "?")


def test_a_teacher_with_an_entry_of_its_own_gets_none_of_the_default_s_nodes(migrate: Migrate) -> None:
    own = "\n        teacher_overrides: {code: {tensor_model_parallel_size: 8}}"
    found = gpus(migrate, (TEACHERS % (", num_nodes: 3", "", 8, 7)).replace("num_nodes: 3}", "num_nodes: 3}" + own))
    assert {model: cells[0] for model, cells in found.items()} == {
        "policy.megatron_cfg": "24",
        "teacher math": "24",
        "teacher code": "8",
    }


def test_teachers_beside_generation_on_nodes_of_its_own(migrate: Migrate) -> None:
    apart = ", colocated: {enabled: false, resources: {num_nodes: 2, gpus_per_node: 8}}"
    assert gpus(migrate, TEACHERS % (", num_nodes: 3", apart, 8, 11))["policy.megatron_cfg"][0] == "24"


def test_generation_shares_the_one_node_that_is_left(migrate: Migrate) -> None:
    apart = ", colocated: {enabled: false, resources: {num_nodes: null, gpus_per_node: 4}}"
    assert gpus(migrate, TEACHERS % (", num_nodes: 3", apart, 16, 7))["policy.megatron_cfg"][0] == "12"


JUDGED = """
    %s: {}
    data: %s
    env:
      reward_model: {resources: {num_nodes: %s, gpus_per_node: %s}}
    policy:
      megatron_cfg: {tensor_model_parallel_size: 4, model_overrides: {gtp_weight_remat_size: 2}}
      generation: {colocated: %s}
    cluster: {gpus_per_node: %s, num_nodes: %s}
    """
DEFAULT = "{default: {env_name: reward_model}}"
COLOCATED = "{enabled: true}"
APART = "{enabled: false, resources: {num_nodes: %s, gpus_per_node: %s}}"


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize(
    ("data", "nodes", "per_node", "colocated", "cluster", "expected"),
    [
        # Of several nodes it takes whole ones, of one node some GPUs.
        (DEFAULT, 1, 8, COLOCATED, (8, 3), "16"),
        (DEFAULT, 1, 1, COLOCATED, (8, 3), "16"),
        (DEFAULT, 1, 8, COLOCATED, (16, 1), "8"),
        ("{train: [{env_name: math}, {env_name: reward_model}]}", 1, 8, COLOCATED, (8, 3), "16"),
        ("{default: null, validation: {env_name: reward_model}}", 1, 8, COLOCATED, (8, 3), "16"),
        (DEFAULT, 1, 8, APART % (1, 8), (8, 4), "16"),
        (DEFAULT, 1, 8, APART % (1, 4), (12, 2), "8"),
        (DEFAULT, 1, 4, APART % ("null", 4), (16, 1), "8"),
        # It is there, and nothing uses it.
        ("{default: {env_name: math}}", 1, 8, COLOCATED, (8, 3), "24"),
        ("{default: {env_name: '${env.reward_model.name}'}}", 1, 8, COLOCATED, (8, 3), "?"),
        # Nobody knows.
        ("{default: {env_name: '${oc.env:GTP_TEST_ENVIRONMENT,math}'}}", 1, 8, COLOCATED, (8, 3), "?"),
        (DEFAULT, "null", 8, COLOCATED, (8, 3), "?"),
        (DEFAULT, 3, 8, COLOCATED, (8, 3), "?"),
        (DEFAULT, 1, 8, APART % (2, 8), (8, 3), "?"),
    ],
)
def test_a_reward_model_takes_gpus_of_its_own(
    migrate: Migrate,
    algorithm: str,
    data: str,
    nodes: int | str,
    per_node: int,
    colocated: str,
    cluster: tuple[int, int],
    expected: str,
) -> None:
    found = gpus(migrate, JUDGED % (algorithm, data, nodes, per_node, colocated, *cluster))
    assert found["policy.megatron_cfg"][0] == expected


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    # Distillation knows of no reward model, and those that generate nothing of no GPUs for that.
    [("grpo", "8"), ("ppo", "8"), ("distillation", "16"), ("sft", "24"), ("dpo", "24"), ("rm", "24"),
     ("sft: {}\n    rm", "24"), ("grpo: {}\n    sft", "?"), ("grpo: {}\n    async_rl", "?")],
)  # fmt: skip
def test_each_algorithm_reckons_in_its_own_way(migrate: Migrate, algorithm: str, expected: str) -> None:
    found = gpus(migrate, JUDGED % (algorithm, DEFAULT, 1, 8, APART % (1, 8), 8, 3))
    assert found["policy.megatron_cfg"][0] == expected


def test_off_policy_distillation_has_the_whole_cluster(migrate: Migrate) -> None:
    text = JUDGED % ("teachers: []\n    distillation", DEFAULT, 1, 8, APART % (1, 8), 8, 3)
    assert gpus(migrate, text)["policy.megatron_cfg"][0] == "24"


@pytest.mark.parametrize(
    ("cluster", "more"),
    [
        ("{gpus_per_node: 8, num_nodes: '${oc.decode:${oc.env:GTP_TEST_NODES,3}}'}", ""),
        (
            "{gpus_per_node: 8, num_nodes: 3}",
            "  generation: {colocated: {enabled: '${oc.decode:${oc.env:GTP_TEST_APART,true}}'}}\n",
        ),
    ],
)
def test_gpus_that_come_with_the_run(migrate: Migrate, cluster: str, more: str) -> None:
    ran = migrate({"a.yaml": recipe(f"grpo: {{}}\ncluster: {cluster}\n", extra=more)}, "--report", "report.json")
    assert ran.code == 0, ran.stderr
    (layout,) = json.loads(str(ran.files["report.json"]))["layouts"]
    assert (layout["gpus"], layout["gpus_per_node"], layout["copies"]) == (None, None, None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "distillation:\n      enabled: true",
            "distillation:\n      enabled: ${oc.decode:${oc.env:GTP_TEST_TEACH,true}}",
        ),
        ("{math: m,", "{math: '${oc.env:GTP_TEST_MATH,m}',"),
        ("num_nodes: 3}", "num_nodes: '${oc.decode:${oc.env:GTP_TEST_NODES,3}}'}"),
    ],
)
def test_teachers_that_come_with_the_run(migrate: Migrate, old: str, new: str) -> None:
    text = TEACHERS % (", num_nodes: 3", "", 8, 9)
    assert old in text
    ran = migrate({"a.yaml": text.replace(old, new)}, "--report", "report.json")
    assert ran.code == 0, ran.stderr
    data = json.loads(str(ran.files["report.json"]))
    (policy,) = [model for model in data["runs"][0]["models"] if model["kind"] == "mapping"]
    assert data["layouts"][policy["layout"]]["gpus"] is None


def test_gpus_of_what_nemo_rl_does_not_build(migrate: Migrate) -> None:
    """Nobody knows which GPUs somebody's own code puts it on."""
    assert gpus(migrate, recipe().replace("policy:", "judge:"))["judge.megatron_cfg"][0] == "?"


# -- what is not said ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parallel", "why"),
    [
        ("pipeline_model_parallel_size: '${oc.decode:${oc.env:GTP_TEST_PP,2}}'", "PP comes with the run"),
        ("context_parallel_size: '${oc.decode:${oc.env:GTP_TEST_CP,2}}'", "CP comes with the run"),
        ("expert_model_parallel_size: '${oc.decode:${oc.env:GTP_TEST_EP,2}}', expert_tensor_parallel_size: 1",
         "EP comes with the run"),
        ("context_parallel_size: two", "CP is not known"),
        ("pipeline_model_parallel_size: '???'", "PP comes with the run"),
        ("enabled: false", "Megatron is switched off"),
    ],
)  # fmt: skip
def test_why_there_is_no_layout(migrate: Migrate, parallel: str, why: str) -> None:
    ran = migrate({"a.yaml": recipe(parallel=parallel)}, "--report", "report.json")
    (model,) = json.loads(str(ran.files["report.json"]))["runs"][0]["models"]
    assert (model["layout"], model["no_layout"]) == (None, why)


OPEN = "policy:\n  megatron_cfg:\n    tensor_model_parallel_size: %s\n    model_overrides: {gtp_weight_remat_size: 3}\n"


@pytest.mark.parametrize("tp", ["${oc.decode:${oc.env:GTP_TEST_TP,4}}", "${tp}", "???"])
def test_a_tp_that_comes_with_the_run_has_a_place(migrate: Migrate, tp: str) -> None:
    text = "grpo: {}\ntp: ${oc.decode:${oc.env:GTP_TEST_TP,4}}\n" + CLUSTER + OPEN % repr(tp)
    ran = migrate({"a.yaml": text}, "--report", "report.json")
    assert ran.code == 0, ran.stderr
    (model,) = json.loads(str(ran.files["report.json"]))["runs"][0]["models"]
    assert model["before"]["tp"] == "open"
    assert model["from"]["tp"] == {"path": "a.yaml", "line": 6, "column": 5}
    assert model["no_layout"] == "TP comes with the run"


def test_a_tp_that_no_file_says_has_none(migrate: Migrate) -> None:
    text = "grpo: {}\n" + CLUSTER + (OPEN % "4").replace("    tensor_model_parallel_size: 4\n", "")
    ran = migrate({"a.yaml": text}, "--report", "report.json")
    (model,) = json.loads(str(ran.files["report.json"]))["runs"][0]["models"]
    assert (model["from"]["tp"], model["no_layout"]) == (None, "TP comes with the run")


# -- how many do not fit -------------------------------------------------------------------------------

FEW = "cluster: {gpus_per_node: 8, num_nodes: 1}\n"


@pytest.mark.parametrize(
    ("clusters", "said"),
    [
        ([CLUSTER, FEW], "1 run does not fit its GPUs, before and after alike."),
        ([FEW, FEW, CLUSTER], "2 runs do not fit their GPUs, before and after alike."),
        ([CLUSTER], None),
    ],
)
def test_how_many_do_not_fit_is_said_at_the_end(migrate: Migrate, clusters: list[str], said: str | None) -> None:
    files = {f"{number}.yaml": recipe(cluster) for number, cluster in enumerate(clusters)}
    ran = migrate(files, "--report", "report.md", "--report", "report.json")
    assert [line for line in ran.stderr.splitlines() if "fit" in line and "GPUs, before" in line] == (
        [said] if said else []
    )
    head = str(ran.files["report.md"]).split("<details")[0]
    assert (said in head) if said else ("fit" not in head)
    unfit = json.loads(str(ran.files["report.json"]))["counts"]["unfit_runs"]
    assert unfit == sum(cluster == FEW for cluster in clusters)


def test_one_copy_is_not_copies(migrate: Migrate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    ran = migrate({"a.yaml": recipe("cluster: {gpus_per_node: 4, num_nodes: 3}\n")})
    assert "12 GPUs, TP × GTP × CP × PP = 4 × 3 × 1 × 1, 1 copy, 3 data lanes" in ran.stderr
    ran = migrate({"a.yaml": recipe("cluster: {gpus_per_node: 1, num_nodes: 1}\n")})
    assert "1 GPU, TP" in ran.stderr
    assert "needs 12 GPUs, there is 1" in ran.stderr
