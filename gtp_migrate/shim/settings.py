"""What the shim may do beyond its defaults: an argument of install() first, else an environment variable."""

from __future__ import annotations

import os
from typing import NamedTuple

KEEP_GTP = "GTP_MIGRATE_KEEP_GTP"
ALLOW_RESHARD = "GTP_MIGRATE_ALLOW_RESHARD"


class Settings(NamedTuple):
    """None leaves the choice to the environment, read at each decision."""

    keep_gtp: bool | None = None
    allow_gtp_reshard: bool | None = None


#: Replaced as a whole by install(), uninstall() and installed().
current = Settings()


def environment_flag(name: str) -> bool:
    """Whether the variable is set to something that means yes."""
    return os.environ.get(name, "").strip().lower() not in ("", "0", "false", "no", "off")


def keep_gtp() -> bool:
    """Rescale a loaded count to this run's parallel size instead of resetting it."""
    return environment_flag(KEEP_GTP) if current.keep_gtp is None else current.keep_gtp


def allow_gtp_reshard() -> bool:
    """Read weights of another GTP topology with a warning instead of an error."""
    return environment_flag(ALLOW_RESHARD) if current.allow_gtp_reshard is None else current.allow_gtp_reshard
