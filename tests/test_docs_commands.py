"""Every command that a page shows works, and every other block is held by a test."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from command import traceq
from conftest import ROOT
from goldens import assert_block
from linting import bundled_rules

from traceq.common import toml as toml_text
from traceq.errors import TraceqError
from traceq.testing import draw
from traceq.testing.examples import DEVICE

yaml = pytest.importorskip("yaml")

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *(ROOT / folder / "README.md" for folder in ("rules", "collect")),
        *sorted((ROOT / "docs").rglob("*.md")),
    )
}
_BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[\w-]+) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$"
    r"|(?P<indented>(?:^    (?![*-]).*\n)+)",
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(r"(?:\$ )?(traceq|pip|make|ssh|srun|salloc|dask|helm) ")
_RUNS = r"traceq-runs/(?:train-[\d.-]+|first|second)"
# What cannot be run here, or takes long, and where the same is tried.
ELSEWHERE = {
    r"make (demo|test|docs)\b": "tests/test_readme.py",
    r"make (quick|slow|fuzz|goldens)\b": "Makefile",
    r"pip install": "tests/test_packaging.py",
    r"(srun .*)?traceq collect\b": "tests/test_collect_programs.py",
    r"traceq check --run\b": "tests/test_check_run.py",
    r"traceq lint .* \| check-jsonschema": "tests/test_schemas.py",
    r"traceq agent (install|mcp)\b": "tests/test_agent.py",
    r"traceq fix\b": "tests/test_fix.py",
    r"traceq try\b": "tests/test_try.py",
    r"traceq sweep report\b": "tests/test_sweep_report.py",
    r"traceq sweep --": "tests/test_sweep.py",
    r"traceq history\b": "tests/test_history.py",
    r"traceq lint report\.sqlite": "tests/test_nsys.py",
    r"traceq open\b": "tests/test_open.py",
    r"traceq (summary|ranks) s3://": "tests/test_inputs_remote.py",
    r"traceq ranks .*--on\b": "tests/test_fleet.py",
    r"traceq ranks nccl_trace/": "tests/test_hangs.py",
    r"ssh ": "tests/test_inputs.py",
    # Of other programs' clusters.
    r"(srun )?dask |salloc |helm ": "tests/test_fleet.py",
}
# Blocks that are no commands, by their first line, and what holds them.
HELD = {
    "nsys profile --trace": "tests/test_nsys.py",
    "bytes → tables": "pyproject.toml",
    "traceq-runs/NAME/": "tests/test_collect_launcher.py",
    "traceq-runs/attention/": "tests/test_sweep.py",
    "collect/             program": "tests/test_readme.py",
    "fixtures/train: 2 differences": "tests/test_check_run.py",
    "E       traceq.testing.step.OverBudgetError": "tests/test_pytest_plugin.py",
}
_REGIONS = """
    host   [ProfilerStep#1                                                         ]
    host    [@EMA_FFT                        ][@EMA_SEQ                            ]
    host     [aten::mm         ]               [aten::add         ]
    host      [cuLaunchKernel>1]                [cuLaunchKernel>2]
    gpu 7                 [gemm<1     ]                    [add<2        ]
"""


def commands(page: str) -> list[str]:
    """Return the command lines of a page, without what is said of them."""
    return [
        re.split(r" {2,}", line.strip().removeprefix("$ "))[0]
        for block in _BLOCK.finditer(PAGES[page])
        for text in [block["indented"] or ("" if block["kind"] else block["text"])]
        for line in re.sub(r"\\\n *", "", text).splitlines()
        if _COMMAND.match(line.strip())
    ]


def elsewhere(command: str) -> bool:
    return any(re.match(pattern, command) for pattern in ELSEWHERE)


def packed(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def job(folder: Path) -> None:
    """Write the traces of a job of several ranks."""
    (example, *_) = bundled_rules()["RNK001"].examples
    for rank, drawing in enumerate(example.ranks):
        known = {"rank": rank, "world_size": len(example.ranks), "backend": "nccl"}
        trace = json.dumps(draw(drawing, example.args, DEVICE, known))
        packed(folder / f"rank{rank}.json.gz", trace)


def staged(folder: Path, wanted: str) -> None:
    """Write what the pages call by name, as far as ``wanted`` mentions it."""
    sick, cured = (
        ROOT / "fixtures" / name for name in ("copies", "twins/copies_fixed")
    )
    regions = json.dumps(draw(_REGIONS, {}, DEVICE))
    for name, fixture in (
        *((name, sick) for name in ("trace.json.gz", "a.json.gz", "seq512.json.gz")),
        *((name, cured) for name in ("b.json.gz", "seq1024.json.gz")),
        ("logs/profile/trace.json.gz", sick),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(fixture / "trace.json.gz", folder / name)
    for name in ("trace.json", "before.json", "after.json", "run1.json", "run2.json"):
        (folder / name).write_text(regions, encoding="utf-8")
    zstd = pytest.importorskip("backports.zstd")
    (folder / "trace.json.zst").write_bytes(zstd.compress(regions.encode()))
    snapshot = ROOT / "fixtures" / "attn_manual" / "snapshot.pickle.gz"
    for name in ("snapshot.pickle", "memory.pickle"):
        (folder / name).write_bytes(gzip.decompress(snapshot.read_bytes()))
    shutil.copy(ROOT / "fixtures/captures/graph_rerecord.log", folder / "train.log")
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGES["docs/summary.md"], re.DOTALL)
    (folder / "runs.toml").write_text(toml, encoding="utf-8")
    for name in ("traces", "before", "after"):
        job(folder / name)
    for name in ("job", "before", "after", "good", "new"):
        job(folder / "traceq-runs" / name)
    run = ROOT / "tests" / "data" / "compiled" / "transformer"
    newest = {"traceq-runs/train"} if "traceq lint --format" in wanted else set()
    for name in {"RUN", *newest, *re.findall(_RUNS, wanted)}:
        shutil.copytree(run, folder / name)
    shutil.copytree(sick, folder / "fixtures" / "copies")
    if "--replace" in wanted:
        shutil.copytree(sick, folder / "fixtures" / "train")
    if "--new" not in wanted:
        traceq("rules", "--new", "nonzero-in-forward", "--to", folder / "ci/my_rules")


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_the_commands_of_a_page_work(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line for line in commands(page) if not elsewhere(line)]
    staged(tmp_path, "\n".join(lines))
    monkeypatch.chdir(tmp_path if page != "docs/compare.md" else ROOT)
    monkeypatch.delenv("CI", raising=False)

    for line in lines:
        _, *words = shlex.split(line)
        # As a shell does it.
        files = [[*map(str, sorted(Path().glob(word)))] or [word] for word in words]
        answer = traceq(*(word for some in files for word in some))

        # What is found may fail the run; that traceq could not work must not be.
        assert answer.status in (0, 1), f"{line}: {answer.err}"
        assert "rash" not in answer.err


def test_what_is_tried_elsewhere_is_shown_and_tried_there() -> None:
    every = [line for page in PAGES for line in commands(page)]

    for pattern, file in ELSEWHERE.items():
        assert any(re.match(pattern, line) for line in every), f"{pattern} is not shown"
        assert (ROOT / file).is_file()


def test_every_block_is_held_by_a_test() -> None:
    tests = "".join(
        path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "tests").glob("test_*.py"))
    )
    loose = []
    for page, text in PAGES.items():
        for block in _BLOCK.finditer(text):
            if block["indented"] or block["kind"] in (
                "python",
                "py",
                "toml",
                "diff",
                "sql",
            ):
                continue
            if mark := block["mark"]:
                held = f'"{re.sub(r"-?[0-9]+$", "", mark)}' in tests
            else:
                first = block["text"].lstrip().partition("\n")[0]
                held = bool(_COMMAND.match(first)) or first.startswith((*HELD,))
            if not held:
                loose.append(f"{page}: {block['text'][:40]!r}")

    assert loose == []
    assert all((ROOT / file).is_file() for file in HELD.values())


@pytest.mark.parametrize("page", PAGES)
def test_the_toml_of_a_page_is_toml(page: str, tmp_path: Path) -> None:
    for block in _BLOCK.finditer(PAGES[page]):
        if block["kind"] == "toml":
            file = tmp_path / "shown.toml"
            file.write_text(block["text"], encoding="utf-8")
            assert toml_text.read(file, TraceqError)


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_is_python(page: str) -> None:
    for block in _BLOCK.finditer(PAGES[page]):
        if block["kind"] in ("python", "py"):
            compile(block["text"], page, "exec")


@pytest.mark.real
@pytest.mark.golden
def test_what_summary_says_of_replayed_graphs_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)

    text = " ".join(traceq("summary", "tests/data/graphs/conv").out.split())

    (said,) = re.findall(r"[\d,]+ of [\d,]+ replayed kernels .*? capture", text)
    assert_block("replayed", f"{said}\n")


@pytest.mark.real
def test_the_query_of_the_page_on_graphs_finds_the_ops_of_kernels() -> None:
    (sql,) = re.findall(r"```sql\n(.*?)```", PAGES["docs/cuda-graphs.md"], re.DOTALL)

    answer = traceq("query", ROOT / "tests" / "data" / "graphs" / "conv", sql)

    assert "convolution" in answer.out
    assert answer.status == 0


def test_the_pages_take_nothing_from_elsewhere() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))

    assert site["theme"]["font"] is False
    # Without one of our own, `offline` has each page load it from the network.
    (worker,) = site["extra"]["polyfills"]
    assert "iframe-worker" in worker
    assert (ROOT / "docs" / worker).is_file()


@pytest.mark.parametrize("page", PAGES)
def test_what_is_said_of_a_command_is_a_comment(page: str) -> None:
    loose = [
        line
        for block in _BLOCK.finditer(PAGES[page])
        if not (block["kind"] or block["mark"] or block["indented"])
        for line in block["text"].splitlines()
        if _COMMAND.match(line) and re.search(r"\S {2,}[^#\s\\]", line)
    ]

    assert loose == []
