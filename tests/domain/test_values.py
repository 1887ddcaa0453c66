"""The quick `replace` does what the original does."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import pytest

from trimtab.core.domain import values


@dataclass(frozen=True)
class Plain:
    one: int
    two: tuple[int, ...] = ()
    three: dict[str, int] = field(default_factory=dict)

    @cached_property
    def twice(self) -> int:
        return 2 * self.one


@dataclass(frozen=True)
class Checked:
    one: int

    def __post_init__(self) -> None:
        if self.one < 0:
            raise ValueError("below zero")


@dataclass(frozen=True, slots=True)
class Slotted:
    one: int
    two: int = 2


def test_fields_change_and_the_others_stay_and_the_old_value_is_as_it_was():
    old = Plain(1, (2,), {"a": 3})
    new = values.replace(old, one=5)
    assert new == replace(old, one=5) == Plain(5, (2,), {"a": 3})
    assert old == Plain(1, (2,), {"a": 3}) and new.three is old.three and hash(type(new)) == hash(Plain)
    assert values.replace(old) == old


def test_what_was_worked_out_of_the_old_value_is_not_believed_of_the_new_one():
    old = Plain(1)
    assert old.twice == 2
    assert values.replace(old, one=5).twice == 10


def test_values_that_check_themselves_are_checked():
    with pytest.raises(ValueError, match="below zero"):
        values.replace(Checked(1), one=-1)


def test_other_kinds_and_unknown_fields_are_as_with_the_original():
    assert values.replace(Slotted(1), two=7) == Slotted(1, 7)
    with pytest.raises(TypeError):
        values.replace(Plain(1), four=4)


@dataclass(frozen=True)
class Sparing:
    MADE_OF: ClassVar = {"twice": ("one",)}
    one: int
    two: int = 0
    made: list[int] = field(default_factory=list, compare=False)

    @cached_property
    def twice(self) -> int:
        self.made.append(self.one)
        return 2 * self.one


def test_what_was_worked_out_of_fields_that_stay_is_taken_over_where_the_class_says_so():
    old = Sparing(1)
    assert old.twice == 2
    other = values.replace(old, two=3)
    assert other.twice == 2 and old.made == [1]
    assert values.replace(other, one=5, two=4).twice == 10 and old.made == [1, 5]
