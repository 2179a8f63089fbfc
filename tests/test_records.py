"""Dataclasses that share their methods are as the standard ones."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, field
from functools import cached_property
from typing import Any, ClassVar

import pytest

from traceq.common.dataclass import dataclass


@dataclass(frozen=True)
class Shared:
    """As declared with traceq's decorator."""

    kind: ClassVar[str] = "shared"
    name: str
    count: int = 1
    notes: dict[str, int] = field(default_factory=dict)
    unshown: int = field(default=0, repr=False, compare=False, metadata={"of": "it"})

    @cached_property
    def doubled(self) -> int:
        return 2 * self.count


@dataclasses.dataclass(frozen=True)
class Usual:
    """The same with the standard one."""

    kind: ClassVar[str] = "shared"
    name: str
    count: int = 1
    notes: dict[str, int] = field(default_factory=dict)
    unshown: int = field(default=0, repr=False, compare=False, metadata={"of": "it"})


@dataclass(frozen=True)
class Derived(Shared):
    """Adds a field."""

    more: tuple[int, ...] = ()


def described(cls: type[Shared | Usual]) -> list[tuple[Any, ...]]:
    return [
        (one.name, one.type, one.default, one.default_factory, one.repr, one.compare)
        for one in dataclasses.fields(cls)
    ]


def test_it_has_the_fields_of_the_standard_one() -> None:
    assert described(Shared) == described(Usual)


def test_it_is_shown_as_the_standard_one() -> None:
    shown = repr(Usual("a", 2)).replace("Usual", "Shared")
    assert repr(Shared("a", count=2)) == shown


def test_defaults_are_filled_in() -> None:
    one = Shared("a")
    assert (one.count, one.notes, one.unshown) == (1, {}, 0)


def test_each_gets_its_own_from_a_factory() -> None:
    assert Shared("a").notes is not Shared("a").notes


def test_equal_fields_are_equal_and_hash_alike() -> None:
    @dataclass(frozen=True)
    class Pair:
        left: int
        right: int

    assert Pair(1, 2) == Pair(1, 2) != Pair(1, 3)
    assert hash(Pair(1, 2)) == hash(Pair(1, 2))
    assert len({Pair(1, 2), Pair(1, 2), Pair(2, 1)}) == 2


def test_what_is_not_compared_does_not_matter() -> None:
    assert Shared("a", unshown=1) == Shared("a", unshown=2)


def test_another_class_with_the_same_fields_is_not_equal() -> None:
    assert Derived("a") != Shared("a")


def test_without_eq_only_itself_is_equal() -> None:
    @dataclass(frozen=True, eq=False)
    class One:
        name: str

    assert One("a") != One("a")


def test_it_cannot_be_changed() -> None:
    one: Any = Shared("a")
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'name'"):
        one.name = "b"
    with pytest.raises(FrozenInstanceError):
        del one.name


def test_a_cached_property_is_kept() -> None:
    one = Shared("a", 4)
    assert one.doubled == 8
    assert vars(one)["doubled"] == 8


def test_it_can_be_replaced_copied_and_pickled() -> None:
    one = Shared("a", 4, {"x": 1})
    assert dataclasses.replace(one, name="b") == Shared("b", 4, {"x": 1})
    # As copy.replace does, of Python 3.13 on.
    changed: Any = one
    assert changed.__replace__(count=5) == Shared("a", 5, {"x": 1})
    assert copy.copy(one) == one == pickle.loads(pickle.dumps(one))  # noqa: S301
    assert dataclasses.asdict(one) == dataclasses.asdict(Usual("a", 4, {"x": 1}))


def test_a_class_has_the_fields_of_its_bases_first() -> None:
    one = Derived("a", 2, more=(3,))
    assert [each.name for each in dataclasses.fields(one)][-2:] == ["unshown", "more"]
    assert (one.name, one.count, one.more) == ("a", 2, (3,))


def test_a_standard_dataclass_can_inherit_from_it() -> None:
    @dataclasses.dataclass(frozen=True)
    class Pack(Shared):
        option: int = 7

    assert Pack("a") == Pack("a", 1, {}, 0, 7)
    with pytest.raises(FrozenInstanceError):
        Pack("a").option = 8  # type: ignore[misc]  # that is the point


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ((), {}),
        (("a", 1, {}, 0, 5), {}),
        (("a",), {"name": "b"}),
        (("a",), {"other": 1}),
        ((), {"other": 1}),
    ],
    ids=["missing", "too many", "twice", "unknown", "missing and unknown"],
)
def test_wrong_arguments_are_refused(
    values: tuple[Any, ...], named: dict[str, Any]
) -> None:
    with pytest.raises(TypeError, match=r"Shared\(name, count, notes, unshown\)"):
        Shared(*values, **named)


def test_one_that_is_not_frozen_can_change_and_has_no_hash() -> None:
    @dataclass
    class Counted:
        name: str
        seen: list[int] = field(default_factory=list)
        length: int = 0

        def __post_init__(self) -> None:
            self.length = len(self.name)

    one = Counted("abc", [1])
    assert (one.length, one) == (3, Counted("abc", [1]))
    one.name = "b"
    assert one != Counted("abc", [1])
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_fields_may_be_given_by_name_only() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Named:
        name: str = ""
        count: int

    @dataclass(frozen=True, kw_only=True)
    class More(Named):
        notes: tuple[str, ...] = ()

    assert More(count=2, notes=("a",)) == dataclasses.replace(
        More(count=1, notes=("a",)), count=2
    )
    wrong: Any = More
    with pytest.raises(TypeError, match="was given 1 values"):
        wrong("a", count=2)
    with pytest.raises(TypeError):
        wrong(name="a")
