"""Plans of reading and writing: which tensors hold which parameters, by a key table."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from models.errors import WeightsError
from models.weights.table import KeyTable, Numbers, Row
from models.weights.transforms import Shape

T = TypeVar("T")
LISTED = 12  # names in a message


@dataclass(frozen=True)
class Group(Generic[T]):
    """A row of the table with its numbers filled in.

    Attributes:
      row: the row.
      parameters: paths of the parameters it holds.
      tensors: by place on the parameters' leading axis (one place if nothing is stacked), then by
        the row's keys.
    """

    row: Row
    parameters: tuple[str, ...]
    tensors: tuple[tuple[T, ...], ...]

    @property
    def is_stacked(self) -> bool:
        return self.row.stacked is not None


def stored_shapes(group: Group[Any], shapes: Mapping[str, Shape]) -> list[Shape]:
    """The shapes of the tensors at one place, from those of the parameters."""
    skip = 1 if group.is_stacked else 0
    return group.row.transform.stored_shapes([shapes[name][skip:] for name in group.parameters])


def reading_plan(
    table: KeyTable,
    keys: Sequence[str],
    shapes: Mapping[str, Shape],
    where: str = "the checkpoint",
) -> list[Group[str]]:
    """Every key's and every parameter's group; `where` names the files in messages.

    Raises WeightsError, with everything that is wrong in one message, if a key is not known, or a
    parameter is held by no key or by two.
    """
    matched: dict[tuple[int, tuple[str, ...]], dict[tuple[int, int], str]] = {}
    unknown = []
    for key, name in table.names(keys).items():
        place = _place(table, name)
        if place is not None:
            row_number, parameters, position = place
            matched.setdefault((row_number, parameters), {})[position] = key
        elif not table.ignores(key):
            unknown.append(key)
    groups, missing = [], []
    for (row_number, parameters), tensors in matched.items():
        row = table.rows[row_number]
        if not all(name in shapes for name in parameters):
            unknown += [key for key in tensors.values() if not table.ignores(key)]
            continue
        places = shapes[parameters[0]][0] if row.stacked else 1
        positions = [(e, k) for e in range(places) for k in range(len(row.keys))]
        absent = [(e, k) for e, k in positions if (e, k) not in tensors]
        missing += [f"{', '.join(parameters)} (index {e})" for e, _ in absent]
        unknown += [tensors[position] for position in sorted(set(tensors) - set(positions))]
        rows = [tuple(tensors.get((e, k), "") for k in range(len(row.keys))) for e in range(places)]
        groups.append(Group(row, parameters, tuple(rows)))
    held = Counter(name for group in groups for name in group.parameters)
    _report(
        {
            "tensors without a parameter": unknown,
            "parameters without a tensor": missing
            + [_with_keys(table, name, shapes) for name in sorted(set(shapes) - set(held))],
            "parameters with more than one tensor": [
                name for name, count in held.items() if count > 1
            ],
        },
        where,
    )
    return groups


def writing_plan(table: KeyTable, shapes: Mapping[str, Shape]) -> list[Group[str]]:
    """The groups that hold every parameter once, in the table's usual layout.

    Raises WeightsError if no row writes some parameter.
    """
    groups: list[Group[str]] = []
    held: set[str] = set()
    for name in shapes:
        if name in held:
            continue
        group = next(_groups_of(table, name, shapes), None)
        if group is None:
            _report({"parameters that no row of the key table writes": [name]})
        else:
            groups.append(group)
            held.update(group.parameters)
    return groups


def _groups_of(table: KeyTable, name: str, shapes: Mapping[str, Shape]) -> Iterator[Group[str]]:
    for row in table.rows:
        for template in row.parameters:
            numbers = template.match(name)
            if numbers is None:
                continue
            parameters = tuple(parameter.fill(numbers) for parameter in row.parameters)
            if not all(parameter in shapes for parameter in parameters):
                continue
            places = range(shapes[parameters[0]][0]) if row.stacked else range(1)
            tensors = tuple(tuple(_keys(row, numbers, e)) for e in places)
            yield Group(row, parameters, tensors)


def _keys(row: Row, numbers: Numbers, place: int) -> Iterator[str]:
    everything = {**numbers, row.stacked: place} if row.stacked else numbers
    return (key.fill(everything) for key in row.keys)


def _place(table: KeyTable, key: str) -> tuple[int, tuple[str, ...], tuple[int, int]] | None:
    """(row, its parameters, (place on the leading axis, which of the row's keys)) of a key."""
    for row_number, row in enumerate(table.rows):
        for k, template in enumerate(row.keys):
            numbers = template.match(key)
            if numbers is not None:
                parameters = tuple(parameter.fill(numbers) for parameter in row.parameters)
                return row_number, parameters, (numbers.get(row.stacked or "", 0), k)
    return None


def _with_keys(table: KeyTable, name: str, shapes: Mapping[str, Shape]) -> str:
    """A parameter and the tensors that usually hold it."""
    group = next(_groups_of(table, name, shapes), None)
    keys = [key for place in group.tensors for key in place] if group else []
    return f"{name} (usually stored as {_join(keys)})" if keys else name


def _report(faults: Mapping[str, Sequence[str]], where: str = "the checkpoint") -> None:
    """Raises WeightsError if anything is wrong."""
    texts = [f"{what} ({len(names)}): {_join(names)}" for what, names in faults.items() if names]
    if texts:
        raise WeightsError(
            f"{where} does not fit the model: {'; '.join(texts)}. Check that config.json and the "
            "weights belong together and that the files are complete."
        )


def _join(names: Sequence[str]) -> str:
    return ", ".join(names[:LISTED]) + (", …" if len(names) > LISTED else "")
