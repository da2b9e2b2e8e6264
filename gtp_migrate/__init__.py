"""Move NeMo-RL recipes and Megatron-Bridge checkpoints from GTP sizes to weight shard counts.

Two halves share one rule (:mod:`gtp_migrate.shards`): the recipe rewriter behind the command
``gtp-migrate``, and the runtime shim :mod:`gtp_migrate.shim`. Importing this package imports neither.
"""

__version__ = "0.1.0"
