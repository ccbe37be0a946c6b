"""Programs on one core that run by machine code alone: values, memory, and every way out of it."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax
from neuronjax.pjrt.executable import LoadedState
from neuronjax.pjrt.handles import WORDS
from neuronjax.pjrt.values import SMALL_BYTES, Bare
from tests.conftest import RunPython
from tests.pjrt.conftest import Calls

FAILED = (ValueError, jax.errors.JaxRuntimeError)
"""What jaxlib raises of a call that fails at once, and later."""


@pytest.fixture
def bare(calls: Calls) -> Bare:
    """The bare values of the process, of which none is waiting to be ended."""
    gc.collect()
    calls.plugin.values.collect()
    bare = calls.plugin.values.bare
    if bare is None or calls.state().client.stress is not None:
        pytest.skip("without machine code Python runs everything, under stress half of it")
    return bare


@jax.jit
def step(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x + y, x * y


@pytest.fixture
def pair(neuron_devices: list[jax.Device]) -> tuple[jax.Array, jax.Array]:
    """Arguments of ``step``, which goes the short way by now."""
    values = (np.arange(4, dtype=np.float32), np.full(4, 2, np.float32))
    x, y = (jax.device_put(value, neuron_devices[0]) for value in values)
    jax.block_until_ready(step(x, y))
    return x, y


def test_results_are_bare_until_somebody_asks(
    pair: tuple[jax.Array, jax.Array], bare: Bare
) -> None:
    before = bare.count()
    total, product = step(*pair)
    assert bare.count() == before + 2
    again, _ = step(total, product)
    assert bare.count() == before + 4
    np.testing.assert_array_equal(again, [2, 5, 8, 11])
    assert bare.count() == before + 3


def test_values_and_memory_end_with_their_arrays(
    pair: tuple[jax.Array, jax.Array], bare: Bare, calls: Calls
) -> None:
    ledger = calls.state().client.ledger
    before, living = ledger.stats(0), bare.count()
    results = [step(*pair) for _ in range(3)]
    during = ledger.stats(0)
    assert during.bytes_in_use == before.bytes_in_use + 6 * 16
    assert during.num_allocs == before.num_allocs + 3
    assert during.peak_bytes_in_use >= during.bytes_in_use
    np.asarray(results[1][0])
    del results
    assert ledger.stats(0).bytes_in_use == before.bytes_in_use
    assert bare.count() == living


def test_temporaries_count_for_the_time_of_a_run(
    neuron_devices: list[jax.Device], bare: Bare, calls: Calls
) -> None:
    """In the peak of a core; the program goes the short way nevertheless."""
    x = jax.device_put(np.ones((16, 16), np.float32), neuron_devices[5])
    program = jax.jit(jax.nn.softmax).lower(x).compile()
    needed = program.memory_analysis().temp_size_in_bytes + x.nbytes
    assert needed > x.nbytes
    first = jax.block_until_ready(program(x))
    ledger, living = calls.state().client.ledger, bare.count()
    kept = [jax.device_put(np.zeros(2**20, np.float32), neuron_devices[5])]
    while bare.count() == living and len(kept) < 100:  # a run that is pending takes the long way
        jax.block_until_ready(kept)
        before = ledger.stats(5).bytes_in_use
        kept.append(program(x))
    assert bare.count() == living + 1
    assert ledger.stats(5).peak_bytes_in_use == before + needed
    assert ledger.stats(5).bytes_in_use == before + x.nbytes
    np.testing.assert_array_equal(first, kept[-1])


def test_large_results(neuron_devices: list[jax.Device], bare: Bare, calls: Calls) -> None:
    """They end at once, not with the next call."""
    ledger, living = calls.state().client.ledger, bare.count()
    double = jax.jit(lambda x: 2 * x)
    x = jax.device_put(np.ones(SMALL_BYTES, np.float32), neuron_devices[0])
    jax.block_until_ready(double(x))
    before = ledger.stats(0).bytes_in_use
    y = jax.block_until_ready(double(double(x)))
    assert ledger._in_use(0) == before + x.nbytes
    del y
    assert ledger._in_use(0) == before
    assert bare.count() == living


def test_records_are_used_again(pair: tuple[jax.Array, jax.Array], bare: Bare) -> None:
    """Of many results at a time, more than code gets at a time."""
    kept = [step(*pair) for _ in range(1000)]
    for total, product in kept[::100]:
        np.testing.assert_array_equal(total, [2, 3, 4, 5])
        np.testing.assert_array_equal(product, [0, 2, 4, 6])
    del kept, total, product
    step(*pair)
    free = WORDS[bare.free]
    for _ in range(3):
        kept = [step(*pair) for _ in range(300)]
        del kept
        step(*pair)
    assert WORDS[bare.free] == free


def test_a_deleted_argument(pair: tuple[jax.Array, jax.Array], bare: Bare) -> None:
    for x in (pair[0], step(*pair)[0]):
        x.delete()
        with pytest.raises(RuntimeError, match="deleted"):
            step(x, pair[1])


def test_donation_of_a_bare_value(pair: tuple[jax.Array, jax.Array], bare: Bare) -> None:
    take = jax.jit(lambda x: x + 1, donate_argnums=0)
    for _ in range(3):
        x, _ = step(*pair)
        np.testing.assert_array_equal(take(x), [3, 4, 5, 6])
        assert x.is_deleted()


def test_arguments_elsewhere(
    pair: tuple[jax.Array, jax.Array], neuron_devices: list[jax.Device], bare: Bare
) -> None:
    """On another core, on several, and in the host's memory."""
    moved = [jax.device_put(x, neuron_devices[3]) for x in pair]
    assert step(*moved)[0].devices() == {neuron_devices[3]}
    rows = jax.sharding.NamedSharding(
        jax.make_mesh((4,), ("x",), devices=neuron_devices[:4]), jax.sharding.PartitionSpec("x")
    )
    shards = [shard.data for shard in jax.device_put(pair[0], rows).addressable_shards]
    assert [float(shard[0]) for shard in shards] == [0, 1, 2, 3]
    one = jax.jit(lambda x: x + 1)
    assert [float(one(shard)[0]) for shard in shards for _ in range(2)] == [1, 1, 2, 2, 3, 3, 4, 4]


