"""A checkpoint's shard counts never outlive its parallel sizes: hooks into Megatron-Bridge, Core and NeMo-RL.

With :func:`install`, a side (dense by TP, expert by ETP) whose parallel size differs at ``finalize()`` from the saved
one has its loaded count reset; what the run sets itself after loading wins. Where weights are read, a load that is
known to give scrambled weights raises :class:`GTPReshardError`. Importing this imports neither torch nor Bridge.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gtp_migrate.shim.hooks import INSTALLATION
from gtp_migrate.shim.install import asked, said
from gtp_migrate.shim.reset import reset_weight_shards
from gtp_migrate.shim.weights import GTPReshardError

__all__ = ["GTPReshardError", "install", "installed", "reset_weight_shards", "uninstall"]


def install(*, allow_gtp_reshard: bool | None = None) -> None:
    """Put the hooks on, in this process, before or after ``megatron.bridge`` is imported.

    Idempotent and thread-safe. Every process that loads needs it; the command ``gtp-shim`` sees to that.

    Args:
        allow_gtp_reshard: log a warning instead of raising :class:`GTPReshardError`. None: as an earlier call
            said, else the environment variable GTP_MIGRATE_ALLOW_RESHARD decides.
    """
    with INSTALLATION.lock:
        before = asked.pop(install, None)
        asked[install] = before if allow_gtp_reshard is None else allow_gtp_reshard
    INSTALLATION.put_on()


def uninstall() -> None:
    """Take every hook off: the hooked functions and classes are the very same objects as before.

    A config loaded meanwhile and not finalized yet has its counts as Bridge loaded them.
    """
    with INSTALLATION.lock:
        asked.clear()
        said.clear()
        INSTALLATION.take_off()


@contextmanager
def installed(*, allow_gtp_reshard: bool | None = None) -> Iterator[None]:
    """The hooks on for one load: from reading the config to its ``finalize()``, or to the loaded model.

    Leaves them on where they were on before, with the option as it was. Argument as in :func:`install`.
    """
    asking = object()
    with INSTALLATION.lock:
        asked[asking] = allow_gtp_reshard
    try:
        INSTALLATION.put_on()
        yield
    finally:
        with INSTALLATION.lock:
            asked.pop(asking, None)
            if not asked:
                INSTALLATION.take_off()
