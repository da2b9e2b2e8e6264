"""How long the rewriter takes, as ratios taken in one run. By hand: `python tests/benchmarks/bench_rewriter.py`.

The trees are made from `fixtures/recipes`: families of 50 recipes of which most inherit, each with sizes of its own.
The fixtures are short; each recipe gets the other sections that a real one has, so that it is as long as NeMo-RL's
own are on average, 2.4 KB. `--bare` leaves them out.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gtp_migrate.recipes.survey import survey

FIXTURES = Path(__file__).parents[2] / "fixtures" / "recipes"
TOOL = [sys.executable, "-m", "gtp_migrate.cli"]
#: Files of a family that keep their settings where there is something to migrate: 4 of 100, and a null is one more.
HOLDING = ("grpo_dense.yaml", "shapes/gtp3.yaml")

BARE_LOOP = """
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


def sections(number: int) -> bytes:
    """What a recipe holds besides: nothing that could reach a `megatron_cfg`."""
    lines = [f"# Run {number} of the nightly suite."]
    for section in ("rollouts", "rewards", "datasets", "environments", "tracking", "profiling"):
        lines.append(f"{section}:")
        lines += [f"  {section}_option_{index}: {(number + index) % 97}  # tuned" for index in range(6)]
        lines += ["  schedule:", "    - {name: linear, steps: 10}", "    - {name: constant, steps: 1000}"]
        lines += [f'  output: "results/${{policy.model_name}}/{section}-{number}"']
    return ("\n" + "\n".join(lines) + "\n").encode()


def make_tree(root: Path, recipes: int, *, holding: tuple[str, ...], bare: bool = False) -> None:
    """Writes `recipes` files; of each family only the files in `holding` keep their settings."""
    originals = {path.relative_to(FIXTURES): path.read_bytes() for path in sorted(FIXTURES.rglob("*.yaml"))}
    heirs = [path for path in originals if path.parts[0] == "llm"]
    family: dict[Path, bytes] = dict(originals)
    for index in range(50 - len(originals)):
        path = heirs[index % len(heirs)]
        family[path.with_name(f"{path.stem}-{index}.yaml")] = originals[path]
    for number in range(recipes // len(family)):
        for path, data in family.items():
            if path.as_posix() not in holding:
                data = data.replace(b"gtp_weight_remat_size", b"moe_router_group_size")
                data = data.replace(b"tensor_parallel_num_weight_shards", b"moe_router_num_groups")
            tp, size, nodes = 2 ** (number % 4), 1 + number % 6, 1 + number % 9
            data = data.replace(b"model_parallel_size: 4", b"model_parallel_size: %d" % tp)
            data = data.replace(b"remat_size: 3", b"remat_size: %d" % size)
            data = data.replace(b"num_nodes: 3", b"num_nodes: %d" % nodes)
            if not bare and not data.rstrip().endswith((b"}", b"...")):
                data = data.rstrip() + b"\n" + sections(number).replace(b"\n", b"\r\n" if b"\r\n" in data else b"\n")
            target = root / f"team-{number // 20}" / f"family-{number}" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)


def seconds(command: list[str]) -> float:
    """Wall time of one process."""
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(done.stderr.decode())
    return time.perf_counter() - start


def timed(work: Callable[[], object]) -> float:
    """Wall time of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def bare_loop(root: str) -> None:
    """`BARE_LOOP` in this process."""
    sys.argv[1:] = [root]
    exec(BARE_LOOP, {})


def ratio(rounds: int, one: Callable[[], float], other: Callable[[], float]) -> str:
    """The ratio of two measurements taken in turn: median, least and most."""
    one(), other()
    ratios = [one() / other() for _ in range(rounds)]
    return f"{statistics.median(ratios):6.2f}  ({min(ratios):.2f} to {max(ratios):.2f})"


def main() -> None:
    """Prints one line a target."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipes", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--bare", action="store_true")
    arguments = parser.parse_args()
    recipes, rounds = arguments.recipes, arguments.rounds
    root = Path(tempfile.mkdtemp(prefix="gtp-migrate-bench-"))
    try:
        make_tree(root / "nothing", recipes, holding=(), bare=arguments.bare)
        make_tree(root / "some", recipes, holding=HOLDING, bare=arguments.bare)
        make_tree(root / "tenth", recipes // 10, holding=HOLDING, bare=arguments.bare)
        nothing, some, tenth = (str(root / name) for name in ("nothing", "some", "tenth"))

        version = [seconds([*TOOL, "--version"]) for _ in range(rounds)]
        print(f"--version, seconds (target 0.3)                          {statistics.median(version):6.2f}")
        loop = [sys.executable, "-c", BARE_LOOP, nothing]
        nothing_ratio = ratio(rounds, lambda: seconds([*TOOL, nothing]), lambda: seconds(loop))
        print(f"nothing to migrate / a bare loop (target 1.5)            {nothing_ratio}")
        look = ratio(rounds, lambda: timed(lambda: survey([nothing])), lambda: timed(lambda: bare_loop(nothing)))
        print(f"the same without starting two processes                   {look}")
        trip = seconds([sys.executable, "-c", ROUND_TRIP, some])
        dry_run = [seconds([*TOOL, "--dry-run", some]) for _ in range(3)]
        print(f"ruamel.yaml's round trip / 5 % to migrate (target 10)    {trip / statistics.median(dry_run):6.2f}")
        scale = ratio(3, lambda: seconds([*TOOL, "--dry-run", some]), lambda: seconds([*TOOL, "--dry-run", tenth]))
        print(f"{recipes} recipes / {recipes // 10} recipes (linear: 10 or less)        {scale}")
        before = os.times().children_user
        seconds([*TOOL, some])
        print(f"the run itself, written and synced, processor seconds    {os.times().children_user - before:6.2f}")
        peak = subprocess.run(
            [sys.executable, "-c", PEAK, *TOOL, "--dry-run", tenth], capture_output=True, text=True, check=True
        )
        print(f"peak memory at {recipes // 10} recipes, MB                          {int(peak.stdout) / 1024:6.0f}")
        make_tree(root / "again", recipes, holding=HOLDING, bare=arguments.bare)
        peak = subprocess.run(
            [sys.executable, "-c", PEAK, *TOOL, "--dry-run", str(root / "again")],
            capture_output=True,
            text=True,
            check=True,
        )
        print(f"peak memory at {recipes} recipes, MB (target 300)            {int(peak.stdout) / 1024:6.0f}")
    finally:
        shutil.rmtree(root)


PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""

if __name__ == "__main__":
    main()
