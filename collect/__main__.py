"""`python collect -- python train.py`: record a run, with nothing but torch installed.

The folder is mounted as a package with a private name, here and in the recorded
program, so none of its files can be imported by its own name.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec

HERE = os.path.dirname(os.path.abspath(__file__))


def main(words: list[str], prog: str) -> int:
    """Run the launcher on a command line and return the exit status."""
    _mount()
    if words[:1] == ["try"]:
        return trial(words[1:], f"{prog} try")
    if words[:1] == ["sweep"]:
        return sweep(words[1:], f"{prog} sweep")
    launch = import_module("_traceq_collect.launcher.launch")
    status: int = launch.main(words, prog)
    return status


def trial(words: list[str], prog: str, lint: list[str] | None = None) -> int:
    """Run a trial of remedies on a command line and return the exit status.

    ``lint`` is a command that writes the findings of a run folder, if there is one.
    """
    _mount()
    launch = import_module("_traceq_collect.launcher.try_launch")
    status: int = launch.main(words, prog, lint)
    return status


def sweep(words: list[str], prog: str) -> int:
    """Run a program over a grid of configurations and return the exit status."""
    _mount()
    launch = import_module("_traceq_collect.launcher.sweep_launch")
    status: int = launch.main(words, prog)
    return status


def sweep_completions(words: list[str], incomplete: str) -> list[tuple[str, str]]:
    """Return the completions of the word after these, of a sweep."""
    _mount()
    options = import_module("_traceq_collect.launcher.sweep_options")
    pairs: list[tuple[str, str]] = options.completions(words, incomplete)
    return pairs


def trial_completions(words: list[str], incomplete: str) -> list[tuple[str, str]]:
    """Return the completions of the word after these, of a trial."""
    _mount()
    options = import_module("_traceq_collect.launcher.try_options")
    pairs: list[tuple[str, str]] = options.completions(words, incomplete)
    return pairs


def completions(words: list[str], incomplete: str) -> list[tuple[str, str]]:
    """Return the completions of the word after these, with their help."""
    _mount()
    options = import_module("_traceq_collect.launcher.options")
    pairs: list[tuple[str, str]] = options.completions(words, incomplete)
    return pairs


def _mount() -> None:
    spec = ModuleSpec("_traceq_collect", loader=None, is_package=True)
    spec.submodule_search_locations = [HERE]
    sys.modules[spec.name] = module_from_spec(spec)


def _alone() -> int:
    """Run without traceq, which opens closed streams and catches Ctrl-C itself."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    try:
        return main(sys.argv[1:], f"python {os.path.basename(HERE)}")
    except KeyboardInterrupt:
        sys.stderr.write("traceq: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(_alone())
