"""Arms the runtime shim in every Python that gtp-shim runs: first on PYTHONPATH, imported at its start.

It imports nothing until something of Megatron or NeMo-RL is imported, and is written for whatever Python a worker has.
"""

import sys

_HERE = __file__.rpartition("/")[0]


class _GtpShim:
    """Waits on sys.meta_path for the first import of what has hooks, and finds no module itself."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name.partition(".")[0] in ("megatron", "nemo_rl") and cls in sys.meta_path:
            sys.meta_path.remove(cls)
            try:
                _install(_HERE.rpartition("/shim/")[0])
            except Exception as error:
                sys.stderr.write("gtp-shim: the hooks are off in this process: " + repr(error) + "\n")


def _install(folder: str) -> None:
    """Find the package by where this file lies: nothing that lies beside it becomes importable."""
    from importlib.util import module_from_spec, spec_from_file_location

    if "gtp_migrate" not in sys.modules:
        spec = spec_from_file_location("gtp_migrate", folder + "/__init__.py", submodule_search_locations=[folder])
        assert spec is not None
        assert spec.loader is not None
        sys.modules["gtp_migrate"] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules["gtp_migrate"])
    from gtp_migrate import shim

    shim.install()


def _run_next() -> None:
    """Run the sitecustomize that this one stands in front of, if there is one."""
    rest = sys.path[sys.path.index(_HERE) + 1 :] if _HERE in sys.path else sys.path
    for finder in sys.meta_path:
        if getattr(finder, "__name__", "") == "PathFinder":
            spec = finder.find_spec("sitecustomize", [path for path in rest if path != _HERE])
            if spec is not None and spec.loader is not None:
                module = sys.modules["sitecustomize"] = type(sys)("sitecustomize")
                module.__spec__, module.__file__, module.__loader__ = spec, spec.origin, spec.loader
                spec.loader.exec_module(module)
            break


if not any(getattr(finder, "__name__", "") == "_GtpShim" for finder in sys.meta_path):
    sys.meta_path.insert(0, _GtpShim)
_run_next()
