"""Text that all reports share: short names, and rich tables as strings."""

from __future__ import annotations

import io
import re
import textwrap
from itertools import groupby
from typing import TYPE_CHECKING

from traceq.common.safe_text import printable
from traceq.common.words import at_function, at_line, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from traceq.model.finding import Place

TIE = "\ue000"
"""A space at which no line is broken, and which is printed as any other."""

# A number and its unit stay on one line, and so do a step and its time.
_TIED = re.compile(r"(?<=\d) (?=(?:[nµm]?s|[KMGT]?i?B|[MGTP]?FLOP)\b|\d)")
_ANONYMOUS = "(anonymous namespace)::"
_NAMESPACES = re.compile(r"\b(at::native|at::cuda|c10|std|pytorch_flash|cutlass|cub)::")
_MOST_SHAPES = 3
# Words in the arguments of a kernel template that say what it computes.
_TELLING = re.compile(
    r"\b(cutlass_\d\w*|multiplies|divides|plus|minus|Copy|Sqrt|launch_\w+|\w+Ops"
    r"|\w*Functor\w*|\w*(?:_functor|Epilogue|KernelImpl)"
    r"|(?!gpu_kernel)\w+_kernel(?:_cuda|_impl)?)\b"
)


def short_kernel(name: str) -> str:
    """Return a kernel's name without what C++ adds to it.

    Of a template's arguments only those stay that say what it computes; the types are
    not among them.

    >>> short_kernel("void at::native::reduce_kernel<512, 1, sum_functor<float> >(int)")
    'reduce_kernel<sum_functor>'
    >>> short_kernel("void dgrad_engine<float, 512, 6>(int, float const*)")
    'dgrad_engine<float, 512, 6>'
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
    base, opening, arguments = name.partition("<")
    telling = dict.fromkeys(_TELLING.findall(arguments))
    if telling:
        name = f"{base}{opening}{', '.join(telling)}>"
    return printable(_NAMESPACES.sub("", name).replace(" >", ">"))


def shapes(dims: Sequence[Sequence[int] | None] | None) -> str:
    """Return the shapes of an op's tensors, those that say something.

    >>> shapes([[8, 64], [], [64, 32]]), shapes([[8], [8], [8], [64]])
    ('[8,64] [64,32]', '[8] ×3 [64]')
    """
    recorded = ["[" + ",".join(map(str, sizes)) + "]" for sizes in dims or [] if sizes]
    runs = [(shape, len(list(run))) for shape, run in groupby(recorded)]
    texts = [f"{shape} ×{count}" if count > 1 else shape for shape, count in runs]
    text = " ".join(texts[:_MOST_SHAPES])
    return f"{text} …" if len(texts) > _MOST_SHAPES else text


def place(file: str | None, line: int | None, function: str | None) -> str:
    """Return a place in the user's source, empty if that is not known.

    >>> place("model.py", 42, "forward")
    'model.py:42 forward'
    >>> place("train.py", None, "main")
    'train.py main'
    """
    if not file:
        return ""
    return printable(" ".join(filter(None, (at_line(file, line), function))))


def of_function(file: str | None, line: int | None, function: str | None) -> str:
    """Return a function by where it begins; empty if that is not known.

    >>> of_function("model.py", 42, "forward"), of_function("model.py", 42, None)
    ('forward (model.py:42)', 'model.py')
    """
    return printable(at_function(file, line, function))


def where(at: Place) -> str:
    """Return a place: the line if it is known, else the function, and the module.

    >>> from traceq.model.finding import Place
    >>> where(Place("model.py", 42, "forward", "Net_0", "call"))
    'model.py:42 forward in Net_0'
    >>> where(Place("model.py", 40, "forward", "Net_0")), where(Place(module="Net_0"))
    ('in forward (model.py:40) of Net_0', 'Net_0')
    >>> where(Place("model.py", 40, "forward", ends=48))
    'model.py:40-48 forward'
    >>> where(Place("model.py", 42, "forward", line_is="call", other_lines=2))
    'model.py:42 forward and 2 other lines'
    >>> where(Place("a.py", 31, "main", line_is="call", via="forward (timm/vit.py:9)"))
    'a.py:31 main via forward (timm/vit.py:9)'
    """
    source, module = _source(at), printable(at.module or "")
    if at.via:
        via = printable(f"via {at.via}")
        source = f"{source} {via}" if source else via
    if source.startswith("in "):
        return f"{source} of {module}" if module else source
    return f"{source} in {module}" if source and module else source or module


def at(place: Place) -> str:
    """Return a place as it follows a noun; empty if it is not known.

    >>> from traceq.model.finding import Place
    >>> at(Place("model.py", 42, "forward", line_is="call")), at(Place("a.py", 4, "f"))
    (' at model.py:42 forward', ' in f (a.py:4)')
    """
    text = where(place)
    return f" {text}" if text.startswith("in ") else f" at {text}" if text else ""


def _source(at: Place) -> str:
    """Return a line, or a function as a range or by where it begins."""
    if at.exact or not at.file:
        others = f" and {counted(at.other_lines, 'other line')}"
        text = place(at.source, at.line, at.function)
        return text + others if at.other_lines else text
    if at.lines and at.ends is not None:
        start, end = at.lines
        return place(f"{at.source}:{start}-{end}", None, at.function)
    text = of_function(at.source, at.line, at.function)
    return f"in {text}" if at.function else text


def tied(text: str) -> str:
    """Return a text in which a number and its unit stay on one line."""
    return _TIED.sub(TIE, text)


def wrapped(text: str, width: int, *, first: str = "", rest: str = "") -> list[str]:
    """Return a text in lines of a width, which begin with ``first`` and ``rest``.

    >>> wrapped("it takes 5.19 ms", 14, rest="  ")
    ['it takes', '  5.19 ms']
    """
    lines = textwrap.wrap(
        tied(text),
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
    )
    return [line.replace(TIE, " ") for line in lines]


def bold(text: str, *, color: bool) -> str:
    """Return a text in bold, where there is such a thing."""
    return f"\x1b[1m{text}\x1b[0m" if color else text


_STYLES = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "dim": "2"}


def styled(text: str, style: str, *, color: bool) -> str:
    r"""Return a text in a colour, or bold in it, where there is such a thing.

    >>> styled("+5", "red", color=True), styled("+5", "bold red", color=False)
    ('\x1b[31m+5\x1b[0m', '+5')
    """
    if not color or not text or not style:
        return text
    codes = [_STYLES.get(word, "1") for word in style.split()]
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m"


def rendered(parts: Sequence[RenderableType], *, width: int, color: bool) -> str:
    """Return rich renderables as one text."""
    from rich.console import Console  # noqa: PLC0415 - only for what is drawn

    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=color,
        # A kernel's console displays what it prints, and leaves the file empty.
        force_jupyter=False,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO
    text = text.replace(TIE, " ")
    return "\n".join(line.rstrip() for line in text.split("\n")[:-1]) + "\n"
