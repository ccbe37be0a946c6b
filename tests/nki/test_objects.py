"""Objects of classes that kernels define."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from neuronjax.nki import language as nl


class Plain(nl.NKIObject):
    width: int
    height: int = 3
    area: int

    def derive(self) -> int:
        self.area = self.width * self.height
        return self.area


@dataclass
class Record(nl.NKIObject):
    width: int
    area: int
    parts: list[int] = field(default_factory=list)


@dataclass
class Place(nl.NKIObject):
    row = None
    column = 7
    size: int = 1


@dataclass
class Derived(nl.NKIObject):
    """Its call is what its own `__init__` takes."""

    area: int
    name: str

    def __init__(self, width: int) -> None:
        self.area, self.name = width * width, "square"


@pytest.mark.parametrize(("given", "area"), [((2,), 6), ((2, 4), 8)])
def test_attributes_are_those_that_a_class_annotates(given: tuple[int, ...], area: int) -> None:
    made = Plain(*given)
    assert made.area is None
    assert made.derive() == area


def test_fields_of_a_dataclass_may_be_set_later() -> None:
    made = Record(width=2)
    assert (made.width, made.area, made.parts) == (2, None, [])
    assert Record(2, area=5) == Record(2, 5)


def test_attributes_without_annotation_are_given_by_keyword() -> None:
    made, other = Place(row=2, size=4), Place()
    assert (made.row, made.column, made.size) == (2, 7, 4)
    assert (other.row, other.column, other.size) == (None, 7, 1)


def test_a_dataclass_with_its_own_init_takes_what_that_takes() -> None:
    assert Derived(3).area == 9
    with pytest.raises(TypeError, match="name"):
        Derived(3, name="circle")


def test_unknown_attributes_are_refused() -> None:
    with pytest.raises(TypeError, match="depth"):
        Plain(width=1, depth=2)
