"""Groups of tests that one worker runs: what a group loads or records, it does once.

xdist reads groups from the end of a test's id, where pytest 9.2 and later let no plugin
write them. So the id as it is decides.
"""

from __future__ import annotations

from functools import cache
from pathlib import PurePosixPath

from recordings import TRACES
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

# Two clusters at once would be more processes than there are cores; examples of rules
# are drawn once for both.
_TOGETHER = {
    "test_fleet": "dask",
    "test_ranks_fleet": "dask",
    "test_fixes": "test_rules",
}
# A file that takes minutes and shares nothing among its rules.
_BY_PARAMETER = {"test_rules_on_little"}


class ByRecordingOrFile(LoadScopeScheduling):  # type: ignore[misc]  # has no types
    """Gives a worker all tests of a recording, else of a file."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@cache
def group_of(nodeid: str) -> str:
    """Return the group of a test: its recording, else its file."""
    path, _, test = nodeid.partition("::")
    file = PurePosixPath(path).stem
    parameter = test.partition("[")[2].removesuffix("]")
    if recording := _recording_in(parameter):
        return recording
    if file in _BY_PARAMETER and parameter:
        return f"{file} {parameter.partition('-')[0]}"
    return _TOGETHER.get(file, file)


@cache
def _recording_in(parameter: str) -> str | None:
    """Return the recording that a test is of, which may have other parameters too."""
    if parameter in TRACES:
        return parameter
    around = (
        name
        for name in TRACES
        if parameter.startswith(f"{name}-") or parameter.endswith(f"-{name}")
    )
    return max(around, key=len, default=None)
