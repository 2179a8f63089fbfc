"""Mutations of inputs: of bytes, of lines, and of what JSON and pickles hold."""

from __future__ import annotations

import copy
import gzip
import json
import pickle
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

_MOST = 6
# A text repeated over and over is the same at any size.
_LARGEST = 4 << 20
_WIDE = 64
_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 0.5, 1e-9, -0.0, 1e18, 1e308),
    *(float("nan"), float("inf"), 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1),
    *(-(2**63), 10**30, "", " ", "x", "0", "-1", "None", "nan", "é\u202e\x1b[31m"),
    *("a" * 3000, "[" * 300, [], [[]], [0], [-1, 2], [[1, 2], [3]], {}, {"a": []}),
    *("ProfilerStep#1", "ProfilerStep#-1", "kernel", "cpu_op", "cuda_runtime"),
    *("cudaDeviceSynchronize", "cudaGraphLaunch", "aten::mm", "train.py(3): f"),
    *("ncclDevKernel_AllReduce", "Memcpy DtoH (Device -> Pageable)", "nn.Module: A_0"),
)
_WORDS = (
    *(b"\n", b"\r", b"\0", b'"', b"'", b"{", b"}", b"[", b"]", b",", b"=", b"#"),
    *(b"0", b"-", b"9" * 400, b"1e999", b"NaN", b"null", b"\xff\xfe", b"\x80"),
    *(b"true", b"[[", b'"""', b"\\", b"\\u0000", b" " * 500, b"(" * 500, b"GiB"),
)

_TOKEN = re.compile(rb'"[^"\n]*"|[\w.-]+')
_LITERALS = (
    *(b"-1", b"0", b"1e400", b"nan", b"-inf", b"9" * 30, b"''", b'"x"', b'"*"'),
    *(b"[]", b"[[]]", b"{}", b"true", b"None", b"1979-05-27", b'["ALL"]', b'"\\u0000"'),
)


def bytes_of(rng: random.Random, content: bytes) -> bytes:
    """Return a content with some bytes changed, cut, repeated or put in."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, _MOST)):
        rng.choice(_BYTES)(rng, changed)
    return bytes(changed)


def _flip(rng: random.Random, content: bytearray) -> None:
    if content:
        content[rng.randrange(len(content))] = rng.randrange(256)


def _insert(rng: random.Random, content: bytearray) -> None:
    at = rng.randint(0, len(content))
    content[at:at] = rng.choice(_WORDS)


def _remove(rng: random.Random, content: bytearray) -> None:
    at = rng.randint(0, len(content))
    del content[at : at + rng.randint(1, _WIDE)]


def _repeat(rng: random.Random, content: bytearray) -> None:
    at = rng.randint(0, len(content))
    part = content[at : at + rng.randint(1, _WIDE)]
    content[at:at] = part * rng.choice((1, 2, 50))


def _cut(rng: random.Random, content: bytearray) -> None:
    # Mostly near the end: of what is cut early little is left to look at.
    del content[int(len(content) * rng.random() ** 0.1) :]


_BYTES: tuple[Callable[[random.Random, bytearray], None], ...] = (
    *(_flip, _flip, _insert, _remove, _repeat, _cut),
)


def lines_of(rng: random.Random, content: bytes) -> bytes:
    """Return a text whose lines or numbers are swapped, repeated, joined or changed."""
    lines = content.split(b"\n")
    for _ in range(rng.randint(1, _MOST)):
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        kind = rng.randrange(5)
        if kind == 0:
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == 1:
            lines[at:at] = [lines[other]] * rng.choice((1, 3, 200))
        elif kind == 2:
            lines[at] += lines[other] * rng.choice((1, 100))
        elif kind == 3:
            lines[at] = bytes_of(rng, lines[at])
        else:
            odd = str(rng.choice(_ODD)).encode(errors="replace")
            lines[at] = _other_number(rng, lines[at], odd)
        if sum(map(len, lines)) > _LARGEST:
            break
    return b"\n".join(lines)[:_LARGEST]


def tokens_of(rng: random.Random, content: bytes) -> bytes:
    """Return a text in which a word, a number or a string is another one."""
    for _ in range(rng.choice((1, 1, 2))):
        tokens = list(_TOKEN.finditer(content))
        if not tokens:
            break
        old = rng.choice(tokens)
        new = rng.choice((rng.choice(tokens)[0], rng.choice(_LITERALS)))
        content = content[: old.start()] + new + content[old.end() :]
    return content


def text_of(rng: random.Random, content: bytes) -> bytes:
    """Return a text with another grammar, other lines, or mostly just other words."""
    return rng.choice((tokens_of, tokens_of, tokens_of, lines_of, bytes_of))(
        rng, content
    )


def _other_number(rng: random.Random, line: bytes, odd: bytes) -> bytes:
    digits = [at for at, byte in enumerate(line) if chr(byte).isdigit()]
    if not digits:
        return line + odd
    at = rng.choice(digits)
    return line[:at] + odd + line[at + 1 :]


def values_of(rng: random.Random, document: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return a document in which some values are odd, moved, repeated or missing."""
    changed = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 30))):
        holder = _somewhere(rng, changed)
        if holder:
            _change(rng, holder, changed)
    return changed