def test_a_run_that_takes_long(neuron_devices: list[jax.Device], bare: Bare) -> None:
    """Its results become ready later, and so do those of runs that need them."""
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 60, lambda i, v: jnp.tanh(v @ v), x))
    x = jax.device_put(np.eye(200, dtype=np.float32), neuron_devices[0])
    expected = np.asarray(slow(x))
    total = jax.jit(jnp.sum)
    float(total(x))
    for _ in range(3):
        y = slow(x)
        result = float(total(y))
        np.testing.assert_array_equal(y, expected)
        assert result == float(total(y))


def test_a_run_that_fails(neuron_devices: list[jax.Device], bare: Bare) -> None:
    refuse, calls = False, 0

    def check(x: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        if refuse:
            raise ValueError("refused")
        return np.asarray(x)

    shape = jax.ShapeDtypeStruct((4,), np.float32)
    run = jax.jit(lambda x: jax.pure_callback(check, shape, x) + 1)
    x = jax.device_put(np.ones(4, np.float32), neuron_devices[0])
    for _ in range(3):
        np.testing.assert_array_equal(run(x), [2, 2, 2, 2])
    refuse = True
    with pytest.raises(FAILED, match="refused"):
        jax.block_until_ready(run(x))
    assert calls == 4
    refuse = False
    np.testing.assert_array_equal(run(x), [2, 2, 2, 2])


def test_faults_strike_and_end(pair: tuple[jax.Array, jax.Array], bare: Bare) -> None:
    with neuronjax.inject_faults("out_of_memory core=0 step=2 program=jit_step"):
        step(*pair)
        with pytest.raises(FAILED, match="NRT_RESOURCE"):
            step(*pair)
    before = bare.count()
    results = step(*pair)
    assert bare.count() == before + 2
    del results


def test_a_full_core(pair: tuple[jax.Array, jax.Array], bare: Bare, calls: Calls) -> None:
    ledger = calls.state().client.ledger
    stats = ledger.stats(0)
    rest = stats.bytes_limit - stats.bytes_in_use
    ledger.allocate((0,), rest)
    try:
        with pytest.raises(FAILED, match="Failed to allocate"):
            step(*pair)
    finally:
        ledger.free((0,), rest)
    np.testing.assert_array_equal(step(*pair)[0], [2, 3, 4, 5])


def test_threads(pair: tuple[jax.Array, jax.Array], bare: Bare, calls: Calls) -> None:
    """Runs, reads and ends of values at the same time."""
    ledger = calls.state().client.ledger
    before, living = ledger.stats(0).bytes_in_use, bare.count()

    def work(seed: int) -> float:
        x, kept = pair[0], []
        for number in range(300):
            x, product = step(x, pair[1])
            kept.append(product)
            if number % 7 == seed:
                kept = kept[-3:]
            if number % 31 == seed:
                np.asarray(kept[0])
        return float(x[0])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [600.0] * 4
    gc.collect()
    assert ledger.stats(0).bytes_in_use == before
    assert bare.count() == living


@pytest.mark.parametrize("ended", ["deleted", "dropped"])
def test_programs_that_end(
    neuron_devices: list[jax.Device], bare: Bare, calls: Calls, ended: str
) -> None:
    x = jax.device_put(np.ones(4, np.float32), neuron_devices[0])
    objects, results = calls.plugin.handles._objects, []
    for number in range(20):
        compiled = jax.jit(lambda x, n=number: x + n).lower(x).compile()
        results += [compiled(x), compiled(x)]
        if ended == "deleted":
            loaded = [obj for obj in objects.values() if isinstance(obj, LoadedState)][-1]
            calls("LoadedExecutable_Delete", executable=calls.handle(loaded))
            with pytest.raises(FAILED, match="was deleted"):
                compiled(x)
        del compiled
    gc.collect()
    assert [float(y[0]) for y in results] == [1.0 + n for n in range(20) for _ in range(2)]


CLEARED = """
    import gc, jax, jax.numpy as jnp
    for _ in range(3):
        x = jnp.ones(4)
        add = jax.jit(lambda x: x + 1)
        for _ in range(5):
            x = add(x)
        print(x)
        del x, add
        jax.clear_caches()
        jax.extend.backend.clear_backends()
        gc.collect()
"""


def test_a_client_that_ends(run_python: RunPython) -> None:
    done = run_python(CLEARED.replace("import gc, jax,", "import gc, jax, jax.extend,"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["[6. 6. 6. 6.]"] * 3
