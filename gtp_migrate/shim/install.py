"""Putting hooks on and taking them off: on what is imported, and on the rest once it is.

With the standard library alone: a worker's environment has what its own work needs, and no more.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from gtp_migrate.shim.options import logger


class Hook(NamedTuple):
    """A function to wrap, and why."""

    #: ``module:attribute`` or ``module:Class.attribute``.
    target: str
    #: Called as ``hook(original, *args, **kwargs)``, self and cls included.
    hook: Callable[..., Any]
    why: str
    since: str
    until: str

    @property
    def module(self) -> str:
        """The module that the target is in."""
        return self.target.partition(":")[0]


class Installation:
    """The hooks, on or off. While they are on it stands first on sys.meta_path, as a finder."""

    def __init__(self, hooks: tuple[Hook, ...]) -> None:
        self.on = False
        self._hooks = hooks
        self._modules = {hook.module for hook in hooks}
        self._lock = threading.RLock()
        self._undo: list[tuple[Any, str, Any, Any]] = []
        self._originals: dict[Any, Any] = {}

    def put_on(self) -> None:
        """Hook what is imported, and the rest once it is; what is hooked already stays as it is."""
        for name in self._modules:
            if getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False):
                importlib.import_module(name)  # another thread is at it: wait, before taking the lock it may need
        with self._lock:
            if not self.on:
                self.on = True
                sys.meta_path.insert(0, self)
            for name in self._modules & set(sys.modules):
                self._hook_module(sys.modules[name])

    def take_off(self) -> None:
        """Put every original back. What somebody put over a hook since stays, and the hook in it does nothing."""
        with self._lock:
            self.on = False
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
            for owner, name, original, wrapper in reversed(self._undo):
                if vars(owner).get(name) is wrapper:
                    setattr(owner, name, original)
            self._undo.clear()
            self._originals.clear()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """What the other finders find, with the hooks put on once it is executed, by a reload too."""
        if name in self._modules:
            for finder in [finder for finder in sys.meta_path if finder is not self]:
                spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):  # on this one loader, which stays of its type
                        spec.loader.exec_module = functools.partial(self._execute, spec.loader.exec_module)  # type: ignore[union-attr, method-assign]
                    return spec
        return None

    def _execute(self, execute: Callable[[Any], None], module: Any) -> None:
        execute(module)
        with self._lock:
            if self.on:
                self._hook_module(module)

    def _hook_module(self, module: Any) -> None:
        for hook in self._hooks:
            if hook.module == module.__name__:
                *path, name = hook.target.partition(":")[2].split(".")
                owner = functools.reduce(lambda owner, step: getattr(owner, step, None), path, module)
                if owner is None or not self.wrap(owner, name, hook.hook):
                    logger.debug("skipped: there is no %s here", hook.target)

    def wrap(self, owner: Any, name: str, hook: Callable[..., Any]) -> bool:
        """Wrap ``owner``'s own function ``name``, once; False where it has none."""
        with self._lock:
            original = vars(owner).get(name)
            if not callable(original) and not isinstance(original, classmethod):
                return False
            if not any(done[0] is owner and done[3] is original for done in self._undo):
                original = self._originals.get(original, original)  # a name that an import bound to a wrapper
                wrapper = next((w for w, wrapped in self._originals.items() if wrapped is original), None)
                wrapper = wrapper or self._wrapper(original, hook)
                self._originals[wrapper] = original
                self._undo.append((owner, name, original, wrapper))
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