def _somewhere(rng: random.Random, document: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return a list or dict within the document, deeper ones as likely as its top."""
    result = document
    for _ in range(rng.choice((1, 2, 2, 3, 3, 4, 6))):
        inner = [each for each in _values(result) if isinstance(each, (dict, list))]
        if not inner:
            break
        result = rng.choice(inner)
    return result


def _values(holder: Any) -> Iterator[Any]:  # noqa: ANN401 - any JSON
    yield from holder.values() if isinstance(holder, dict) else holder


def _change(rng: random.Random, holder: Any, document: Any) -> None:  # noqa: ANN401
    keys = list(holder) if isinstance(holder, dict) else range(len(holder))
    key = rng.choice(keys)
    kind = rng.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder[key:key] = [holder[key]] * rng.choice((1, 2, 40))
    elif kind == 2 and isinstance(holder, list):
        rng.shuffle(holder)
    elif kind == 3:
        other = _somewhere(rng, document)
        if other:
            holder[key] = copy.deepcopy(rng.choice(list(_values(other))))
    elif kind == 4 and isinstance(holder[key], (int, float)):
        holder[key] = _near(rng, holder[key])
    elif kind == 5 and isinstance(holder, dict):
        holder[str(rng.choice(_ODD))] = holder.pop(key)
    else:
        holder[key] = copy.deepcopy(rng.choice(_ODD))


def _near(rng: random.Random, number: float) -> float:
    factor = rng.choice((0, -1, 0.5, 2, 1000, 1e6, 1e12))
    shifted = number + rng.choice((-1000, -1, 1, 1000, 10**9))
    return rng.choice((number * factor, shifted))


def same_values_of(rng: random.Random, document: Any) -> Any:  # noqa: ANN401
    """Return a document that shares and holds parts of itself, as a pickle may."""
    changed = values_of(rng, document)
    for _ in range(rng.randint(1, 3)):
        holder, part = _somewhere(rng, changed), _somewhere(rng, changed)
        if isinstance(holder, list):
            holder += [part] * rng.choice((1, 5, 500))
        elif holder:
            holder[rng.choice(list(holder))] = part
    return changed


def json_of(rng: random.Random, document: Any) -> bytes:  # noqa: ANN401 - any JSON
    """Return a mutated document as the text of a file, which may be mutated, too."""
    kind = rng.random()
    if kind < 0.75:
        document = values_of(rng, document)
    text = json.dumps(document, indent=rng.choice((None, 1))).encode()
    return bytes_of(rng, text) if kind > 0.65 else text


def pickle_of(rng: random.Random, document: Any) -> bytes:  # noqa: ANN401
    """Return a mutated document as a pickle, which may be mutated, too."""
    kind = rng.random()
    if kind < 0.7:
        document = values_of(rng, document)
    elif kind < 0.85:
        document = same_values_of(rng, document)
    content = pickle.dumps(document, protocol=rng.randint(0, 5))
    return bytes_of(rng, content) if kind > 0.82 else content


def packed(rng: random.Random, content: bytes) -> bytes:
    """Return a content gzipped, at times with damage."""
    result = gzip.compress(content, 1, mtime=0)
    return bytes_of(rng, result) if rng.random() < 0.2 else result
