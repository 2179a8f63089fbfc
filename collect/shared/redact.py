"""Redaction of secrets, user names and home directories in stored text.

A secret is known by the name before it (``--token X``, ``HF_TOKEN=X``), by where it
stands (``Bearer X``, a login or a query in a URL), or by its form: prefixes that
services use, and long words that are random.
"""

from __future__ import annotations

import os
import re

REDACTED = "[redacted]"

_SECRET_NAME = re.compile(
    r"(?i)(token|secret|passw(or)?d|passphrase|credential|api[-_]?key|access[-_]?key"
    r"|auth|private[-_]?key|bearer|cookie|jwt|signature|session[-_]?id|webhook"
    r"|(^|[-_])(key|pwd|pass|pw|sig|sas|dsn)$)"
)
_HARMLESS_NAME = re.compile(
    r"(?i)(tokeni[sz]|tokens|(max|min|num|n|pad|eos|bos|sep|cls|unk|mask|stop|special"
    r"|image|video|audio|prompt|start|end|per|new|next|first|last|drop|merge)[-_]?token"
    r"|token[-_]?(count|len|size|dim|type|id|level|drop|merg|mix|prun|shift|weight|embed)"
    r"|author|secretar|auth[-_]?(type|method|mode)|key[-_]?(dim|size|len|val|bias|padding)"
    r"|(text|image|label|caption|sort|group|column|data|feature|target|input|output"
    r"|metric|monitor|cache|primary|hot|prompt|answer|query|index)[-_]?key$)"
)
# An option of this kind is on or off: the next word is not its value.
_SWITCH = re.compile(
    r"(?i)^-*(use|no|with|without|enable|disable|skip|require|is|has|add)[-_]"
)
_OPTION = re.compile(r"--[A-Za-z]")
_SECRET_VALUE = re.compile(
    r"(hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}"
    r"|github_pat_[A-Za-z0-9_]{8,}|gl(?:pat|ptt|dt)-[A-Za-z0-9_-]{8,}"
    r"|A[KS]IA[A-Z0-9]{8,}|xox[abeprs]-[A-Za-z0-9-]{8,}|AIza[A-Za-z0-9_-]{20,}"
    r"|ya29\.[A-Za-z0-9_-]{8,}|npm_[A-Za-z0-9]{20,}|pypi-[A-Za-z0-9_-]{20,}"
    r"|SG\.[A-Za-z0-9_-]{16,}|[rs]k_(?:live|test)_[A-Za-z0-9]{8,}|nvapi-[\w-]{20,}"
    r"|dop_v1_[a-f0-9]{20,}|dapi[a-f0-9]{30,}|r8_[A-Za-z0-9]{30,}|gsk_[A-Za-z0-9]{20,}"
    r"|lsv2_[a-z]{2}_\w{20,}|eyJ[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_.-]+"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z))",
    re.DOTALL,
)
# Keys of some services, and in a log the hashes of commits, files and kernels.
_HEX = re.compile(
    r"(?<![0-9A-Za-z])(?:[0-9a-f]{32}|[0-9a-f]{40}|[0-9a-f]{64})(?![0-9A-Za-z])"
)
_LOGIN = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]{0,20}://)[^/@\s\"']+@")
_QUERY = re.compile(r"(?P<url>\b[a-z][a-z0-9+.-]{0,20}://[^\s?#\"']*\?)[^\s#\"']+")
_SCHEME = re.compile(
    r"(?i)(?P<scheme>\b(?:bearer|basic|digest|negotiate)\s+)"
    r"(?![\[{(])(?=[^\s\"',;]{0,100}\d|[^\s\"',;]{16})[^\s\"',;]{4,}"
)
_HEADER = re.compile(
    r"(?i)(?P<name>\b(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?)[^\"'\n\r]+"
)
# A name and what is said of it, as in NAME=value, name: value and "name": "value".
_NAME = re.compile(r"(?<![\w.-])(?P<name>[\w.-]{1,100})[\"']?(?:=|:\s*)(?![/=:\s])")
_VALUE = re.compile(r"\"[^\"]{1,4000}\"|'[^']{1,4000}'|[^\s;&|,\"'})\]]{1,4000}")
# An option and its value inside of a word, as in sh -c "login --key X".
_INNER = re.compile(
    r"(?<!\S)(?P<option>--?[\w.-]{1,60})(?P<blank>\s+)(?P<value>[^\s;&|\"']{1,4000})"
)
_WORD = re.compile(r"[A-Za-z0-9]{20,}|[A-Za-z0-9+/_-]{40,}")
# A name and a text that is assigned to it, in a program.
_LITERAL = re.compile(
    r"(?P<name>[\w.-]{1,100})[\"']?\]?\s*[=:]\s*[rbfu]{0,2}"
    r"(?P<quote>[\"'])(?P<value>[^\"'\n]{4,4000})(?P=quote)"
)
# Names of what has a hash in a program.
_HASH_NAME = re.compile(r"(?i)md5|sha\d*|hash|digest|checksum|commit|revision|\brev\b")
# In a log a word alone: not a part of a path, of a kernel's name or of an address.
_LOG_WORD = re.compile(
    r"(?<![\w./\\:@#%+<-])(?=[A-Z0-9]{0,99}[a-z])(?=[a-z0-9]{0,99}[A-Z])"
    r"(?![A-Za-z0-9]{0,99}\dx\d)"
    r"[A-Za-z0-9]{20,}(?![\w./\\:(<+-])"
)
_USER_AND_PASSWORD = re.compile(r"(?P<user>[^:/\s]+:)[^/\s]+")
_USER = ("-u", "--user", "--proxy-user")
_SHORT_OPTION = "-p"
_NEXT_IS_SECRET = re.compile(r"(?i)(?:bearer|authorization:)$")
_DIGITS = 2
_LIKELY_SECRET = 8


