"""Completion of rule codes, without slow imports: a shell asks at every key."""

from __future__ import annotations

from collections.abc import Iterator


def codes(incomplete: str) -> Iterator[tuple[str, str]]:
    """Yield the codes of rules that begin like this, with their names.

    The last of several codes, as in ATT001,SYN, is completed, small letters as such.
    """
    before, comma, last = incomplete.rpartition(",")
    from traceq.report.rule_index import listed

    for code, card in listed().items():
        if code.startswith(last.upper()):
            written = code.lower() if last.islower() else code
            yield before + comma + written, card.name()
