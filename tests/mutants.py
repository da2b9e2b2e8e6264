"""Faults put in on purpose, one at a time: for each, quick tests that must notice.

    python tests/mutants.py              all of them
    python tests/mutants.py proof mul    those whose file or name has one of these words

Each fault is a text in one file of the package, and what it is replaced with. The package and its tests are copied, the
fault is put in, and the named tests run on the copy: a fault that they pass has survived. Exit code 1 where one survives,
or where its text is not in the file any more: then it is to be written anew, or to be removed with what it was about.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Mutant(NamedTuple):
    name: str
    #: Below the package.
    file: str
    old: str
    new: str
    #: A file below tests/rewriter, and what pytest's -k chooses in it.
    tests: tuple[str, str]


MUTANTS = [
    # -- faults that all tests of the first cut passed -----------------------------------------------------------
    Mutant(
        "the proof is skipped for recipes without TP",
        "proof.py",
        "        sides = [(side(old.cfg, axis), side(new.cfg, axis)) for axis in AXES]\n",
        "        if world.supplied:\n            return\n"
        "        sides = [(side(old.cfg, axis), side(new.cfg, axis)) for axis in AXES]\n",
        ("test_proof.py", "without_tp"),
    ),
    Mutant(
        "both TPs that are tried are 1",
        "runs/runs.py",
        "(1 if key == EP else _PRIMES[index], _PRIMES[index + 1])",
        "(1, 1)",
        ("test_proof.py", "without_tp"),
    ),
    Mutant(
        "only the first of two supplied TPs counts",
        "runs/runs.py",
        "for index in (0, 1) if tried else (0,):",
        "for index in (0,):",
        ("test_proof.py", "without_tp"),
    ),
    Mutant(
        "only the first ETP alternative counts",
        "runs/runs.py",
        "= (None, _PRIMES[(2 * len(tried) + 1) % len(_PRIMES)])",
        "= (None, None)",
        ("test_examples_values.py", "no_etp_and_no_tp"),
    ),
    Mutant(
        "an unreadable recipe passes the proof",
        "proof.py",
        "found = (Failure(recipe, error.problem.place, error.problem.what, error.problem.todo),)",
        "found = ()",
        ("test_proof.py", "cannot_be_merged_any_more"),
    ),
    Mutant(
        "mul adds",
        "recipes/interpolation.py",
        "lambda a, b: a * b",
        "lambda a, b: a + b",
        ("test_launchers.py", "with_resolvers"),
    ),
    Mutant(
        "max takes the smaller",
        "recipes/interpolation.py",
        "max(a, b)",
        "min(a, b)",
        ("test_what_varies.py", "numbers_of_resolvers"),
    ),
    Mutant(
        "add subtracts",
        "recipes/interpolation.py",
        "lambda a, b: a + b",
        "lambda a, b: a - b",
        ("test_what_varies.py", "resolvers"),
    ),
    Mutant(
        "sub adds",
        "recipes/interpolation.py",
        "lambda a, b: a - b",
        "lambda a, b: a + b",
        ("test_what_varies.py", "resolvers_of_the"),
    ),
    # -- recipes -------------------------------------------------------------------------------------------------
    Mutant(
        "_override_ is not looked for",
        "recipes/merge.py",
        "return bool(marker) and marker != MISSING",
        "return False",
        ("test_examples.py", "override_at_the_top"),
    ),
    Mutant(
        "??? of a child wins",
        "recipes/merge.py",
        "elif raw(value) != MISSING or isinstance(value, (dict, list)):",
        "else:",
        ("test_merging.py", "missing_in_a_child"),
    ),
    Mutant(
        "a mapping over a reference to one replaces it",
        "recipes/merge.py",
        "            if isinstance(behind, (dict, list)):\n                existing",
        "            if False:\n                existing",
        ("test_merging.py", "test_random_recipes"),
    ),
    Mutant(
        "a mapping over a list is taken",
        "recipes/merge.py",
        'raise MergeError(f"{dotted(here)} is a mapping',
        'target[key] = value\n            continue\n            raise MergeError(f"{dotted(here)} is a mapping',
        ("test_merging.py", "over_a_list"),
    ),
    Mutant(
        "a reference is relative to the wrong mapping",
        "recipes/interpolation.py",
        "return path[: len(path) - self.dots] + self.keys",
        "return path[: len(path) - self.dots + 1] + self.keys",
        ("test_launchers.py", "with_resolvers"),
    ),
    Mutant(
        "nothing can reach the environment",
        "runs/runs.py",
        "isinstance(node, Leaf) and node.is_interpolation and not parse(node.value).resolvers <= pure",
        "False",
        ("test_what_varies.py", "follow_the_environment or from_the_environment"),
    ),
    Mutant(
        "mentions are not kept",
        "recipes/reader.py",
        "self.mentions.append(",
        "str(",
        ("test_examples_text.py", "no_rule_reaches_is_named"),
    ),
    # -- runs ----------------------------------------------------------------------------------------------------
    Mutant(
        "dpo registers resolvers",
        "runs/nemo_rl.py",
        '"dpo": False',
        '"dpo": True',
        ("test_launchers.py", "launchers_without"),
    ),
    Mutant(
        "sft registers none", "runs/nemo_rl.py", '"sft": True', '"sft": False', ("test_launchers.py", "with_resolvers")
    ),
    Mutant(
        "one launcher with resolvers is enough",
        "runs/runs.py",
        "if all(self.launchers.registers(algorithm) for algorithm in which):",
        "if any(self.launchers.registers(algorithm) for algorithm in which):",
        ("test_launchers.py", "two_launchers"),
    ),
    Mutant(
        "teachers are made one way only",
        "runs/runs.py",
        "makings = (True, False) if",
        "makings = (True,) if",
        ("test_proof.py", "ways_of_making_a_teacher"),
    ),
    Mutant(
        "merge lists are read one way only",
        "runs/runs.py",
        "readings = (False, True) if",
        "readings = (False,) if",
        ("test_proof.py", "readings_of_a_merge_list"),
    ),
    Mutant(
        "a teacher's overrides lose to its loose keys",
        "runs/models.py",
        "        cfg.update({key: value for key, value in merged.items() if key not in _TEACHER_KEYS})\n",
        "",
        ("test_models_of_a_run.py", "test_teachers"),
    ),
    Mutant(
        "megatron_cfg_overrides are not looked at",
        "runs/models.py",
        "cfg.update(more if isinstance(more, dict) else {})",
        "pass",
        ("test_models_of_a_run.py", "test_teachers"),
    ),
    Mutant(
        "a teacher without a TP has the policy's",
        "runs/models.py",
        "cfg.update({key: merged.get(key, size) for key, size in _TEACHER_SIZES.items()})",
        "cfg.update({key: merged[key] for key in _TEACHER_SIZES if key in merged})",
        ("test_models_of_a_run.py", "test_teachers or layout_of_a_teacher"),
    ),
    Mutant(
        "teachers are built twice for one checkpoint",
        "runs/models.py",
        "        seen.add(checkpoint)\n",
        "",
        ("test_models_of_a_run.py", "two_aliases"),
    ),
    Mutant(
        "every algorithm has teachers",
        "runs/models.py",
        '_TEACH = frozenset({"grpo"})',
        "_TEACH = frozenset(ALGORITHMS)",
        ("test_models_of_a_run.py", "no_such_teachers"),
    ),
    Mutant(
        "generation inherits overrides key by key",
        "runs/models.py",
        "merged = {**policy, **(own if isinstance(own, dict) else {})}",
        "merged = {**(own if isinstance(own, dict) else {}), **policy}",
        ("test_models_of_a_run.py", "generation_of_its_own"),
    ),
    Mutant(
        "colocated generation is no copy",
        "runs/models.py",
        "    if differ:\n",
        "    if False:\n",
        ("test_models_of_a_run.py", "copy_of_another_tp"),
    ),
    Mutant(
        "every NeMo-RL pins copies",
        "plan/stock.py",
        "return model.kind is Kind.COPY and pins_copies",
        "return model.kind is Kind.COPY",
        ("test_models_of_a_run.py", "copy_of_another_tp"),
    ),
    Mutant(
        "EP does not make ETP 1",
        "runs/topology.py",
        "return 1 if ep > 1 else expert_parallel_size(",
        "return 2 if ep > 1 else expert_parallel_size(",
        ("test_examples_values.py", "test_etp"),
    ),
    # -- plan ----------------------------------------------------------------------------------------------------
    Mutant(
        "the number that most need, not the one beside",
        "plan/spelling.py",
        "        if is_own and need is not None:\n            return need\n",
        "",
        ("test_launchers.py", "two_heirs_of_another_tp"),
    ),
    Mutant(
        "a number where it follows the environment",
        "plan/numbers.py",
        "literal = None if number is None or is_open else str(number)",
        "literal = None if number is None else str(number)",
        ("test_examples.py", "literal_with_a_base_without_tp"),
    ),
    Mutant(
        "a number beside a TP that others change",
        "plan/numbers.py",
        "is_right = not is_open and len(set(fixed.values())) == 1",
        "is_right = not is_open",
        ("test_launchers.py", "with_resolvers"),
    ),
    Mutant(
        "nobody asks for the resolvers",
        "plan/numbers.py",
        'if not run.has_resolvers or "mul" not in run.resolvers:',
        "if False:",
        ("test_launchers.py", "refused_without"),
    ),
    Mutant(
        "what the proof could not resolve is written again",
        "plan/numbers.py",
        "if NoInterpolation(self.setting.entry.key) in self.needs:",
        "if False:",
        ("test_shelves.py", "test_a_shelf"),
    ),
    Mutant(
        "a later count does not overrule",
        "plan/conflicts.py",
        "or (new is counts and is_later)",
        "",
        ("test_examples_values.py", "done_already"),
    ),
    Mutant(
        "a null over a size means nothing",
        "plan/conflicts.py",
        "agree = not is_later",
        "agree = True",
        ("test_examples_values.py", "new_null_over_an_old_size"),
    ),
    Mutant(
        "old keys of no model are passed over",
        "plan/planner.py",
        "            raise refused\n        if self.target",
        "            return\n        if self.target",
        ("test_examples_text.py", "no_rule_reaches_is_named"),
    ),
    Mutant(
        "an own mapping repeats nothing",
        "plan/own.py",
        "for key, value in overrides.items() if key not in SETTINGS}",
        "for key, value in overrides.items() if key in SETTINGS}",
        ("test_models_of_a_run.py", "generation_of_its_own"),
    ),
    Mutant(
        "one dot too many in form C",
        "plan/spelling.py",
        'return "${" + (dots[1:] if len(dots) > 1 else',
        'return "${" + (dots if len(dots) > 1 else',
        ("test_examples_target.py", "only_the_overrides"),
    ),
    # -- proof, settle, draft, migrate -----------------------------------------------------------------------------
    Mutant(
        "only the first world is proven",
        "proof.py",
        "for world in self.before.run(self.recipe).worlds:",
        "for world in self.before.run(self.recipe).worlds[:1]:",
        ("test_proof.py", "without_tp or compared"),
    ),
    Mutant(
        "sizes are not compared",
        "proof.py",
        "        if was != would_be:\n",
        "        if False:\n",
        ("test_proof.py", "another_number"),
    ),
    Mutant(
        "models made in Python are not proven",
        "proof.py",
        "            if not is_pinned(one, self.pins_copies):\n",
        '            if one.kind.value == "mapping":\n',
        ("test_proof.py", "no_mapping_shows or own_number_is_proven"),
    ),
    Mutant(
        "an old key may stay",
        "proof.py",
        "            if other.size is ABSENT:\n",
        "            if True:\n",
        ("test_proof.py", "topologies_alone_tell"),
    ),
    Mutant(
        "the merged recipe is not compared",
        "proof.py",
        "            if not _is_setting(path, one, other):\n",
        "            if False:\n",
        ("test_proof.py", "differs_in_nothing_else"),
    ),
    Mutant(
        "what no longer resolves is not told",
        "proof.py",
        "            yield self._unresolved(path, leaf, after.why)\n",
        "            return\n",
        ("test_shelves.py", "refers_to"),
    ),
    Mutant(
        "comments may go",
        "draft.py",
        "and sorted(layer.comments) == sorted(new.comments)",
        "",
        ("test_proof.py", "touches_something_else"),
    ),
    Mutant(
        "an excluded recipe blocks",
        "settle.py",
        "        if not is_set_aside:\n            bad.update(paths)\n",
        "        bad.update(paths)\n",
        ("test_examples.py", "excluded_child"),
    ),
    Mutant(
        "groups do not hang together",
        "order.py",
        "return {path for path in changed if groups.find(path) not in bad_groups}, groups",
        "return changed - bad, groups",
        ("test_proof.py", "heirs_of_a_bad_file"),
    ),
    Mutant(
        "earlier layers are written first",
        "order.py",
        "for one, other in itertools.pairwise(layers):\n            later[other].add(one)",
        "for one, other in itertools.pairwise(layers):\n            later[one].add(other)",
        ("test_kill.py", "overrides and literal"),
    ),
    Mutant(
        "mentions are not said",
        "migrate.py",
        "    mention(outcome, tree)\n",
        "",
        ("test_examples_text.py", "mentions_are_one_line"),
    ),
    Mutant(
        "the shim's pin is not thought of",
        "migrate.py",
        "pins_copies = options.runtime_shim or ",
        "pins_copies = ",
        ("test_models_of_a_run.py", "that_the_runs_pin"),
    ),
    Mutant(
        "parents' checkouts are not looked at",
        "migrate.py",
        "for layer in (recipe, *tree.orders.get(recipe, ()))}",
        "for layer in (recipe,)}",
        ("test_target.py", "of_a_parent"),
    ),
    # -- heirs that cannot be read here -------------------------------------------------------------------------
    Mutant(
        "a parent by a container's path is passed over",
        "recipes/tree.py",
        "if parent not in self.absolute:",
        "if True:",
        ("test_outside.py", "path_of_a_container"),
    ),
    Mutant(
        "what holds a file up is not said where it was not given",
        "settle.py",
        "if not stock.tree.files[recipe].given and not latest",
        "if False and not latest",
        ("test_outside.py", "lost_a_parent"),
    ),
    Mutant(
        "a folder of --map is taken from beside the recipe",
        "cli.py",
        "os.path.abspath(os.path.expanduser(end))",
        "end",
        ("test_outside.py", "where_the_command_runs"),
    ),
    Mutant(
        "a TP that nobody puts in is referred to",
        "proof.py",
        "                return target\n        return None\n",
        "                return None\n        return None\n",
        ("test_what_varies.py", "nobody_puts_in"),
    ),
    Mutant(
        "what no launcher starts has to have a TP",
        "runs/runs.py",
        "is_started = bool(algorithms(self.tree.merged(recipe).root)) or recipe not in self._ingredients()",
        "is_started = True",
        ("test_launchers.py", "ingredient_without_a_tp"),
    ),
    Mutant(
        "overrides that keep the policy's off go",
        "draft.py",
        "failure.is_dangling or (failure.model is not None and failure.axis is None)",
        "failure.is_dangling",
        ("test_models_of_a_run.py", "keep_those_of_the_policy_off"),
    ),
    # -- a run that was stopped --------------------------------------------------------------------------------
    Mutant(
        "what is to be written is not put down",
        "write_all.py",
        "with put_down(group) if len(group) > 1 else contextlib.nullcontext():",
        "with contextlib.nullcontext():",
        ("test_kill.py", "test_stopped_after_each_write"),
    ),
    Mutant(
        "what is put down need not be on the disk",
        "unfinished.py",
        "                os.fsync(handle)\n",
        "",
        ("test_unfinished.py", "on_the_disk"),
    ),
    Mutant(
        "it is finished where nothing was begun",
        "unfinished.py",
        "return left if is_begun else []",
        "return left",
        ("test_unfinished.py", "put_back"),
    ),
    Mutant(
        "it is finished over what has changed since",
        "unfinished.py",
        "if digest not in entry.passed:",
        "if False:",
        ("test_unfinished.py", "changed_since"),
    ),
    Mutant(
        "files that are not given are written too",
        "unfinished.py",
        "if each.path not in given]",
        "if False]",
        ("test_unfinished.py", "not_given or elsewhere"),
    ),
    Mutant(
        "half a tree is worked out",
        "cli.py",
        "    if stopped:\n",
        "    if False:\n",
        ("test_unfinished.py", "nothing_may_be_written"),
    ),
    Mutant(
        "half a tree around the given files is worked out",
        "migrate.py",
        "if stopped or not tree.recipes:",
        "if not tree.recipes:",
        ("test_unfinished.py", "beside_others"),
    ),
]


def chosen(words: list[str]) -> list[Mutant]:
    return [mutant for mutant in MUTANTS if not words or any(word in f"{mutant.file} {mutant.name}" for word in words)]


def outcome(mutant: Mutant) -> str:
    """ "caught", or what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("gtp_migrate", "tests", "fixtures"):
            shutil.copytree(ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copyfile(ROOT / "pyproject.toml", Path(folder, "pyproject.toml"))
        path = Path(folder, "gtp_migrate", mutant.file)
        text = path.read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            return f"its text is {text.count(mutant.old)} times in {mutant.file}"
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        file, expression = mutant.tests
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            f"tests/rewriter/{file}",
            "-k",
            expression,
        ]
        ran = subprocess.run(
            [*command, "-m", "not slow"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
    if ran.returncode == 1:
        return "caught"
    return "SURVIVED" if ran.returncode == 0 else f"pytest exits {ran.returncode}: {ran.stdout[-500:]}"


def main() -> int:
    mutants = chosen(sys.argv[1:])
    bad = 0
    for mutant in mutants:
        found = outcome(mutant)
        bad += found != "caught"
        print(f"{mutant.file}: {mutant.name}: {found}", flush=True)
    print(f"{len(mutants) - bad} of {len(mutants)} caught")
    return 1 if bad or not mutants else 0


if __name__ == "__main__":
    sys.exit(main())
