"""Results in a notebook that a real kernel runs: each is one output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from recordings import CAPTURES, FIXTURE_TRACES

if TYPE_CHECKING:
    from pathlib import Path

# Where there is no kernel, as with the lowest versions, these tests skip.
nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

TRACE = FIXTURE_TRACES["copies"]
FIXED = CAPTURES.path("copies_fixed.trace.json.gz")
SNAPSHOT = CAPTURES.path("copies.snapshot.pickle.gz")
CELLS = {
    "lint": f"traceq.lint({str(TRACE)!r})",
    "a finding": f"traceq.lint({str(TRACE)!r}).findings[0]",
    "diff": f"traceq.diff({str(TRACE)!r}, {str(FIXED)!r})",
    "summary": f"traceq.summary({str(TRACE)!r})",
    "memory": f"traceq.memory({str(SNAPSHOT)!r})",
    "regions": f"traceq.regions({str(TRACE)!r}, by='module')",
    "roofline": f"traceq.roofline({str(TRACE)!r})",
}
QUIET = "text = [str(one) for one in (traceq.summary({!r}), traceq.memory({!r}))]"


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Return the outputs of each cell of a notebook that a kernel has run."""
    cells = {
        "import": "import traceq",
        **CELLS,
        "text": QUIET.format(str(TRACE), str(SNAPSHOT)),
        "print": f"print(traceq.summary({str(TRACE)!r}))",
    }
    return _run(cells, tmp_path_factory.mktemp("notebook"))


def _run(cells: dict[str, str], folder: Path) -> dict[str, list[Any]]:
    made = [nbformat.v4.new_code_cell(source) for source in cells.values()]
    notebook = nbformat.v4.new_notebook(cells=made)
    nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    return {
        name: cell.outputs for name, cell in zip(cells, notebook.cells, strict=True)
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", CELLS)
def test_a_result_is_one_output_of_its_cell(
    name: str, outputs: dict[str, list[Any]]
) -> None:
    (output,) = outputs[name]

    assert output.output_type == "execute_result"
    assert output.data["text/html"].startswith('<div class="traceq">')


@pytest.mark.slow
def test_the_text_of_a_result_is_no_output(outputs: dict[str, list[Any]]) -> None:
    assert outputs["import"] == []
    assert outputs["text"] == []


@pytest.mark.slow
def test_a_printed_result_is_one_stream(outputs: dict[str, list[Any]]) -> None:
    (output,) = outputs["print"]

    assert output.output_type == "stream"
    assert "\x1b" not in output.text
