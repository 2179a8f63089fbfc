"""HTML page around its sections: one file without external resources.

Everything that a template shows is text: Jinja2 escapes it, and characters that act
instead of being seen are written out. The page's policy allows its own styles and
scripts by their hashes, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import orjson

from traceq import __version__
from traceq.common.safe_text import printable
from traceq.report.page.keys import keys_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jinja2 import Environment

    from traceq.report.page.section import Link, Section

_FIRST = "base"


def render(title: str, sections: Sequence[Section], up: Link | None = None) -> str:
    """Return the page with these sections, in this order, below the link to another."""
    from markupsafe import Markup  # noqa: PLC0415 - only where a page is written

    environment = _environment()
    styles, scripts = _assets(".css"), _assets(".js")
    text = environment.get_template("page.html").render(
        title=title,
        up=up,
        policy=_policy(styles, scripts),
        styles=[Markup(style) for style in styles],  # noqa: S704 - our own
        scripts=[Markup(script) for script in scripts],  # noqa: S704 - our own
        sections=[
            (
                section,
                Markup(_body(environment, section)),  # noqa: S704 - Jinja2 escaped it
                Markup(_json(section.data)) if section.data else None,  # noqa: S704
            )
            for section in sections
        ],
        contents=_contents(sections),
        keys=keys_of(section.part for section in sections if section.data),
        version=__version__,
    )
    return text + "\n"


def _contents(sections: Sequence[Section]) -> list[Section]:
    """Return the entries of the contents, without sections that each recording has."""
    titles = Counter(section.title for section in sections)
    return [section for section in sections if titles[section.title] == 1]


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415

    return Environment(
        loader=PackageLoader("traceq.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _visible(value: object) -> object:
    """Return a text without characters that act instead of being seen."""
    # Markup is a str, too, but what it was made of was seen already.
    return printable(value) if type(value) is str else value


def _body(environment: Environment, section: Section) -> str:
    template = environment.get_template(section.template)
    return template.render(key=section.key, **section.context)


@cache
def _assets(kind: str) -> tuple[str, ...]:
    """Return the styles or the scripts, the one that others build on first."""
    folder = resources.files("traceq.report.page") / "assets"
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(kind))
    names.sort(key=lambda name: name != f"{_FIRST}{kind}")
    return tuple((folder / name).read_text(encoding="utf-8") for name in names)


def _policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    parts = ("style-src", styles), ("script-src", scripts)
    allowed = "".join(
        f"; {what} {' '.join(map(_hash, texts))}" for what, texts in parts
    )
    return f"default-src 'none'{allowed}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest())
    return f"'sha256-{digest.decode()}'"


def _json(data: Mapping[str, object]) -> str:
    """Return JSON that cannot end the element it stands in."""
    content = orjson.dumps(_all_visible(data)).decode()
    return content.replace("<", r"\u003c")


def _all_visible(value: Any) -> Any:  # noqa: ANN401 - whatever JSON can be
    """Return data whose texts are without characters that act."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): _all_visible(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_all_visible(entry) for entry in value]
    return value
