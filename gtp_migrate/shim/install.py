"""Putting hooks on and taking them off: on what is imported, and on the rest once it is; and what is said of it.

With the standard library alone: a worker's environment has what its own work needs, and no more.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

ALLOW_RESHARD = "GTP_MIGRATE_ALLOW_RESHARD"
logger = logging.getLogger("gtp_migrate.shim")
#: Who asked for the hooks, and whether they allow a reshard; None leaves it to whoever asked before.
asked: dict[object, bool | None] = {}
said: set[str] = set()


def allow_gtp_reshard() -> bool:
    """Whether weights known to come out in the wrong order are read all the same, with a warning: as whoever asked
    last for the hooks said, else by the environment."""
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


class Hook(NamedTuple):
    """A function to wrap, and why."""

    #: ``module:attribute`` or ``module:Class.attribute``.
    target: str
    #: Called as ``hook(original, *args, **kwargs)``, self and cls included.
    hook: Callable[..., Any]
    why: str

    @property
    def module(self) -> str:
        """The module that the target is in."""
        return self.target.partition(":")[0]


class Installation:
    """The hooks, on or off. While they are on it stands first on sys.meta_path, as a finder."""

    def __init__(self, hooks: tuple[Hook, ...]) -> None:
        self.on = False
        self.lock = threading.RLock()
        self._hooks = {one.module: [hook for hook in hooks if hook.module == one.module] for one in hooks}
        self._originals: dict[Any, Any] = {}  # by their wrappers
        self._places: dict[tuple[Any, str], Any] = {}  # the wrapper at each

    def put_on(self) -> None:
        """Hook what is imported, and the rest once it is; what is hooked already stays as it is."""
        for name in self._hooks:
            if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
                importlib.import_module(name)  # another thread is at it: wait, before taking the lock it may need
        with self.lock:
            if not self.on:
                self.on = True
                sys.meta_path.insert(0, self)
            for name in self._hooks:
                self._hook_module(name)

    def take_off(self) -> None:
        """Put every original back. What somebody put over a hook since stays, and the hook in it does nothing."""
        with self.lock:
            self.on = False
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
            for (owner, name), wrapper in self._places.items():
                if vars(owner).get(name) is wrapper:
                    setattr(owner, name, self._originals[wrapper])
            self._places.clear()
            self._originals.clear()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """What the finders behind this one find, with the hooks put on once it is executed, by a reload too."""
        finders = iter(list(sys.meta_path))
        if name in self._hooks and self in finders:
            for finder in finders:
                spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):  # on this one loader, which stays of its type
                        spec.loader.exec_module = functools.partial(self._execute, spec.loader.exec_module)  # type: ignore[union-attr, method-assign]
                    return spec
        return None

    def _execute(self, execute: Callable[[Any], None], module: Any) -> None:
        execute(module)
        with self.lock:
            if self.on:
                self._hook_module(module.__name__)

    def _hook_module(self, name: str) -> None:
        for hook in self._hooks[name] if sys.modules.get(name) else ():
            *path, attribute = hook.target.partition(":")[2].split(".")
            owner: Any = sys.modules[name]
            for step in path:
                owner = getattr(owner, step, None)
            if not self.wrap(owner, attribute, hook.hook):
                logger.debug("skipped: there is no %s here", hook.target)

    def wrap(self, owner: Any, name: str, hook: Callable[..., Any]) -> bool:
        """Wrap ``owner``'s own function ``name``, once; False where it has none."""
        with self.lock:
            found = getattr(owner, "__dict__", {}).get(name)
            if not callable(found) and not isinstance(found, classmethod):
                return False
            original = self._originals.get(found, found)  # an import may have bound a wrapper
            wrapper = next((w for w, wrapped in self._originals.items() if wrapped is original), None)
            wrapper = wrapper or self._wrapper(original, hook)
            self._originals[wrapper] = original
            self._places[owner, name] = wrapper
            setattr(owner, name, wrapper)
            return True

    def _wrapper(self, original: Any, hook: Callable[..., Any]) -> Any:
        function = original.__func__ if isinstance(original, classmethod) else original

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return hook(function, *args, **kwargs) if self.on else function(*args, **kwargs)

        for name in ("cache_clear", "cache_info", "cache_parameters"):  # of a function with lru_cache
            if hasattr(function, name):
                setattr(wrapper, name, getattr(function, name))
        return classmethod(wrapper) if isinstance(original, classmethod) else wrapper
