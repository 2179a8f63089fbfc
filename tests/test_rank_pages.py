"""Pages of a job's ranks, beside the page of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from command import traceq
from ranking import Works, analysed, write_job

from traceq.report.page.parts.ranks import ranks_with_pages

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path / "job", [Works(), Works(), Works(2000), Works()])


@pytest.mark.slow
def test_each_rank_has_a_page_beside_that_of_the_job(job: Path, tmp_path: Path) -> None:
    answer = traceq("report", job, "-o", tmp_path / "page.html")

    assert answer.status == 0, answer.err
    pages = sorted(tmp_path.glob("page-ranks/*"))
    assert [page.name for page in pages] == [f"rank-{n}.html" for n in range(4)]
    assert f"the pages of 4 ranks to {tmp_path / 'page-ranks'}" in answer.err
    assert "rank2.json" in pages[2].read_text(encoding="utf-8")


def test_without_pages_of_ranks_a_job_is_one_file_without_links(
    job: Path, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"

    answer = traceq("report", job, "-o", file, "--rank-pages", "0")

    assert answer.status == 0, answer.err
    assert not (tmp_path / "page-ranks").exists()
    assert 'href="page' not in file.read_text(encoding="utf-8")


def test_of_many_ranks_the_latest_and_the_earliest_have_pages(job: Path) -> None:
    analysis = analysed(job)

    two, all_of_them = ranks_with_pages(analysis, 2), ranks_with_pages(analysis, 4)

    assert len(two) == 2
    assert 2 in two
    assert all_of_them == [0, 1, 2, 3]


def test_another_file_in_the_place_of_a_page_is_not_lost(
    job: Path, tmp_path: Path
) -> None:
    file = tmp_path / "page.html"
    path = tmp_path / "page-ranks" / "rank-1.html"
    path.parent.mkdir()
    path.write_text("<h1>mine</h1>")

    refused = traceq("report", job, "-o", file)

    assert refused.status == 2
    assert "exists already" in refused.err
    assert path.read_text() == "<h1>mine</h1>"
    assert not file.exists()


def test_a_file_in_the_place_of_the_folder_is_one_sentence(
    job: Path, tmp_path: Path
) -> None:
    (tmp_path / "page-ranks").write_text("mine")

    refused = traceq("report", job, "-o", tmp_path / "page.html")

    assert refused.status == 2
    assert "page-ranks cannot be made" in refused.err
