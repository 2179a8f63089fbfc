"""One page of HTML that loads nothing else: no file, no network."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_SCRIPTED = f"{_POLICY}; script-src 'unsafe-inline'"


def page(title: str, style: str, body: Iterable[str], script: str = "") -> str:
    """Return a page; its body is HTML, its title is text."""
    policy = _SCRIPTED if script else _POLICY
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style></head><body>",
            *body,
            *([f"<script>{script}</script>"] if script else ()),
            "</body></html>",
            "",
        ]
    )
