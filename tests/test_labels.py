"""Labels that a user gives recordings on the command line, or in a file of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from traceq.errors import UsageError
from traceq.inputs.labels import read_labels
from traceq.model.run import Run

if TYPE_CHECKING:
    from collections.abc import Mapping


def test_a_label_belongs_to_the_file_it_names() -> None:
    labels = read_labels(["a/one.json:seq_len=512", "a/two.json:seq_len=1024"])

    assert labels.of(Path("a/one.json")) == {"seq_len": "512"}
    assert labels.of(Path("./a/../a/two.json")) == {"seq_len": "1024"}
    assert labels.of(Path("b/one.json")) == {}


def test_a_bare_name_is_that_of_a_file_in_any_folder() -> None:
    assert read_labels(["one.json:x=1"]).of(Path("b/one.json")) == {"x": "1"}


def test_a_folder_labels_all_in_it() -> None:
    assert read_labels(["a:gpu=h100"]).of(Path("a/b/one.json")) == {"gpu": "h100"}


def test_a_file_and_a_value_may_have_colons_and_signs_of_their_own() -> None:
    labels = read_labels(["s3://bucket/one.json:note=a:b=c"])
    (label_entry,) = labels.entries

    assert (str(label_entry.path), label_entry.labels) == (
        "s3://bucket/one.json",
        {"note": "a:b=c"},
    )


def run(labels: Mapping[str, str]) -> Run:
    return Run(Path("run"), ("python",), labels, (), (), "finished")


def test_what_is_said_is_added_to_the_labels_of_a_run_folder() -> None:
    labels = read_labels(["run:batch=8", "run:gpu=h100"])

    assert labels.of(Path("run"), run({"batch": "4", "seed": "1"})) == {
        "batch": "8",
        "seed": "1",
        "gpu": "h100",
    }


def test_a_file_of_runs_lists_paths_beside_it_with_labels_and_measured_steps(
    tmp_path: Path,
) -> None:
    file = tmp_path / "runs.toml"
    file.write_text(
        '["one.json"]\nseq_len = 512\nflash = true\nstep_ms = 12.5\n["two.json"]\n'
    )
    labels = read_labels([], file)

    assert labels.runs == (tmp_path / "one.json", tmp_path / "two.json")
    assert labels.of(tmp_path / "one.json") == {"seq_len": "512", "flash": "true"}
    assert labels.step_ns(tmp_path / "one.json") == 12_500_000
    assert labels.of(tmp_path / "two.json") == {}
    assert labels.step_ns(tmp_path / "two.json") is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("one.json", "is not FILE:KEY=VALUE"),
        ("seq_len=512", "is not FILE:KEY=VALUE"),
        ("one.json:step_ms=fast", "step_ms must be a number above 0"),
        ("one.json:step_ms=nan", "step_ms must be a number above 0"),
    ],
)
def test_what_is_no_label_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_labels([text])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "names no run"),
        ('a = "b"', "must be a table of labels"),
        ("[a]\nb = [1]", "must be a table of labels"),
        ("[a]\nstep_ms = 0", "step_ms must be a number above 0"),
        ("[a", "is not TOML"),
    ],
)
def test_a_file_that_lists_no_runs_is_refused(
    content: str, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "runs.toml"
    file.write_text(content)

    with pytest.raises(UsageError, match=why):
        read_labels([], file)


def test_a_label_of_no_recording_is_refused() -> None:
    with pytest.raises(UsageError, match=r"tow\.json is not among the recordings"):
        read_labels(["tow.json:x=1"]).refuse_unused([Path("one.json")])
