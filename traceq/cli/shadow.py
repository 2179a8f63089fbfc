"""Detection of the other package called traceq, whose files replace ours."""

from __future__ import annotations

import os

DISTRIBUTION = "torch-traceq"
_OTHER = "traceq-"
_ENDS = (".dist-info", ".egg-info")


def shadowed(folder: str | None = None) -> str:
    """Return a sentence if another distribution installed files of our names here.

    ``folder`` is where packages are, beside this one unless given. Asked only by
    `--version` and after an error: listing the folder takes a millisecond.
    """
    here = folder or os.path.join(os.path.dirname(__file__), os.pardir, os.pardir)  # noqa: PTH118, PTH120 - pathlib takes longer to import
    try:
        names = os.listdir(here)  # noqa: PTH208
    except OSError:
        return ""
    others = [
        name for name in names if name.startswith(_OTHER) and name.endswith(_ENDS)
    ]
    if not others:
        return ""
    version = others[0][len(_OTHER) :].rpartition(".")[0]
    return (
        f"the package traceq {version} is installed beside {DISTRIBUTION}, and both"
        " write the folder and the command traceq: pip uninstall traceq, then pip"
        f" install --force-reinstall {DISTRIBUTION}"
    )
