"""Arms the runtime shim in every Python that gtp-shim runs: first on PYTHONPATH, imported at its start.

It imports nothing until something of Megatron or NeMo-RL is imported, and is written for whatever Python a worker has.
"""

import sys

_HERE = __file__.rpartition("/")[0]


class _GtpShim:
    """Waits on sys.meta_path for the first import of what has hooks, and finds no module itself."""

    #: In Python 2, a module's functions die with it, and the next sitecustomize takes this one's place.
    module = sys.modules.get(__name__)

    @classmethod
    def find_spec(cls, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name.partition(".")[0] in ("megatron", "nemo_rl") and cls in sys.meta_path:
            sys.meta_path.remove(cls)
            try:
                _install(_HERE.rpartition("/shim/")[0])  # type: ignore[no-untyped-call]
            except Exception as error:
                sys.stderr.write("gtp-shim: the hooks are off in this process: " + repr(error) + "\n")

    find_module = find_spec  # by which name Python 2 calls it


def _install(folder):  # type: ignore[no-untyped-def]
    """Find the package by where this file lies: nothing that lies beside it becomes importable."""
    if sys.version_info < (3, 10):  # noqa: UP036
        raise RuntimeError("it needs Python 3.10 or newer")
    from importlib.util import module_from_spec, spec_from_file_location

    if "gtp_migrate" not in sys.modules:
        spec = spec_from_file_location("gtp_migrate", folder + "/__init__.py", submodule_search_locations=[folder])
        sys.modules["gtp_migrate"] = module_from_spec(spec)  # type: ignore[arg-type]
        spec.loader.exec_module(sys.modules["gtp_migrate"])  # type: ignore[union-attr]
    from gtp_migrate import shim

    shim.install()


def _run_next():  # type: ignore[no-untyped-def]
    """Run the sitecustomize that this one stands in front of, if there is one."""
    sys.path.remove(_HERE)
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if not str(error).endswith(("named sitecustomize", "named 'sitecustomize'")):
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)


if not any(getattr(finder, "__name__", "") == "_GtpShim" for finder in sys.meta_path):
    sys.meta_path.insert(0, _GtpShim)
if _HERE in sys.path:
    _run_next()  # type: ignore[no-untyped-call]
