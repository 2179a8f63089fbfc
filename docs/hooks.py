"""What the pages on the web have beside the files of this folder.

A page for each rule, made of the rule itself; the texts that lie elsewhere in the
repository, with their links set right; and the reports of the gallery.
"""

from __future__ import annotations

import json
import os
import re
from importlib import import_module
from pathlib import Path
from string import digits
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

from traceq.api.job import job
from traceq.api.lint import lint
from traceq.api.sweep_report import ReportOptions, sweep_report
from traceq.common.import_folder import mount
from traceq.inputs.labels import labelled
from traceq.linter.pack import load_rules
from traceq.report import rule_pages
from traceq.report.base.site import SITE
from traceq.report.page.build import report_page
from traceq.report.page.page import render
from traceq.report.page.parts.sweep_table import sections
from traceq.report.page.views import ranks_page
from traceq.testing import draw
from traceq.testing.examples import DEVICE

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

    from traceq.linter.pack import Rules
    from traceq.model.lint_report import RecordingReport

ROOT = Path(__file__).parent.parent
# Texts that lie elsewhere in the repository, and the page of each.
ELSEWHERE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "collect/README.md": "collect.md",
    "rules/README.md": "writing-rules.md",
    "README.md": "index.md",
}
_REPORT = re.compile(r"\]\(gallery/(\w+)\.html\)")
_JOB = "job"
"""The job of RNK001's first example: a drawing, as no recorded job is committed."""
_FOLDERS = {
    "tutorial": "fixtures/tutorial/0",
    "serving": "tests/data/serving/host_gap_overlapped_vllm.json.gz",
}
"""Recordings of reports that are not called like their fixture."""
_SWEEPS = {
    "attention_sweep": "fixtures/sweeps/attention",
    "sizes_sweep": "fixtures/sweeps/sizes",
}
"""Folders of traceq sweep, whose reports have charts instead of a step."""
_SWEEP = "sweep"
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the address of the site from where SARIF's links have it."""
    config.site_url = f"{SITE}/"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of rules and of texts that lie elsewhere."""
    rules = load_rules()
    for code, rule in rules.items():
        title, _, rest = rule_pages.page(rule).partition("\n")
        text = f"{title}\n\n{_family(code, rules)}\n{rest}"
        files.append(File.generated(config, f"rules/{code}.md", content=text))
    for source, page in ELSEWHERE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        text = _relinked(text, Path(source).parent, Path(page))
        files.append(File.generated(config, page, content=text))
    gallery = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    mount(ROOT / "docs", "_docs_of_traceq")
    thumbnail = import_module("_docs_of_traceq.thumbnails").thumbnail
    for name in dict.fromkeys(_REPORT.findall(gallery)):
        if name in _SWEEPS:
            page = _sweep_page(name)
            files.append(File.generated(config, f"gallery/{name}.html", content=page))
            continue
        page, outcome = _report(name)
        files.append(File.generated(config, f"gallery/{name}.html", content=page))
        picture = f"gallery/{name}.svg"
        files.append(File.generated(config, picture, content=thumbnail(outcome)))
    return files


def on_post_build(config: MkDocsConfig) -> None:
    """Take the picture of the front page again, of the gallery's own report."""
    site = Path(config.site_dir)
    take = import_module("_docs_of_traceq.picture").take
    take(site / "gallery" / "copies.html", site / "images" / "report.png")


def _family(code: str, rules: Rules) -> str:
    """Return links to all rules, and to those of the same family."""
    family = code.rstrip(digits)
    links = [
        f"**{other}**" if other == code else f"[{other}]({other}.md)"
        for other in rules
        if other.rstrip(digits) == family
    ]
    return " · ".join(["[All rules](../rules.md)", *links])


def _report(name: str) -> tuple[str, RecordingReport]:
    """Return a report of the gallery, and the outcome that its thumbnail draws."""
    if name == _JOB:
        with TemporaryDirectory() as folder:
            ranks = job(_drawn_job(Path(folder)), cache=False)
            outcome = lint(Path(folder) / "rank0.json").report.outcomes[0]
            return ranks_page(ranks.analysis, ranks.report), outcome
    if name == _SWEEP:
        paths, labels = labelled(None, None, ROOT / "fixtures/sweep/runs.toml")
        result = lint(paths, labels=labels)
        own = [labels.of(Path(one.name)) for one in result.recordings]
        page = report_page(result.recordings, result.report, None, own)
        return page, result.report.outcomes[-1]
    result = lint(ROOT / _FOLDERS.get(name, f"fixtures/{name}"))
    outcomes = result.report.outcomes
    timed = next((one for one in outcomes if one.bound is not None), outcomes[0])
    return report_page(result.recordings, result.report), timed


def _sweep_page(name: str) -> str:
    """Return the report of a recorded sweep."""
    shown = sweep_report(ROOT / _SWEEPS[name], ReportOptions(cache=False))
    return render(f"Sweep {shown.sweep.folder.name}", sections(shown))


def _drawn_job(folder: Path) -> list[Path]:
    """Write the traces of the ranks of a drawn job, and return their files."""
    (example, *_) = load_rules()["RNK001"].examples
    files = []
    for rank, drawing in enumerate(example.ranks):
        about = {"rank": rank, "world_size": len(example.ranks), "backend": "nccl"}
        files.append(folder / f"rank{rank}.json")
        text = json.dumps(draw(drawing, example.args, DEVICE, about))
        files[-1].write_text(text, encoding="utf-8")
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Set links right that leave this folder; name the rules' pages."""
    name = page.file.src_uri
    if name not in ELSEWHERE.values() and not name.startswith("rules/"):
        markdown = _relinked(markdown, Path("docs") / Path(name).parent, Path(name))
    if name == "rules.md":
        row = re.compile(r"^\| ([A-Z]{3}\d{3}) \|", re.MULTILINE)
        markdown = row.sub(r"| [\1](rules/\1.md) |", markdown)
    return markdown


def _relinked(text: str, folder: Path, page: Path) -> str:
    """Return a text of ``folder`` with the links that ``page`` needs."""

    def link(found: re.Match[str]) -> str:
        target = os.path.normpath(folder / found[1])
        anchor = found[2] or ""
        if target in ELSEWHERE:
            inside = ELSEWHERE[target]
        elif target.startswith("docs/"):
            inside = target.removeprefix("docs/")
        else:
            # A file of the code: named, not linked.
            return f"] (`{target}`)"
        return f"]({os.path.relpath(inside, page.parent)}{anchor})"

    return _LINK.sub(link, text)
