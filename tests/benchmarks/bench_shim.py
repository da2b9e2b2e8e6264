"""What the shim costs: load_model_config with and without its hooks, importing it, and starting under gtp-shim.

    python tests/benchmarks/bench_shim.py [ROUNDS]

Loads with and without hooks take turns within one run, and what counts is the processor time of this thread,
so that a busy machine slows both alike. Bridge is the real one,
with the tests' stand-in for transformer_engine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def import_time(module: str) -> float:
    """Seconds that importing ``module`` takes in a fresh interpreter, without the interpreter's start."""
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def start_time(path: str) -> float:
    """Seconds that a Python takes from start to end that does nothing, with ``path`` as PYTHONPATH."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", ""], check=True, env={**os.environ, "PYTHONPATH": path})
    return time.perf_counter() - start


def main(rounds: int) -> None:
    from gtp_migrate.shim.run import SITE

    pairs = [(start_time(""), start_time(SITE)) for _ in range(31)]
    print(
        f"a Python that imports nothing: {min(a for a, _ in pairs) * 1e3:.1f} ms, under gtp-shim "
        f"{min(b for _, b in pairs) * 1e3:.1f} ms at best; "
        f"{statistics.median(b - a for a, b in pairs) * 1e3:+.1f} ms median difference of 31 pairs"
    )
    imports = [import_time("gtp_migrate.shim") for _ in range(11)]
    print(
        f"import gtp_migrate.shim: {min(imports) * 1e3:.1f} ms at best, "
        f"{statistics.median(imports) * 1e3:.1f} ms median of 11"
    )

    warnings.simplefilter("ignore")
    import bridge_machine

    bridge_machine.start()
    logging.disable(logging.CRITICAL)
    from bridge_machine import checkpoints
    from megatron.bridge.training.model_load_save import load_model_config
    from megatron.bridge.training.utils.checkpoint_utils import read_run_config

    from gtp_migrate import shim

    provider = checkpoints.RELEASED.provider(
        **checkpoints.MODEL, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12
    )
    with tempfile.TemporaryDirectory() as folder:
        checkpoints.save(provider, Path(folder))

        def load(fresh: bool) -> float:
            if fresh:
                read_run_config.cache_clear()
            start = time.thread_time()
            load_model_config(folder)
            return time.thread_time() - start

        for fresh, what in ((True, "file read"), (False, "file in Bridge's cache")):
            plain, hooked = [], []
            for number in range(rounds + 1):
                for on in (False, True) if number % 2 else (True, False):
                    with shim.installed() if on else contextlib.nullcontext():
                        load(fresh)  # Python caches attributes of classes; putting hooks on or off empties that
                        took = min(load(fresh) for _ in range(5))
                    if number:  # the first round warms up
                        (hooked if on else plain).append(took)
            ratios = [b / a for a, b in zip(plain, hooked, strict=True)]
            print(
                f"load_model_config, {what}: {statistics.median(plain) * 1e3:.1f} ms without hooks, "
                f"ratio with / without {statistics.median(ratios):.4f} (median of {rounds} pairs of the best of 5), "
                f"{min(hooked) / min(plain):.4f} (best of each)"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
