"""The shim as Ray's worker setup hook, in a real local Ray: NeMo-RL's workers are Ray actors."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray
from bridge_machine import checkpoints
from bridge_machine.checkpoints import MODEL, save


@pytest.fixture
def local_ray():
    ray.init(
        num_cpus=1,
        object_store_memory=100_000_000,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={
            "worker_process_setup_hook": "gtp_migrate.shim.install",
            "env_vars": {"PYTHONPATH": str(Path(__file__).parents[1])},
        },
    )
    yield
    ray.shutdown()


def test_worker_setup_hook(local_ray, tmp_path):
    folder = save(
        checkpoints.RELEASED.provider(**MODEL, tensor_model_parallel_size=4, tensor_parallel_num_weight_shards=12),
        tmp_path,
    )

    @ray.remote(num_cpus=1)
    class Worker:
        def before(self):
            import sys

            from gtp_migrate.shim import bridge

            return "megatron.bridge" in sys.modules, bridge.installation is not None

        def sizes(self, folder):
            import bridge_machine

            bridge_machine.start()
            from bridge_machine import nemo_rl
            from megatron.bridge.training.model_load_save import load_model_config

            found = []
            for tp in (4, 2, 8):
                for overrides in ({}, {"layernorm_epsilon": 1e-6}):
                    config, _ = load_model_config(folder)
                    found.append(nemo_rl.set_up(config, overrides, tp=tp).gtp_weight_remat_size)
            return found

    worker = Worker.remote()
    assert ray.get(worker.before.remote()) == (False, True)
    assert ray.get(worker.sizes.remote(folder)) == [3, 3, 1, 1, 1, 1]
