"""Wrappers around methods of torch, removed at the end."""

from __future__ import annotations

import functools
from typing import Any, Callable


def wrap(owner: Any, name: str, around: Callable[..., Any]) -> Callable[[], None]:
    """Have ``around(method, *arguments)`` called in place of a method.

    Return what takes it back. Where another has wrapped the method after us, ours stays
    below it: taking it back would take the other's, too.
    """
    method = getattr(owner, name)

    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(method, *args, **kwargs)

    setattr(owner, name, wrapped)

    def undo() -> None:
        if getattr(owner, name, None) is wrapped:
            setattr(owner, name, method)

    return undo
