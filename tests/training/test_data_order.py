"""The order of rows: of the seed alone; any step resumes exactly; any number of processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import grain
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from launch.data.batches import Batch, Batches, Data, make_batches
from launch.data.placement import Placement
from tests.training.text_files import opened, write_jsonl

BATCH = 12
KINDS = ("windows", "padded", "first_fit", "concat_then_split", "mixture")


@pytest.fixture(scope="module")
def open_kind(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Data]:
    folder = tmp_path_factory.mktemp("order")
    rng = np.random.default_rng(0)
    for name in "ab":
        texts = ["".join(map(chr, rng.integers(97, 123, rng.integers(2, 60)))) for _ in range(60)]
        write_jsonl(folder / f"{name}.jsonl", texts)
    files = {name: f"{folder}/{name}.jsonl" for name in "ab"}

    def open_kind(kind: str, seed: int = 0) -> Data:
        if kind == "mixture":
            return opened(f"{files['a']}:1,{files['b']}:2.5", seed=seed)
        return opened(files["a"], seed=seed, packing=kind)

    return open_kind


def take(batches: Batches, count: int) -> list[Batch]:
    return [next(batches) for _ in range(count)]


def assert_equal(first: object, second: object) -> None:
    jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.parametrize("kind", KINDS)
def test_order_depends_on_the_seed_alone(open_kind: Callable[..., Data], kind: str) -> None:
    first, again, other = (take(make_batches(open_kind(kind, seed).rows, BATCH), 8)
                           for seed in (1, 1, 2))  # fmt: skip
    assert_equal(first, again)
    assert any((a["tokens"] != b["tokens"]).any() for a, b in zip(first, other, strict=True))


@settings(max_examples=8)
@pytest.mark.parametrize("kind", KINDS)
@given(taken=st.integers(0, 60), processes=st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_any_step_resumes_exactly_on_any_number_of_processes(
    open_kind: Callable[..., Data], kind: str, taken: int, processes: int
) -> None:
    rows = open_kind(kind).rows
    before = make_batches(rows, BATCH)
    take(before, taken)
    state = json.loads(json.dumps(before.get_state()))
    expected = take(before, 3)
    parts = []
    for numbers in np.split(np.arange(BATCH), processes):
        part = make_batches(rows, BATCH, numbers)
        part.set_state(state)
        parts.append(take(part, 3))
        assert part.get_state() == before.get_state()
    assert_equal([jax.tree.map(lambda *x: np.concatenate(x), *p) for p in zip(*parts, strict=True)],
                 expected)  # fmt: skip


def test_rows_that_a_process_does_not_need_are_not_made(open_kind: Callable[..., Data]) -> None:
    made = []

    class Counting:
        def __len__(self) -> int:
            return 100

        def __getitem__(self, number: int) -> dict[str, np.ndarray]:
            made.append(number)
            return {"number": np.array(number)}

    batches = make_batches(grain.MapDataset.source(Counting()).repeat(), 10, np.array([3, 7]))
    numbers = [batch["number"].tolist() for batch in take(batches, 3)]
    assert numbers == [[3, 7], [13, 17], [23, 27]]
    assert {number % 10 for number in made} == {3, 7}


SPECS = [P("data"), P(("data", "model")), P(None, "model"), P("data", "model"), P()]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_placed_batches_are_the_rows_in_order(neuron_devices: list[jax.Device], spec: P) -> None:
    mesh = jax.sharding.Mesh(np.array(neuron_devices).reshape(4, 2), ("data", "model"))
    whole = {"tokens": np.arange(8 * 6, dtype=np.int32).reshape(8, 6)}
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), whole)
    placement = Placement(shapes, {"tokens": NamedSharding(mesh, spec)})
    np.testing.assert_array_equal(placement.rows, np.arange(8))
    placed = placement.place(whole)["tokens"]
    np.testing.assert_array_equal(placed, whole["tokens"])
    assert placed.sharding.spec == spec


def test_a_directory_of_data_does_not_matter(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        write_jsonl(tmp_path / folder / "a.jsonl", ["abc", "defg", "hi"])
    first, second = (opened(tmp_path / folder / "a.jsonl").identity for folder in "xy")
    assert first == second
    write_jsonl(tmp_path / "y" / "a.jsonl", ["abc", "defgh", "i"])
    assert opened(tmp_path / "y" / "a.jsonl").identity != first
