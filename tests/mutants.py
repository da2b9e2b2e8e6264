"""Faults put in on purpose, one at a time: for each, tests that must notice.

    python tests/mutants.py              all of them
    python tests/mutants.py proof mul    those whose name has one of these words

Each fault is a piece of text in one file of the package and what it is replaced with. The package is copied beside the
tests, the fault put in, and the named tests are run on the copy: a fault that they pass has survived. Exit code 1 where
one survives, or where its text is not in the file any more: then the fault is to be written anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
REWRITER = "tests/rewriter"


class Mutant(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    #: Arguments of pytest.
    tests: str


MUTANTS = [
    # -- found by people in the first cut: all tests passed ----------------------------------------------------
    Mutant(
        "the proof is skipped for recipes without TP",
        "proof.py",
        "        sides = [(side(old.cfg, axis), side(new.cfg, axis)) for axis in AXES]\n",
        "        if TP not in old.cfg or world.supplied:\n            return\n"
        "        sides = [(side(old.cfg, axis), side(new.cfg, axis)) for axis in AXES]\n",
        f"{REWRITER}/test_proof.py -k without_tp",
    ),
    Mutant(
        "both TPs that are tried are 1",
        "runs/runs.py",
        "_PRIMES = (2, 3, 5, 7,",
        "_PRIMES = (1, 1, 5, 7,",
        f"{REWRITER}/test_examples.py {REWRITER}/test_launchers.py -k no_tp_for_literal_or_refusals",
    ),
    Mutant(
        "only the first of the worlds counts",
        "proof.py",
        "for world in self.before.run(self.recipe).worlds:",
        "for world in self.before.run(self.recipe).worlds[:1]:",
        f"{REWRITER}/test_proof.py -k worlds",
    ),
    Mutant(
        "an unreadable recipe passes the proof",
        "proof.py",
        "                found = (Failure(recipe, error.problem.place, error.problem.what, error.problem.todo),)\n",
        "                found = ()\n",
        f"{REWRITER}/test_proof.py -k unreadable",
    ),
    Mutant(
        "mul adds",
        "recipes/interpolation.py",
        '"mul": lambda a, b: a * b',
        '"mul": lambda a, b: a + b',
        f"{REWRITER}/test_launchers.py -k test_launchers_with_resolvers",
    ),
    Mutant(
        "max takes the smaller",
        "recipes/interpolation.py",
        '"max": lambda a, b: max(a, b)',
        '"max": lambda a, b: min(a, b)',
        f"{REWRITER}/test_what_varies.py {REWRITER}/test_examples.py -k all_resolvers_or_tp_from_elsewhere",
    ),
]
