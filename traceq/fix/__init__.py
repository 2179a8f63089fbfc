"""Findings as source edits: exactly the line or the constructor that a finding names.

An edit is text in, text out: the program is parsed and never run. What cannot be edited
safely is refused with one sentence.
"""

from __future__ import annotations
