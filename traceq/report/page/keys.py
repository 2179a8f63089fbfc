"""Keys of the page's pictures, as its help lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Keys = tuple[tuple[str, ...], str]
"""The keys, and what each of them does."""
_PAGE: tuple[Keys, ...] = (
    (("/",), "search: in the picture, the flame graph or the table that is nearest"),
    (("?",), "this list"),
)
_PARTS: dict[str, tuple[str, tuple[Keys, ...]]] = {
    "timeline": (
        "In the picture",
        (
            (("W", "S"), "zoom in, out, where the mouse is"),
            (("A", "D"), "move left, right"),
            (("←", "→", "↑", "↓"), "go from slice to slice"),
            (("Enter",), "zoom to the slice"),
            (("M",), "select the slice as a range, and sum it up; Shift: one more"),
            (("F",), "zoom to the range"),
            (("N",), "next slice that was found; Shift: the one before"),
            (("Home",), "the whole window"),
            (("Esc",), "clear search, range and mark"),
        ),
    ),
    "flame": (
        "In the flame graph",
        (
            (("←", "→", "↑", "↓"), "go from frame to frame"),
            (("Enter",), "zoom to the frame"),
            (("C",), "callers and callees of the function, wherever it is called"),
            (("N",), "next frame that was found; Shift: the one before"),
            (("Home", "Esc"), "the whole step"),
        ),
    ),
    "memory": (
        "In the picture of memory",
        ((("←", "→"), "go from moment to moment; Page Up and Page Down: by 20"),),
    ),
}


def keys_of(parts: Iterable[str]) -> list[tuple[str, tuple[Keys, ...]]]:
    """Return the keys of the parts that a page has, by title; none without such."""
    present = [_PARTS[part] for part in dict.fromkeys(parts) if part in _PARTS]
    return [("Everywhere", _PAGE), *present] if present else []
