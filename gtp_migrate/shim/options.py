"""The shim's one option, from whoever asked last for the hooks, else from the environment; and its warnings."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

ALLOW_RESHARD = "GTP_MIGRATE_ALLOW_RESHARD"

logger = logging.getLogger("gtp_migrate.shim")
#: Who asked for the hooks, and whether they allow a reshard; None leaves it to whoever asked before.
asked: dict[object, bool | None] = {}
said: set[str] = set()


def allow_gtp_reshard() -> bool:
    """Whether weights known to come out in the wrong order are read all the same, with a warning."""
    opinions = [opinion for opinion in list(asked.values()) if opinion is not None]
    flag = os.environ.get(ALLOW_RESHARD, "").strip().lower() not in ("", "0", "false", "no", "off")
    return opinions[-1] if opinions else flag


def warn_once(message: str) -> None:
    """Log ``message`` as a WARNING, which plain Python and NeMo-RL show: once a process, on rank 0 only."""
    distributed: Any = getattr(sys.modules.get("torch"), "distributed", None)
    try:
        up = distributed is not None and distributed.is_available() and distributed.is_initialized()
        rank = distributed.get_rank() if up else int(os.environ.get("RANK") or 0)
    except Exception:  # torch half imported in another thread: better said twice than not at all
        rank = 0
    if rank == 0 and message not in said:
        said.add(message)
        logger.warning(message)
