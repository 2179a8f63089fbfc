"""What the pages on the web have beside the files of this folder.

A page for each rule, made of the rule itself; the texts that lie elsewhere in the
repository, with their links set right; and the reports of the gallery.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from string import digits
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

from traceq.api.lint import lint
from traceq.linter.pack import load_rules
from traceq.report import rule_pages
from traceq.report.base.site import SITE
from traceq.report.page.build import report_page

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

    from traceq.linter.pack import Rules

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
_TUTORIAL = "tutorial"  # its first state, of several
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
    shown = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    for name in _REPORT.findall(shown):
        path = f"gallery/{name}.html"
        files.append(File.generated(config, path, content=_report(name)))
    return files


def _family(code: str, rules: Rules) -> str:
    """Return links to all rules, and to those of the same family."""
    family = code.rstrip(digits)
    links = [
        f"**{other}**" if other == code else f"[{other}]({other}.md)"
        for other in rules
        if other.rstrip(digits) == family
    ]
    return " · ".join(["[All rules](../rules.md)", *links])


def _report(name: str) -> str:
    folder = ROOT / "fixtures" / (f"{name}/0" if name == _TUTORIAL else name)
    found = lint(folder)
    return report_page(found.recordings, found.report)


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
