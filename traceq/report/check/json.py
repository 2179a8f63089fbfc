"""A check as JSON, for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson

from traceq import __version__
from traceq.common.safe_text import as_unicode, plain_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traceq.check.check import FixtureResult

VERSION = 2


def render(results: Sequence[FixtureResult]) -> str:
    """Return one object; ``version`` says which fields there are."""
    content = {
        "version": VERSION,
        "traceq": __version__,
        "failing": sum(result.fails for result in results),
        "fixtures": [_result(result) for result in results],
    }
    return plain_json(orjson.dumps(content, option=orjson.OPT_INDENT_2).decode()) + "\n"


def _result(result: FixtureResult) -> dict[str, Any]:
    return {
        "fixture": as_unicode(str(result.folder)),
        "fails": result.fails,
        "findings": result.findings,
        "budgets": result.budgets,
        "written": list(result.written),
        "ran_on": result.ran_on,
        "not_run": result.not_run,
        "compared": result.compared,
        "differences": [asdict(difference) for difference in result.differences],
    }
