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


@pytest.mark.parametrize(("given", "area"), [((2,), 6), ((2, 4), 8)])
def test_attributes_are_those_that_a_class_annotates(given: tuple[int, ...], area: int) -> None:
    made = Plain(*given)
    assert made.area is None
    assert made.derive() == area


def test_fields_of_a_dataclass_may_be_set_later() -> None:
    made = Record(width=2)
    assert (made.width, made.area, made.parts) == (2, None, [])
    assert Record(2, area=5) == Record(2, 5)


def test_unknown_attributes_are_refused() -> None:
    with pytest.raises(TypeError, match="depth"):
        Plain(width=1, depth=2)
