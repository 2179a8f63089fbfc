"""Removes secrets, user names and home directories from what is stored."""

from __future__ import annotations

import os
import re

REDACTED = "[redacted]"

_SECRET_NAME = re.compile(
    r"(?i)(token|secret|passw(or)?d|passphrase|credential|api[-_]?key|access[-_]?key"
    r"|auth|private[-_]?key|(^|[-_.])key$|(^|[-_.])pwd$)"
)
_HARMLESS_NAME = re.compile(
    r"(?i)(tokenizer|tokens|max[-_]?token|num[-_]?token|token[-_]?(count|len|size|dim)"
    r"|author|key[-_]?(dim|size|len))"
)
_SECRET_VALUE = re.compile(
    r"(hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}"
    r"|github_pat_[A-Za-z0-9_]{8,}|glpat-[A-Za-z0-9_-]{8,}|AKIA[A-Z0-9]{8,}"
    r"|xox[abprs]-[A-Za-z0-9-]{8,}|AIza[A-Za-z0-9_-]{20,}|eyJ[A-Za-z0-9_-]{16,}\.\S+"
    r"|\b[0-9a-f]{40}\b)"
)
_LOGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^/@\s]+@")
_ASSIGNMENT = re.compile(r"(?s)(?P<name>[-+\w.]+)=(?P<value>.*)")


def arguments(words: list[str]) -> list[str]:
    """Return a command line without the values that look like secrets."""
    shown = []
    hide_next = False
    for word in words:
        if hide_next and not word.startswith("-"):
            shown.append(REDACTED)
            hide_next = False
            continue
        hide_next = word.startswith("-") and "=" not in word and _is_secret(word)
        shown.append(text(word))
    return shown


def text(word: str) -> str:
    """Return one word without the parts that look like secrets."""
    found = _ASSIGNMENT.fullmatch(word)
    if found and found["value"] and _is_secret(found["name"]):
        return f"{found['name']}={REDACTED}"
    word = _LOGIN.sub(rf"\g<scheme>{REDACTED}@", word)
    return _SECRET_VALUE.sub(REDACTED, word)


def _is_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(name)) and not _HARMLESS_NAME.search(name)


def path(value: str, *, cwd: str, home: str) -> str:
    """Return a path relative to the working directory or ``~``, without user names."""
    for base, short in ((cwd, "."), (home, "~")):
        if base and base != os.sep:
            if value == base:
                return short
            if value.startswith(base + os.sep):
                rest = value[len(base) + 1 :]
                return rest if short == "." else short + os.sep + rest
    if os.sep not in value:
        return value
    user = os.path.basename(home)
    parts = value.split(os.sep)
    return os.sep.join("[user]" if user and part == user else part for part in parts)


def paths(word: str, *, cwd: str, home: str) -> str:
    """Return a word with the paths in it shortened, also after ``=`` and ``:``."""
    parts = re.split(r"([=:,])", word)
    return "".join(path(part, cwd=cwd, home=home) for part in parts)
