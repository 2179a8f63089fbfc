"""Conditions under which `traceq check` runs a fixture's program without `--run`.

A fixture names a command, and a fixture may be a stranger's: only what lies in the
repository that the user works in, and what git has there, is run without ``--run``. In
CI it is not run for a change of a fork, nor where nobody can tell whose change it is.
"""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceq.check.program import ProgramError, command_of
from traceq.common.git_repository import content_in, find_root, is_tracked
from traceq.errors import UsageError
from traceq.formats.fixture_origin import ORIGIN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceq.check.fixture import Fixture

NO_COMMAND = f"{ORIGIN} has no command"
# Events of a repository's own branches; all others may come from anywhere.
_OWN_EVENTS = ("push", "schedule", "workflow_dispatch", "merge_group", "release")
_LARGEST_EVENT = 64 << 20


def why_not_by_itself(fixture: Fixture) -> str:
    """Return why the program is not run without ``--run``; empty if it is."""
    try:
        if command_of(fixture) is None:
            return NO_COMMAND
    except ProgramError as error:
        return str(error)
    if not _has_torch():
        return "torch is not installed here"
    if not is_own(fixture.folder, Path.cwd()):
        return f"git has no {ORIGIN} of it in the repository of this folder (--run)"
    return whose_change(os.environ)


def _has_torch() -> bool:
    try:
        return find_spec("torch") is not None
    except ValueError:  # it was imported in some unusual way
        return False


def is_own(folder: Path, here: Path) -> bool:
    """Return whether git has a fixture's origin in the repository around a folder."""
    root = find_root(here.resolve())
    return root is not None and is_tracked(root, (folder / ORIGIN).resolve())


def whose_change(environment: Mapping[str, str]) -> str:
    """Return why CI must not run programs of this change; empty if it may."""
    if not environment.get("CI"):
        return ""
    if environment.get("GITHUB_ACTIONS"):
        return _on_github(environment)
    if environment.get("GITLAB_CI"):
        source = environment.get("CI_MERGE_REQUEST_SOURCE_PROJECT_ID", "")
        target = environment.get("CI_MERGE_REQUEST_PROJECT_ID", "")
        return "this is a merge request of a fork (--run)" if source != target else ""
    return "this CI does not tell whose change it is (--run)"


def _on_github(environment: Mapping[str, str]) -> str:
    event = environment.get("GITHUB_EVENT_NAME", "")
    if event in _OWN_EVENTS:
        return ""
    if event != "pull_request":
        return f"{event or 'an event'} may be of a stranger (--run)"
    change = _pull_request(environment.get("GITHUB_EVENT_PATH", ""))
    names = [_name_of(change.get(end)) for end in ("head", "base")]
    return (
        ""
        if names[0] and names[0] == names[1]
        else "this is a pull request of a fork (--run)"
    )


def _pull_request(path: str) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            event = json.loads(file.read(_LARGEST_EVENT))
    except (OSError, ValueError):
        return {}
    change = event.get("pull_request") if isinstance(event, dict) else None
    return change if isinstance(change, dict) else {}


def _name_of(end: object) -> str:
    """Return the repository of one end of a pull request; empty if it is not known."""
    repository = end.get("repo") if isinstance(end, dict) else None
    name = repository.get("full_name") if isinstance(repository, dict) else None
    return name if isinstance(name, str) else ""


def why_not_as_in(commit: str, fixture: Fixture) -> str:
    """Return that a commit defines another program, or none; empty if it is the same.

    Raises ``UsageError`` where there is no repository to look at.
    """
    file = (fixture.folder / ORIGIN).resolve()
    root = find_root(fixture.folder.resolve())
    if root is None:
        msg = f"{fixture.folder} is in no git repository: --base needs one"
        raise UsageError(msg)
    if content_in(root, commit, file) == file.read_bytes():
        return ""
    return f"{ORIGIN} is not the one of {commit} (--base)"
