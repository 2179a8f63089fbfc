"""Findings in the user's repository: paths, code frames, SARIF that attaches."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from command import traceq

from traceq.common.git_repository import Repository, find_root, read_repository
from traceq.linter import Rule
from traceq.model.finding import CodeFrame, Place, Severity
from traceq.model.lint_report import RecordingReport, Report
from traceq.report.repository_paths import located, located_finding
from traceq.testing import draw

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

LAYERS = '''"""Layers."""
import torch


class Block(torch.nn.Module):
    @torch.no_grad()
    def forward(self, x):
        y = x.sort()
        n = y.sum().item()
        return y * n
'''
STEP = """
host   [ProfilerStep#1                                                    ]
host    [train.py(3): main                                               ]
host     [foundation/layers.py(6): forward                              ]
host      [<built-in method item of Tensor object at 0x7f>         ]
host       [aten::item                                          ]
host        [aten::_local_scalar_dense                        ]
host         [cudaMemcpyAsync>1] [cudaStreamSynchronize    ]
gpu 7                 [Memcpy DtoH (Device -> Pageable)<1]
"""


def repository(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for words in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


def test_a_file_without_the_function_is_another_programs(tmp_path: Path) -> None:
    result = read_repository(repository(tmp_path, {"lib/model.py": "def load(): ..."}))

    assert result.find("model.py", "load", 9) == "lib/model.py"
    assert result.find("model.py", "forward", 9) is None
    assert result.find("model.py", "<module>", 9) == "lib/model.py"


def in_src(folder: Path) -> Path:
    return repository(
        folder,
        {
            "src/foundation/layers.py": LAYERS,
            "scripts/train.py": "import foundation\n\ndef main():\n    ...\n",
            "trace.json": json.dumps(draw(STEP)),
        },
    )


def places(*files: str, function: str = "forward", line: int = 6) -> Report:
    rule = type("Odd", (Rule,), {"code": "ABC001", "__doc__": "Odd."})()
    findings = tuple(
        rule.finding("odd", subject="x", place=Place(file, line, function))
        for file in files
    )
    outcome = RecordingReport(
        *("t.json", None, None, 1, 1, findings),
        *((), 0, (), (), (), 1),
    )
    return Report((outcome,), Severity.warning)


def test_in_a_src_layout_every_uri_of_sarif_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(in_src(tmp_path))

    answer = traceq("lint", "trace.json", "--format", "sarif", "--select", "ALL")

    (run,) = json.loads(answer.out)["runs"]
    assert run["results"]
    for result in run["results"]:
        (location,) = result["locations"]
        physical = location["physicalLocation"]
        assert (tmp_path / physical["artifactLocation"]["uri"]).is_file()
        assert physical["region"]["startLine"] >= 1
    uris = {_uri(item) for item in run["results"]}
    assert "src/foundation/layers.py" in uris
    # What has no line of its own stands where the program begins.
    assert "scripts/train.py" in uris
    assert "not found" not in answer.err


def _uri(result: dict[str, Any]) -> str:
    physical = result["locations"][0]["physicalLocation"]
    return str(physical["artifactLocation"]["uri"])


def test_annotations_name_the_file_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(in_src(tmp_path))

    text = traceq("lint", "trace.json", "--format", "github").out

    assert "file=src/foundation/layers.py,line=6," in text


def test_a_file_that_is_not_there_stays_as_recorded_and_is_said(tmp_path: Path) -> None:
    known = read_repository(in_src(tmp_path))

    report, sentence = located(places("foundation/layers.py", "gone/x.py"), known)

    result = [finding.place for finding in report.outcomes[0].findings]
    assert [place.source for place in result] == [
        "src/foundation/layers.py",
        "gone/x.py",
    ]
    assert sentence.startswith("1 file of findings not found under")
    assert "gone/x.py is in no file there" in sentence


def test_a_file_without_the_lines_that_ran_is_another_programs(tmp_path: Path) -> None:
    files = {"lib/model.py": "def forward(x):\n    return x\n"}
    known = read_repository(repository(tmp_path, files))
    report = places("model.py", line=118)
    (finding,) = report.outcomes[0].findings

    def path(*lines: str) -> str | None:
        shown = replace(finding, frame=CodeFrame(117, lines, 118))
        return located_finding(shown, known).place.path

    assert path("for row in rows:", "    total += row", "") is None
    assert path("def forward(x):", "    y = x", "") == "lib/model.py"


def test_a_lambda_does_not_tell_which_of_several_files_it_is(tmp_path: Path) -> None:
    for name, source in (("a", "run = lambda x: x"), ("b", "x = 1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "net.py").write_text(f"{source}\n")

    assert read_repository(tmp_path).find("net.py", "<lambda>", 1) is None


def test_of_several_files_it_is_the_one_in_which_the_function_begins(
    tmp_path: Path,
) -> None:
    files = {"a/net.py": LAYERS, "b/net.py": "def forward():\n    ...\n"}
    known = read_repository(repository(tmp_path, files))

    assert known.find("net.py", "forward", 6) == "a/net.py"
    assert known.find("net.py", "forward", 1) == "b/net.py"
    assert known.find("net.py", "forward", 3) is None
    assert known.find("a/net.py") == "a/net.py"


def test_an_absolute_path_of_another_machine_is_found_by_its_end(
    tmp_path: Path,
) -> None:
    known = read_repository(in_src(tmp_path))

    recorded = "/home/ann/work/src/foundation/layers.py"
    assert known.find(recorded) == "src/foundation/layers.py"
    # A relative one is whole: nothing of it may be left out.
    assert known.find("other/foundation/layers.py") is None


def test_a_finding_keeps_its_fingerprint_in_a_repository(tmp_path: Path) -> None:
    before = places("foundation/layers.py")
    after, _ = located(before, read_repository(in_src(tmp_path)))

    (finding,), (two,) = (report.outcomes[0].findings for report in (before, after))
    assert finding.place != two.place
    assert finding.fingerprint == two.fingerprint


def test_a_code_frame_marks_the_place_where_the_source_is_as_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(in_src(tmp_path))

    text = traceq("lint", "trace.json", "-v").out
    assert "> 6 |     @torch.no_grad()\n" in text
    markdown = traceq("lint", "trace.json", "--format", "markdown").out
    assert "```python\n> 6 |     @torch.no_grad()\n" in markdown
    assert "](src/foundation/layers.py#L6)" in markdown

    # Another line above: what was recorded is elsewhere now.
    file = tmp_path / "src" / "foundation" / "layers.py"
    file.write_text("# new\n" + LAYERS)
    assert "> 6 |" not in traceq("lint", "trace.json", "-v").out


def test_nothing_outside_of_the_root_is_read(tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("password = 1\n")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link.py").symlink_to(tmp_path / "secret.py")
    known = Repository(root, {"link.py": ["link.py"], "secret.py": ["../secret.py"]})

    assert known.lines("link.py") == ()
    assert known.lines("../secret.py") == ()


def test_a_folder_that_git_does_not_know_is_walked(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "a.py").touch()
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "a.py").touch()

    assert find_root(tmp_path) is None
    assert read_repository(tmp_path).find("a.py") == "pkg/a.py"


def test_a_repository_cannot_make_git_run_its_programs(tmp_path: Path) -> None:
    root = repository(tmp_path / "root", {"a.py": ""})
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    subprocess.run(["git", "config", "core.fsmonitor", str(hook)], cwd=root, check=True)

    assert read_repository(root).find("a.py") == "a.py"
    assert not (tmp_path / "ran").exists()
