"""Upper estimate of a text's tokens, without the vocabulary of any model."""

from __future__ import annotations

import re

# As tokenizers split it: words, digits by three, punctuation, space.
_PIECE = re.compile(r" ?[A-Z]?[a-z]+| ?[A-Z]+|\d{1,3}|\s+|[ -~]|.", re.DOTALL)
# Letters of a token at least, on average over the words of a report: names of kernels
# are split into shorter ones than English. Heuristic, compared with cl100k_base.
_LETTERS = 5


def most_tokens(text: str) -> int:
    """Return a number of tokens that a text does not exceed in cl100k_base.

    >>> most_tokens("RMSNorm runs as 8 kernels")
    8
    """
    return sum(_piece(match) for match in _PIECE.findall(text))


def _piece(part: str) -> int:
    if not part.isascii():
        return len(part.encode(errors="replace"))
    letters = part.strip()
    return max(1, -(-len(letters) // _LETTERS)) if letters.isalpha() else 1


def cut(text: str, most: int) -> str:
    """Return a text of at most this many tokens, which ends in ``…`` if it was cut."""
    if most_tokens(text) <= most:
        return text
    words = text.split(" ")
    while words and most_tokens(" ".join([*words, "…"])) > most:
        words.pop()
    return " ".join([*words, "…"])
