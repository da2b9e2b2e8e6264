"""A stand-in for transformer_engine, which does not import without a GPU.

Bridge needs the package to be there when it is imported; none of its config code runs through it. The
modules here answer any attribute with an empty subclass of torch.nn.Module, enough to be subclassed and
annotated with, and nothing else works.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType

NAME = "transformer_engine"


def _answer(owner, name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    import torch

    made = _Nested(name, (torch.nn.Module,), {"__module__": owner.__name__})
    setattr(owner, name, made)
    return made


class _Nested(type):
    """A class stands for a submodule as well where only attribute access leads there."""

    __getattr__ = _answer


class _Module(ModuleType):
    __getattr__ = _answer


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path=None, target=None):
        if fullname == NAME or fullname.startswith(NAME + "."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        module = _Module(spec.name)
        module.__version__ = "2.9.0"
        return module

    def exec_module(self, module):
        pass


def stand_in() -> None:
    """Put the stand-in first on sys.meta_path, once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
