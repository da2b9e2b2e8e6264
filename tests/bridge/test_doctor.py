"""What `--doctor` reads in the source of the real packages is so."""

from __future__ import annotations

import importlib
import inspect
import sys
from dataclasses import fields
from functools import reduce

from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.core import parallel_state

from gtp_migrate.ask import doctor
from gtp_migrate.shards import AXES


def environment():
    return doctor._environment("this Python", sys.path)


def test_the_fields_that_the_constructor_takes() -> None:
    taken = {field.name for field in fields(GPTModelProvider) if field.init}
    found = environment()
    assert found.takes_size.value is ({axis.gtp_size for axis in AXES} <= taken)
    assert found.takes_count.value is ({axis.num_weight_shards for axis in AXES} <= taken)


def test_the_versions() -> None:
    found = {package.name: package.version for package in environment().packages}
    assert found["megatron-core"] == importlib.import_module("megatron.core").__version__.partition("+")[0]
    assert found["megatron-bridge"] == importlib.metadata.version("megatron-bridge")


def test_the_arguments_of_core() -> None:
    real = inspect.signature(parallel_state.initialize_model_parallel).parameters
    assert set(doctor._gtp_arguments(parallel_state.__file__)) == {name for name in real if "gtp" in name}
    assert set(doctor._GTP_ARGUMENTS) <= real.keys()


def test_the_places_of_the_hooks() -> None:
    for hook in environment().hooks:
        module, _, attribute = hook.target.partition(":")
        *path, name = attribute.split(".")
        try:
            owner = reduce(getattr, path, importlib.import_module(module))
        except ImportError:
            assert hook.fits is False, hook.target
        else:
            assert hook.fits is (name in vars(owner)), hook.target
