"""Integration of coding agents: a guide, a skill to install and an MCP server."""

from __future__ import annotations
