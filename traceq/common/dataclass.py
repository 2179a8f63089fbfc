"""Dataclasses that cost next to nothing to declare.

The standard decorator writes and compiles six methods for every class, a millisecond in
all: for the classes that lint needs, as long as Polars takes to start. Here all classes
share their methods. The rest is as usual: ``fields``, ``replace`` and ``asdict`` work,
and a usual dataclass may inherit from one of these, as a pack's rule does.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import Field, dataclass  # to a type checker, the standard one
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        eq: bool = True,
        repr: bool = True,  # noqa: A002 - the standard one calls it so
        kw_only: bool = False,
    ) -> type | Callable[[type], type]:
        """Make a dataclass of a class."""

        def declare(cls: type) -> type:
            return _declare(cls, frozen=frozen, eq=eq, shown=repr, named=kw_only)

        return declare if cls is None else declare(cls)


__all__ = ["dataclass"]


@dataclasses.dataclass(init=False, repr=False, eq=False)
class _Usual:
    """A usual one, for what ``dataclasses`` looks for in all of them."""

    field: int


@dataclasses.dataclass(init=False, repr=False, eq=False, frozen=True)
class _Frozen:
    """The same of those that are frozen."""


# Neither is in the stubs.
_PARAMS = {
    False: _Usual.__dataclass_params__,  # type: ignore[attr-defined]
    True: _Frozen.__dataclass_params__,  # type: ignore[attr-defined]
}
_IS_FIELD = dataclasses.fields(_Usual)[0]._field_type  # type: ignore[attr-defined]  # noqa: SLF001


class _Declared:
    """Facts about a class that the shared methods use."""

    def __init__(self, cls: type, fields: dict[str, Field[Any]]) -> None:
        self.names = tuple(fields)
        self.in_order = tuple(name for name, one in fields.items() if not one.kw_only)
        self.known = frozenset(fields)
        missing = dataclasses.MISSING
        self.defaults = {
            name: one.default
            for name, one in fields.items()
            if one.default is not missing
        }
        self.factories: list[tuple[str, Callable[[], Any]]] = [
            (name, one.default_factory)
            for name, one in fields.items()
            if one.default_factory is not missing
        ]
        self.shown = [name for name, one in fields.items() if one.repr]
        compared = [name for name, one in fields.items() if one.compare]
        self.values = attrgetter(*compared) if compared else type
        self.after: Callable[[object], None] | None = getattr(
            cls, "__post_init__", None
        )


def _declare(cls: type, *, frozen: bool, eq: bool, shown: bool, named: bool) -> type:
    """Give a class its fields, and the methods that all share."""
    fields: dict[str, Field[Any]] = {}
    for base in cls.__mro__[:0:-1]:
        fields |= base.__dict__.get("__dataclass_fields__", {})
    # Not by inspect, which takes as long to import as twenty classes to declare. From
    # Python 3.10 on these are the class's own, never those of a base.
    own = cls.__annotations__
    for name, annotation in own.items():
        if not str(annotation).startswith("ClassVar"):
            fields[name] = _field(cls, name, annotation, named=named)
    declared = _Declared(cls, fields)
    given = {
        "_declared": declared,
        "__dataclass_fields__": fields,
        "__dataclass_params__": _PARAMS[frozen],
        "__match_args__": declared.in_order,
        "__init__": _init,
        "__replace__": dataclasses.replace,
    }
    if frozen:
        given |= {"__setattr__": _set, "__delattr__": _delete}
    if shown and "__repr__" not in cls.__dict__:
        given["__repr__"] = _repr
    if eq and "__eq__" not in cls.__dict__:
        given |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
    for name, value in given.items():
        setattr(cls, name, value)
    return cls


def _field(cls: type, name: str, annotation: object, *, named: bool) -> Any:  # noqa: ANN401
    """Return a field as ``dataclasses`` describes it; the class keeps its default."""
    value = cls.__dict__.get(name, dataclasses.MISSING)
    found: Any = value
    if not isinstance(value, dataclasses.Field):
        found = dataclasses.field(default=value)
    elif value.default is not dataclasses.MISSING:
        setattr(cls, name, value.default)
    else:
        delattr(cls, name)
    found.name, found.type, found.kw_only = name, annotation, named
    found._field_type = _IS_FIELD  # noqa: SLF001 - as the standard decorator does
    return found


def _init(self: Any, /, *values: object, **named: object) -> None:  # noqa: ANN401
    declared: _Declared = self._declared
    state = self.__dict__
    state.update(declared.defaults)
    state.update(zip(declared.in_order, values, strict=False))
    state.update(named)
    for name, make in declared.factories:
        if name not in state:
            state[name] = make()
    if (
        len(state) != len(declared.names)
        or len(values) > len(declared.in_order)
        or not declared.known.issuperset(named)
        or not named.keys().isdisjoint(declared.in_order[: len(values)])
    ):
        takes = f"{type(self).__qualname__}({', '.join(declared.names)})"
        msg = f"{takes} was given {len(values)} values and {sorted(named)}"
        raise TypeError(msg)
    if declared.after is not None:
        declared.after(self)


def _set(_self: object, name: str, _value: object) -> None:
    msg = f"cannot assign to field {name!r}"
    raise dataclasses.FrozenInstanceError(msg)


def _delete(_self: object, name: str) -> None:
    msg = f"cannot delete field {name!r}"
    raise dataclasses.FrozenInstanceError(msg)


def _repr(self: Any) -> str:  # noqa: ANN401
    shown = (f"{name}={getattr(self, name)!r}" for name in self._declared.shown)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: Any) -> bool:  # noqa: ANN401
    if other.__class__ is not self.__class__:
        return NotImplemented
    values = self._declared.values
    return bool(values(self) == values(other))


def _hash(self: Any) -> int:  # noqa: ANN401
    return hash(self._declared.values(self))
