"""Reports are what their schemas say."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gtp_migrate.outcome import Outcome
from gtp_migrate.report.data import VERSION, report

from .conftest import make_reports, sarif_schema

OURS: dict[str, Any] = json.loads((resources.files("gtp_migrate.report") / "report.schema.json").read_text())

#: Runs of which the reports differ in kind.
TREES: dict[str, dict[str, Any]] = {
    "nothing to do": {"a.yaml": "policy: {megatron_cfg: {tensor_model_parallel_size: 4}}\n"},
    "no recipe at all": {"a.yaml": "x: 1\n"},
    "open sizes": {
        "a.yaml": """
            grpo: {}
            policy:
              megatron_cfg: {model_overrides: {gtp_weight_remat_size: 3}}
        """
    },
    "off and unknown": {
        "a.yaml": """
            policy:
              megatron_cfg:
                enabled: false
                tensor_model_parallel_size: "4"
                model_overrides: {gtp_weight_remat_size: 3}
        """
    },
    "a line that is gone": {
        "a.yaml": """
            policy:
              megatron_cfg:
                tensor_model_parallel_size: 4
                model_overrides:
                  gtp_weight_remat_size: 3
                  tensor_parallel_num_weight_shards: 12
        """
    },
    "does not fit": {
        "a.yaml": """
            policy:
              megatron_cfg:
                tensor_model_parallel_size: 4
                model_overrides: {gtp_weight_remat_size: 3}
            cluster: {gpus_per_node: 8, num_nodes: 1}
        """
    },
    "teachers and generation": {
        "a.yaml": """
            grpo: {}
            policy:
              megatron_cfg:
                tensor_model_parallel_size: 4
                model_overrides: {gtp_weight_remat_size: 3}
              generation:
                backend: megatron
                colocated: {enabled: false, resources: {num_nodes: 1, gpus_per_node: 8}}
                mcore_generation_config: {tensor_model_parallel_size: 2}
            on_policy_distillation:
              enabled: true
              non_colocated_teachers: {enabled: true, default_teacher_cfg: {tensor_model_parallel_size: 2}}
              teacher_model_by_agent_name: {math: m, code: c}
            cluster: {gpus_per_node: 8, num_nodes: 4}
        """
    },
}


def check(folder: Path, files: dict[str, Any], *args: str) -> dict[str, Any]:
    """The JSON report; it and the SARIF log are valid."""
    ran = make_reports(folder, files, *args)
    log = json.loads(ran.files["report/report.sarif"])
    jsonschema.Draft7Validator(sarif_schema()).validate(log)
    data: dict[str, Any] = json.loads(ran.files["report/report.json"])
    jsonschema.Draft202012Validator(OURS).validate(data)
    return data


def test_our_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(OURS)


def test_our_schema_says_all() -> None:
    """A field that is not described is an error: so are a new one, and a version of another major number."""
    validator = jsonschema.Draft202012Validator(OURS)
    data = report(Outcome())
    validator.validate(data)
    for more in ({"surprise": 1}, {"schema_version": "2.0"}):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate({**data, **more})


def test_version() -> None:
    assert VERSION.startswith("1.")


@pytest.mark.parametrize("mode", [[], ["--dry-run"], ["--check"]], ids=["write", "dry-run", "check"])
@pytest.mark.parametrize("tree", TREES)
def test_valid(tmp_path: Path, tree: str, mode: list[str]) -> None:
    data = check(tmp_path, TREES[tree], *mode)
    assert data["mode"] == (mode or ["--write"])[0].removeprefix("--")


def test_fixtures(fixture_reports: Path) -> None:
    data = json.loads((fixture_reports / "report.json").read_text())
    jsonschema.Draft202012Validator(OURS).validate(data)
    jsonschema.Draft7Validator(sarif_schema()).validate(json.loads((fixture_reports / "report.sarif").read_text()))


def test_models_of_all_kinds(tmp_path: Path) -> None:
    data = check(tmp_path, TREES["teachers and generation"], "--dry-run")
    [run] = data["runs"]
    assert [model["name"] for model in run["models"]] == [
        "policy.megatron_cfg",
        "teacher math",
        "teacher code",
        "generation",
    ]
    policy, *_, generation = run["models"]
    # Of 4 nodes, generation and each teacher take one.
    assert data["layouts"][policy["layout"]]["gpus"] == 8
    assert data["layouts"][generation["layout"]]["gpus"] == 8


def test_open_sizes(tmp_path: Path) -> None:
    """A TP that comes with the run is not shown as a number that nobody has written."""
    [run] = check(tmp_path, TREES["open sizes"], "--dry-run")["runs"]
    [model] = run["models"]
    assert model["before"] == model["after"] == {"tp": "open", "etp": "open", "gtp": 3, "expert_gtp": 1}
    assert model["layout"] is None


def test_sarif_of_a_check(tmp_path: Path) -> None:
    """What is left to migrate is a result where nothing is written, and none where it is."""
    files = TREES["does not fit"]
    for mode, rules in (("--check", ["left-to-migrate"]), ("--dry-run", ["left-to-migrate"])):
        ran = make_reports(tmp_path, files, mode)
        assert [each["ruleId"] for each in json.loads(ran.files["report/report.sarif"])["runs"][0]["results"]] == rules
    ran = make_reports(tmp_path, files)
    assert json.loads(ran.files["report/report.sarif"])["runs"][0]["results"] == []
