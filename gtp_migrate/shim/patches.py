"""Replacing attributes of modules and classes so that each can be put back, the very same object.

Functions are wrapped with wrapt: signature, docstring and name stay, and a wrapper that somebody bound by
name while it was on passes straight through once it is off.
"""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import wrapt

_MISSING = object()


if TYPE_CHECKING:
    _FunctionWrapper = wrapt.FunctionWrapper[Any, Any]
else:
    _FunctionWrapper = wrapt.FunctionWrapper  # generic only from wrapt 2 on


class Wrapper(_FunctionWrapper):
    """A wrapped function that pickles as a reference to its name, as the function itself does."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return pkgutil.resolve_name, (f"{self.__module__}:{self.__qualname__}",)


class Patches:
    """The replaced attributes, in order."""

    def __init__(self) -> None:
        self.on = True
        self._undo: list[tuple[Any, str, Any, Any]] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name`` to ``value`` until :meth:`restore`."""
        original = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)
        self._undo.append((owner, name, original, value))

    def wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> bool:
        """Wrap the function ``owner.name`` with ``wrapper(wrapped, instance, args, kwargs)``.

        Returns:
            False where ``owner`` itself has no such function.
        """
        raw = vars(owner).get(name, _MISSING)
        if type(raw) is Wrapper:  # a name bound to another hook's wrapper: wrap what that wraps
            raw = raw.__wrapped__
        if raw is _MISSING or not (callable(raw) or isinstance(raw, (classmethod, staticmethod))):
            return False
        wrapped = Wrapper(raw, wrapper, enabled=lambda: self.on)
        setattr(owner, name, wrapped)
        self._undo.append((owner, name, raw, wrapped))
        return True

    def restore(self) -> None:
        """Put every original back, also where a module imported meanwhile bound a wrapper by name."""
        self.on = False
        for owner, name, original, value in reversed(self._undo):
            if inspect.getattr_static(owner, name, _MISSING) is not value:
                continue  # replaced by somebody since; our wrapper in there passes through
            if original is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
        ours = {id(value): original for _, _, original, value in self._undo if type(value) is Wrapper}
        self._undo.clear()
        for module in list(sys.modules.values()):
            for name, value in list(getattr(module, "__dict__", {}).items()):
                if type(value) is Wrapper and id(value) in ours:
                    setattr(module, name, ours[id(value)])
