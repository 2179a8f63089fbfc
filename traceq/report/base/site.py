"""Address of the documentation on the web."""

from __future__ import annotations

# The one place that says it: `make docs` and SARIF's links take it from here, and a
# test holds pyproject.toml to it. OWNER is replaced when there is a site.
SITE = "https://OWNER.github.io/traceq"


def rule_address(code: str) -> str:
    """Return the address of the page of one of traceq's own rules."""
    return f"{SITE}/rules/{code}.html"
