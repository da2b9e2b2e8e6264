"""A checkpoint's shard counts never outlive its parallel sizes: hooks into Megatron-Bridge.

A model config that Bridge loads from a checkpoint carries the shard counts of the run that saved it. Loaded
at another TP they fail (12 shards, TP 8) or silently turn GTP on or up (12 shards: GTP 6 at TP 2, GTP 12 at
TP 1). With :func:`install`, a side (dense by TP, expert by ETP) whose parallel size differs at ``finalize()``
from the saved one has its loaded count reset; where the size is the same, the checkpoint's GTP stays, also
where an old checkpoint recorded only a GTP size. What the run sets itself after loading wins, null too.

Where weights are read and Bridge does not check it itself, a GTP-sharded checkpoint read into another
topology raises :class:`GTPReshardError`.

Importing this package imports neither torch nor Bridge, and :func:`install` before Bridge is imported leaves
it unimported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any

from gtp_migrate.shim import settings
from gtp_migrate.shim.errors import GTPReshardError

if TYPE_CHECKING:
    from gtp_migrate.shim.reset import reset_weight_shards
    from gtp_migrate.shim.topology import SavedTopology

__all__ = ["GTPReshardError", "SavedTopology", "install", "installed", "reset_weight_shards", "uninstall"]

_lock = RLock()
_INSTALL = "install()"


def __getattr__(name: str) -> Any:
    """The public names that need dataclasses and logging, which take three times as long to import as the rest."""
    if name == "reset_weight_shards":
        from gtp_migrate.shim.reset import reset_weight_shards

        return reset_weight_shards
    if name == "SavedTopology":
        from gtp_migrate.shim.topology import SavedTopology

        return SavedTopology
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def install(*, keep_gtp: bool | None = None, allow_gtp_reshard: bool | None = None) -> None:
    """Put the hooks on, in this process, before or after ``megatron.bridge`` is imported.

    Idempotent and thread-safe; a later call changes only the options it names. Every process that loads
    needs it: in Ray workers, ``worker_process_setup_hook="gtp_migrate.shim.install"`` in the runtime
    environment.

    Args:
        keep_gtp: where the parallel size differs, rescale the loaded count instead of resetting it: 12
            shards at TP 4 become 24 at TP 8. None: the environment variable GTP_MIGRATE_KEEP_GTP decides.
        allow_gtp_reshard: log a warning instead of raising :class:`GTPReshardError`. None: the environment
            variable GTP_MIGRATE_ALLOW_RESHARD decides.
    """
    with _lock:
        before = settings.asked.pop(_INSTALL, settings.Settings())
        settings.asked[_INSTALL] = settings.Settings(
            before.keep_gtp if keep_gtp is None else keep_gtp,
            before.allow_gtp_reshard if allow_gtp_reshard is None else allow_gtp_reshard,
        )
    _put_on()


def uninstall() -> None:
    """Take every hook off: the hooked functions and classes are the very same objects as before.

    A config loaded meanwhile and not finalized yet has its counts as Bridge loaded them.
    """
    with _lock:
        settings.asked.clear()
        _take_off()


@contextmanager
def installed(*, keep_gtp: bool | None = None, allow_gtp_reshard: bool | None = None) -> Iterator[None]:
    """The hooks on for one load: from reading the config to its ``finalize()``, or to the loaded model.

    Leaves them on where they were on before, with the options they had. Arguments as in :func:`install`.
    """
    asking = object()
    with _lock:
        settings.asked[asking] = settings.Settings(keep_gtp, allow_gtp_reshard)
    try:
        _put_on()
        yield
    finally:
        with _lock:
            settings.asked.pop(asking, None)
            if not settings.asked:
                _take_off()


def _put_on() -> None:
    from gtp_migrate.shim import bridge  # and with it wrapt, which takes longer to import than all of this

    bridge.put_on()


def _take_off() -> None:
    from gtp_migrate.shim import bridge

    bridge.take_off()
