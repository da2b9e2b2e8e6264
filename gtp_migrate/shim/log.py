"""The shim's logger, and which rank speaks."""

from __future__ import annotations

import logging
import sys

logger = logging.getLogger("gtp_migrate.shim")


def speaks() -> bool:
    """Whether this process is rank 0, or there are no ranks: torch absent, or torch.distributed not up."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return True
        return bool(distributed.get_rank() == 0)
    except Exception:  # torch half imported in another thread: better said twice than not at all
        return True


def say(level: int, message: str) -> None:
    """Log ``message`` on rank 0 only."""
    if speaks():
        logger.log(level, message)
