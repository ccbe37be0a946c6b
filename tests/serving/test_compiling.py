"""Programs that are compiled beside the first answers, and what runs in their stead."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from launch.serving.runner.compiling import Compiled
from launch.serving.scheduler.buckets import Bucket
from tests.serving.engines import BUCKETS


def test_each_is_compiled_once_however_many_ask() -> None:
    made: list[int] = []
    compiled: Compiled[int] = Compiled(lambda key: made.append(key) or -key)  # type: ignore[func-returns-value]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(compiled.get, [1, 2] * 20)) == [-1, -2] * 20
    assert sorted(made) == [1, 2]


def test_larger_ones_stand_in_until_all_are_there() -> None:
    gate, ended = threading.Event(), threading.Event()

    def compile_one(key: int) -> int:
        assert key > 4 or gate.wait(30)
        return key

    compiled = Compiled(compile_one)
    compiled.get(8)

    def instead(key: int) -> int:
        return compiled.instead(key, lambda: [6, 8])

    assert instead(2) == 2, "nobody is about to compile it"
    with compiled.beside([2, 4], ended.set):
        assert [instead(key) for key in (2, 4, 5, 8)] == [8, 8, 5, 8]
        gate.set()
        assert ended.wait(30)
        assert [instead(key) for key in (2, 4)] == [2, 4]


def test_the_end_does_not_wait_for_all() -> None:
    begun, gate = threading.Event(), threading.Event()

    def compile_one(key: int) -> int:
        begun.set()
        assert gate.wait(30)
        return key

    compiled = Compiled(compile_one)
    with compiled.beside(range(1000)):
        assert begun.wait(30)
        threading.Timer(0.05, gate.set).start()
    assert not compiled.is_ready(999)


def test_what_cannot_be_compiled_is_told_to_whoever_asks() -> None:
    def compile_one(key: int) -> int:
        raise ValueError(f"no {key}")

    ended = threading.Event()
    compiled = Compiled(compile_one)
    with compiled.beside([1], ended.set):
        assert ended.wait(30)
    assert compiled.instead(1, list) == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="no 1"):
            compiled.get(1)


def test_buckets_that_a_step_fits_into() -> None:
    assert BUCKETS.larger(Bucket(2, 1, 12)) == [Bucket(2, 1, 12), Bucket(8, 1, 12)]
    assert BUCKETS.larger(Bucket(1, 8, 12)) == [Bucket(1, 8, 12)]
