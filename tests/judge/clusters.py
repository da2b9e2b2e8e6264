"""What NeMo-RL's own lines make of a cluster: run with its source on PYTHONPATH, the recipes as JSON on stdin.

No algorithm can be set up without GPUs, but the part of each `setup` that shares out the nodes can be run by itself,
with a `RayVirtualCluster` that only writes down what it is asked for.
"""

from __future__ import annotations

import ast
import builtins
import json
import sys
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import nemo_rl
from nemo_rl.algorithms import opd
from nemo_rl.data.datasets.utils import extract_necessary_env_names

ALGORITHMS = Path(nemo_rl.__path__[0]) / "algorithms"
SINGLE_CONTROLLER = "single_controller_utils/setup"

asked: dict[str, list[int]] = {}


class Cluster:
    """In place of `RayVirtualCluster`."""

    def __init__(self, *, name: str, bundle_ct_per_node_list: list[int], **_: Any) -> None:
        assert len(set(bundle_ct_per_node_list)) == 1
        asked[name] = [len(bundle_ct_per_node_list), bundle_ct_per_node_list[0]]

    def get_placement_groups(self) -> None:
        """Nothing to place."""


class Names(dict[str, Any]):
    """What the lines refer to: what matters is given, all else may be anything."""

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            raise KeyError(name)
        return MagicMock()


def _names(statement: ast.stmt) -> set[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def lines(algorithm: str) -> CodeType:
    """From `colocated_inference = …` to the `if colocated_inference:` that makes the clusters; of an algorithm that
    generates nothing, from `num_nodes = …`, where it has that, to `cluster = …`; of the SingleController, a function.
    """
    tree = ast.parse((ALGORITHMS / f"{algorithm}.py").read_text())
    name = "_build_clusters" if algorithm == SINGLE_CONTROLLER else "setup"
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if algorithm == SINGLE_CONTROLLER:
        # What it says of its types would have to be imported.
        function.returns = None
        for argument in function.args.args:
            argument.annotation = None
        body: list[ast.stmt] = [function, *ast.parse(f"{name}(master_config)").body]
    else:
        last = next(
            number
            for number, node in enumerate(function.body)
            if (isinstance(node, ast.If) and ast.unparse(node.test) == "colocated_inference")
            or "cluster" in _names(node)
        )
        first = next((n for n in range(last) if _names(function.body[n]) & {"colocated_inference", "num_nodes"}), last)
        body = function.body[first : last + 1]
    return compile(ast.fix_missing_locations(ast.Module(body, [])), str(ALGORITHMS / algorithm), "exec")


def clusters(code: CodeType, recipe: dict[str, Any]) -> dict[str, list[int]] | None:
    """Nodes and GPUs per node of each cluster, by its name; None where NeMo-RL raises."""
    asked.clear()
    config = SimpleNamespace(cluster=recipe["cluster"], policy=recipe["policy"], on_policy_distillation=None)
    if "on_policy_distillation" in recipe:
        config.on_policy_distillation = opd.OnPolicyDistillationConfig(**recipe["on_policy_distillation"])
    names = Names(
        master_config=config,
        cluster_config=recipe["cluster"],
        policy_config=recipe["policy"],
        generation_config=recipe["policy"]["generation"],
        data_config=recipe["data"],
        env_configs=recipe["env"],
        teachers=[],
        RayVirtualCluster=Cluster,
        opd_module=opd,
        extract_necessary_env_names=extract_necessary_env_names,
        prepare_segment_topology=lambda *_, **__: (None, [], {}),
        should_use_nemo_gym=lambda _: False,
    )
    try:
        exec(code, {"RayVirtualCluster": Cluster}, names)
        if names.get("enable_opd_teachers"):
            opd.reserve_teacher_clusters(config, segment_size=None, teacher_segment_topology=None)
    except Exception:
        return None
    return dict(asked)


def main() -> None:
    """Answers with a line of JSON."""
    opd.RayVirtualCluster = Cluster
    print_ = print
    builtins.print = lambda *_, **__: None
    codes: dict[str, CodeType] = {}
    answers = []
    for algorithm, recipe in json.load(sys.stdin):
        codes.setdefault(algorithm, codes.get(algorithm) or lines(algorithm))
        answers.append(clusters(codes[algorithm], recipe))
    print_("\n" + json.dumps(answers))


if __name__ == "__main__":
    main()
