"""What the shim may do beyond its defaults: who asked last decides, else an environment variable."""

from __future__ import annotations

import os
from typing import NamedTuple

KEEP_GTP = "GTP_MIGRATE_KEEP_GTP"
ALLOW_RESHARD = "GTP_MIGRATE_ALLOW_RESHARD"


class Settings(NamedTuple):
    """The options of one install() or installed(); None leaves the choice to whoever asked before."""

    keep_gtp: bool | None = None
    allow_gtp_reshard: bool | None = None


#: Who asked for the hooks, the latest last: install(), once, and each installed() that is open.
asked: dict[object, Settings] = {}


def environment_flag(name: str) -> bool:
    """Whether the variable is set to something that means yes."""
    return os.environ.get(name, "").strip().lower() not in ("", "0", "false", "no", "off")


def keep_gtp() -> bool:
    """Rescale a loaded count to this run's parallel size instead of resetting it."""
    return _choice([settings.keep_gtp for settings in list(asked.values())], KEEP_GTP)


def allow_gtp_reshard() -> bool:
    """Read weights of another GTP topology with a warning instead of an error."""
    return _choice([settings.allow_gtp_reshard for settings in list(asked.values())], ALLOW_RESHARD)


def _choice(options: list[bool | None], variable: str) -> bool:
    chosen = [option for option in options if option is not None]
    return chosen[-1] if chosen else environment_flag(variable)
