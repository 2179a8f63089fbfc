# ruff: noqa: I002 - a job may start Pythons older than 3.7, which must not fail here
"""First module on the child's PYTHONPATH: arms the agent, then steps aside.

This folder holds this one file, so ``sitecustomize`` is the only name that we add to
the user's program, and we hand it back: the sitecustomize that Python would have found
without us runs next, and its errors are raised as usual.
"""

import os
import sys
from importlib import import_module

HERE = os.path.dirname(os.path.abspath(__file__))
OLDEST = (3, 9)


def _arm() -> None:
    from importlib.machinery import ModuleSpec  # noqa: PLC0415
    from importlib.util import module_from_spec  # noqa: PLC0415

    # A package with a private name whose modules are the files of collect/: no module
    # of ours can clash with one of the program.
    spec = ModuleSpec("_traceq_agent", loader=None, is_package=True)
    spec.submodule_search_locations = [os.path.dirname(HERE)]
    sys.modules[spec.name] = module_from_spec(spec)
    import_module("_traceq_agent.agent.hook").arm()


def _hand_back() -> None:
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != HERE]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if ours is not None:
            sys.modules["sitecustomize"] = ours


if "TRACEQ_COLLECT" in os.environ and sys.version_info >= OLDEST:
    try:
        _arm()
    except Exception as error:  # noqa: BLE001 - the program must go on
        sys.stderr.write("traceq: not recording: %r\n" % (error,))  # noqa: UP031
_hand_back()
