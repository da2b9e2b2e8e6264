"""How long the rewriter takes, as ratios taken in one run. By hand: `python tests/benchmarks/bench_rewriter.py`.

The trees are copies of NeMo-RL's `examples/`, each in a folder of its own, with old settings in some of the files.
Where those recipes are not there (`../shared` beside the checkout), copies of `fixtures/recipes` stand in.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.rewriter.planting import plant

ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "corpus" / "nemo_rl" / "examples"
TOOL = [sys.executable, "-m", "gtp_migrate"]

#: As an installed package runs: compiled once, whatever this shell says of bytecode.
COMPILED = {
    **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
    "PYTHONPYCACHEPREFIX": tempfile.gettempdir() + "/gtp-migrate-bytecode",
}
BARE_SCAN = """
import os, sys
found = 0
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        if name.endswith((".yaml", ".yml")):
            with open(os.path.join(folder, name), "rb") as stream:
                found += b"gtp_weight_remat_size" in stream.read()
"""
ROUND_TRIP = """
import io, sys
from pathlib import Path
from ruamel.yaml import YAML
yaml = YAML()
for path in Path(sys.argv[1]).rglob("*.yaml"):
    yaml.dump(yaml.load(path.read_text(encoding="utf-8")), io.StringIO())
"""


class Took:
    """What a process has taken."""

    def __init__(self, command: list[str], cwd: Path) -> None:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.monotonic()
        ran = subprocess.run(command, cwd=cwd, env=COMPILED, capture_output=True, check=False)
        # 3: some of the real recipes need a person.
        assert ran.returncode in (0, 3), ran.stderr.decode()
        self.wall = time.monotonic() - started
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        #: Of the processor: what else runs on the machine has less of a say in it.
        self.cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        #: Of the largest process so far, in MB.
        self.peak = after.ru_maxrss / 1024


def best(command: list[str], cwd: Path, rounds: int) -> Took:
    """The round that took the least of the processor."""
    return min((Took(command, cwd) for _ in range(rounds)), key=lambda took: took.cpu)


def make(folder: Path, copies: int, share: float) -> int:
    """Copies of the tree, `share` of the files of each with old settings. Returns the number of recipes."""
    source = REAL if REAL.is_dir() else ROOT / "fixtures" / "recipes"
    for number in range(copies):
        copy = folder / f"team-{number}"
        shutil.copytree(source, copy, copy_function=shutil.copyfile)
        if source is not REAL:
            continue
        if share:
            plant(copy, round(len(list(copy.rglob("*.yaml"))) * share), seed=number)
    return len(list(folder.rglob("*.yaml")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"recipes: {REAL if REAL.is_dir() else 'fixtures/recipes'}; CPU seconds, least of {options.rounds}")
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        trees = {"one": (1, 57 / 339), "all": (options.copies, 0.05), "tenth": (options.copies // 10, 0.05)}
        for tree, (copies, share) in trees.items():
            make(top / tree, copies, share)
        make(top / "none", options.copies, 0.0)

        def tool(tree: str, rounds: int = options.rounds) -> Took:
            return best([*TOOL, "--dry-run", "-q", tree], top, rounds)

        def other(code: str, tree: str, rounds: int = 1) -> Took:
            return best([sys.executable, "-c", code, tree], top, rounds)

        scan, nothing = other(BARE_SCAN, "none", options.rounds), tool("none")
        print(f"nothing to do / bare scan: {nothing.cpu / scan.cpu:.2f} (at most 2; {nothing.cpu:.2f} s)")
        round_trip, one = other(ROUND_TRIP, "one", options.rounds), tool("one")
        print(f"one tree with 57 edits / its round trip: {one.cpu / round_trip.cpu:.3f} (at most 0.1; {one.cpu:.2f} s)")
        tenth, all_ = tool("tenth"), tool("all")
        print(
            f"all / a tenth: {all_.cpu / tenth.cpu:.1f} (at most 11; {all_.cpu:.2f} s, peak {all_.peak:.0f} MB of 300)"
        )
        trip = other(ROUND_TRIP, "all")
        print(f"round trip of all / with 5 % to migrate: {trip.cpu / all_.cpu:.1f} (at least 25; {trip.cpu:.1f} s)")


if __name__ == "__main__":
    main()
