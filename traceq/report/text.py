"""What all reports share: safe text, short names, and rich tables as strings."""

from __future__ import annotations

import io
import re
import unicodedata
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

_INVISIBLE = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
_ANONYMOUS = "(anonymous namespace)::"
_NAMESPACES = re.compile(r"\b(at::native|at::cuda|c10|std|pytorch_flash|cutlass|cub)::")
_MOST_SHAPES = 3


def printable(text: str) -> str:
    r"""Return a text that cannot move the cursor, ring the bell or hide itself.

    Names in a trace come from strangers, and terminals obey control codes.

    >>> print(printable("aten::mm"), printable("\x1b[2Jgone"))
    aten::mm \x1b[2Jgone
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in _INVISIBLE
        else character
        for character in text
    )


def short_kernel(name: str) -> str:
    """Return a kernel's name without what C++ adds to it.

    >>> short_kernel("void at::native::reduce_kernel<512, 1, X<float> >(X<float>)")
    'reduce_kernel<512, 1, X<float>>'
    """
    name = name.replace(_ANONYMOUS, "").removeprefix("void ")
    depth = 0
    for at, character in enumerate(name):
        if character == "<":
            depth += 1
        elif character == ">":
            depth -= 1
        elif character == "(" and depth == 0 and not name.startswith("Mem"):
            name = name[:at]
            break
    return printable(_NAMESPACES.sub("", name).replace(" >", ">"))


def shapes(dims: Sequence[Sequence[int] | None] | None) -> str:
    """Return the shapes of an op's tensors, those that say something.

    >>> shapes([[8, 64], [], [64, 32]])
    '[8,64] [64,32]'
    """
    known = ["[" + ",".join(map(str, sizes)) + "]" for sizes in dims or [] if sizes]
    text = " ".join(known[:_MOST_SHAPES])
    return f"{text} …" if len(known) > _MOST_SHAPES else text


def place(file: str | None, line: int | None, function: str | None) -> str:
    """Return where something is in the user's source, empty if that is not known.

    >>> place("model.py", 42, "forward")
    'model.py:42 forward'
    """
    if not file:
        return ""
    return printable(f"{file}:{line}" + (f" {function}" if function else ""))


def rendered(parts: Sequence[RenderableType], *, width: int, color: bool) -> str:
    """Return rich renderables as one text."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