def arguments(words: list[str]) -> list[str]:
    """Return a command line without the values that look like secrets."""
    shown: list[str] = []
    before = ""
    for word in words:
        shown.append(_argument(word, before))
        before = word
    return shown


def _argument(word: str, before: str) -> str:
    """Return a word of a command line; what comes before it may name it."""
    if before == _SHORT_OPTION and not word.isdigit():  # a port is a number
        return REDACTED
    if _takes_secret(before) and not _OPTION.match(word):
        return word if word.lower() == "bearer" else REDACTED
    if before in _USER and _USER_AND_PASSWORD.fullmatch(word):
        return _USER_AND_PASSWORD.sub(rf"\g<user>{REDACTED}", word)
    return text(word)


def _takes_secret(word: str) -> bool:
    if _NEXT_IS_SECRET.search(word):
        return True
    return (
        word.startswith("-")
        and "=" not in word
        and " " not in word
        and not _SWITCH.match(word)
        and _is_secret(word)
    )


def text(word: str) -> str:
    """Return words without the parts that look like secrets."""
    word = _INNER.sub(_inner_hidden, word)
    word = _HEX.sub(REDACTED, _credentials_hidden(word, in_log=False))
    return _WORD.sub(_random_hidden, word)


def _inner_hidden(match: re.Match[str]) -> str:
    shown = _argument(match["value"], match["option"])
    return match["option"] + match["blank"] + shown


def label(key: str, value: str) -> str:
    """Return the value of a label, unless its name or form is that of a secret."""
    return REDACTED if _is_secret(key) else text(value)


def log(lines: str) -> str:
    """Return lines of a log without what looks like a credential.

    Of random words those go that mix letters of both cases with digits: a log is full
    of hashes and addresses in one case, and of paths and kernels' names, which stay.
    """
    return _LOG_WORD.sub(_random_hidden, _credentials_hidden(lines, in_log=True))


def in_source(program: str) -> bool:
    """Return whether a program seems to have a credential among its texts.

    A hash is one only where it is a text of its own, and no name says what it is of:
    comments and addresses have those of commits, and programs those of files.
    """
    if _SECRET_VALUE.search(program) or _LOGIN.search(program):
        return True
    return any(_is_credential(match) for match in _LITERAL.finditer(program))


def _is_credential(match: re.Match[str]) -> bool:
    """Return whether what a program assigns to a name seems to be a credential."""
    name, value = match["name"], match["value"]
    if _HEX.fullmatch(value):
        return not _HASH_NAME.search(name)
    return _is_secret(name) and ("passw" in name.lower() or _is_random(value))


def _credentials_hidden(word: str, *, in_log: bool) -> str:
    word = _LOGIN.sub(rf"\g<scheme>{REDACTED}@", word)
    word = _QUERY.sub(rf"\g<url>{REDACTED}", word)
    word = _HEADER.sub(rf"\g<name>{REDACTED}", word)
    word = _SCHEME.sub(rf"\g<scheme>{REDACTED}", word)
    return _SECRET_VALUE.sub(REDACTED, _named_hidden(word, in_log=in_log))


def _named_hidden(word: str, *, in_log: bool) -> str:
    """Redact the values of names that look secret, wherever they stand."""
    parts: list[str] = []
    at = 0
    while match := _NAME.search(word, at):
        parts.append(word[at : match.end()])
        at = match.end()
        value = _VALUE.match(word, at) if _is_secret(match["name"]) else None
        if value and _hides(match["name"].lower(), value[0], in_log=in_log):
            quote = value[0][0] if value[0][0] in "\"'" else ""
            parts.append(quote + REDACTED + quote)
            at = value.end()
    return "".join(parts) + word[at:]


def _hides(name: str, value: str, *, in_log: bool) -> bool:
    if value.startswith(REDACTED[:-1]):
        return False
    if "pass" in name or "pwd" in name:
        return True
    # A log says much of tokens and keys, and little of it is a secret.
    return _looks_secret(value.strip("\"'")) if in_log or name == "key" else True


def _looks_secret(value: str) -> bool:
    return len(value) >= _LIKELY_SECRET and not re.fullmatch(
        r"[-+\d.,eE%]+|[A-Za-z]+|[<\[/].*|[A-Za-z_]\w*(?:\.\w+)+", value
    )


def _is_secret(name: str) -> bool:
    last = name.strip("-").rpartition(".")[2]
    return bool(_SECRET_NAME.search(last)) and not _HARMLESS_NAME.search(last)


def _random_hidden(match: re.Match[str]) -> str:
    return REDACTED if _is_random(match[0]) else match[0]


def _is_random(word: str) -> bool:
    """Return whether a long word changes between kinds of characters at random.

    Words of people, and names in programs, stay with one kind for a while.
    """
    letters = re.sub(r"[^A-Za-z0-9]", "", word)
    kinds = [
        "0" if letter.isdigit() else "a" if letter.islower() else "A"
        for letter in letters
    ]
    if kinds.count("0") < _DIGITS or len(set(kinds)) == 1:
        return False
    changes = sum(one != other for one, other in zip(kinds, kinds[1:]))
    likely = 0.38 if "a" in kinds and "A" in kinds else 0.25
    return changes >= likely * (len(kinds) - 1)


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


def folder(value: str, *, home: str) -> str:
    """Return a folder relative to ``~``, or its name alone: never an absolute path."""
    short = path(value, cwd="", home=home)
    return os.path.basename(short) or "." if os.path.isabs(short) else short
