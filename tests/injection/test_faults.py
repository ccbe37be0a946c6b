"""Hardware that breaks on purpose, as JAX sees it; without a fault everything is as before."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import neuronjax
from neuronjax.errors import ConfigurationError

Failed = (jax.errors.JaxRuntimeError, ValueError)
"""JAX raises the same error as ValueError from its fast path, on calls after the first."""


@jax.jit
def step(x: jax.Array) -> jax.Array:
    return x * 2 + 1


@jax.jit
def other(x: jax.Array) -> jax.Array:
    return x - 3


def on(core: int, value: Any = None) -> jax.Array:
    value = np.arange(64, dtype=np.float32) if value is None else value
    return jax.device_put(value, jax.devices("neuron")[core])


def outcome(call: Callable[[], Any]) -> str:
    """The first words of the error where the result is waited for; empty if there is none."""
    try:
        jax.block_until_ready(call())
    except Failed as error:
        return str(error)
    return ""


@pytest.fixture
def rows() -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices("neuron")[:4]), ("core",)), P("core"))


def total(sharding: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    mapped = jax.shard_map(
        lambda x: lax.psum(x, "core"), mesh=sharding.mesh, in_specs=P("core"), out_specs=P()
    )
    return jax.jit(mapped)


def test_a_core_dies_and_stays_dead() -> None:
    x, elsewhere = on(2), on(1)
    with neuronjax.inject_faults("core_dies core=2 step=3 program=jit_step"):
        assert [outcome(lambda: step(x)) for _ in range(2)] == ["", ""]
        other(x)
        found = outcome(lambda: step(x))
        assert "INTERNAL: NRT_EXEC_HW_ERR_NC_UE (status 1202): the core has stopped" in found
        assert "ND 0:NC 2 in program 'jit_step'" in found
        assert "Injected fault: core_dies core=2 step=3 program=jit_step." in found
        assert "status 1202" in outcome(lambda: other(x))
        np.testing.assert_array_equal(x, np.arange(64))  # its memory can be read
        np.testing.assert_array_equal(step(elsewhere), np.arange(64) * 2 + 1)
    np.testing.assert_array_equal(step(x), np.arange(64) * 2 + 1)


def test_the_error_goes_where_results_go() -> None:
    x = on(3)
    with neuronjax.inject_faults("core_dies core=3 program=jit_step"):
        bad = step(x)
    uses = (
        lambda: np.asarray(bad), lambda: other(bad), lambda: bad + 1,
        lambda: jax.device_put(bad, jax.devices("neuron")[1]), lambda: float(bad[0]),
    )  # fmt: skip
    for use in uses:
        assert "status 1202" in outcome(use)


def test_a_collective_hangs(rows: NamedSharding, run_python: Any) -> None:
    done = run_python(
        """
        import threading, time
        import jax, jax.numpy as jnp, numpy as np
        from jax import lax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        mesh = Mesh(np.array(jax.devices()[:4]), ("core",))
        x = jax.device_put(np.ones(8, np.float32), NamedSharding(mesh, P("core")))
        total = jax.jit(jax.shard_map(
            lambda x: lax.psum(x, "core"), mesh=mesh, in_specs=P("core"), out_specs=P()))
        jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.ones(3)))  # one core: does not count
        jax.block_until_ready(total(x))
        began = time.monotonic()
        hanging = total(x)
        print(hanging.is_ready())
        after = hanging * 2
        for use in (lambda: np.asarray(hanging), lambda: jax.block_until_ready(after)):
            try:
                use()
            except Exception as error:
                print(time.monotonic() - began >= 2, str(error))
        print(np.asarray(total(x)))
        """,
        {"NEURONJAX_FAULTS": "collective_hangs core=1 step=2", "NEURON_RT_EXEC_TIMEOUT": "2"},
    )
    assert done.returncode == 0, done.stderr
    pending, read, used, result = done.stdout.splitlines()
    assert (pending, result) == ("False", "[4. 4.]")
    for line in (read, used):
        assert line.startswith("True DEADLINE_EXCEEDED: NRT_TIMEOUT (status 5): suspected hang in")
        assert "ND 0:NC 1" in line
        assert "waited 2 s (NEURON_RT_EXEC_TIMEOUT)" in line


def test_what_hangs_ends_with_the_block(rows: NamedSharding) -> None:
    x = jax.device_put(np.ones(8, np.float32), rows)
    run = total(rows)
    began = time.monotonic()
    with neuronjax.inject_faults("collective_hangs core=3"):
        hanging = run(x)
        assert not hanging.is_ready()
    assert "NRT_TIMEOUT (status 5)" in outcome(lambda: hanging)
    assert time.monotonic() - began < 20  # far less than the runtime's 30 s
    np.testing.assert_array_equal(run(x), [4, 4])


def test_out_of_memory() -> None:
    x = on(1)
    with neuronjax.inject_faults("out_of_memory core=1 step=2"):
        assert outcome(lambda: step(x)) == ""
        found = outcome(lambda: step(x))
        assert "RESOURCE_EXHAUSTED: NRT_RESOURCE (status 4): Failed to allocate" in found
        assert "ND 0:NC 1 " in found
        assert outcome(lambda: step(x)) == ""


def flipped(before: np.ndarray, after: Any) -> int:
    """Bits that differ."""
    pairs = (np.asarray(each).reshape(-1).view(np.uint8) for each in (before, after))
    return int(np.bitwise_count(np.bitwise_xor(*pairs)).sum())


def test_bits_flip_in_memory() -> None:
    """Those of the argument, which stays so; the same ones with the same seed."""
    clean = np.arange(64, dtype=np.float32)
    seen = []
    for seed in (1, 1, 2):
        x = on(0)
        with neuronjax.inject_faults(f"bit_flip step=2 bits=3 seed={seed} program=jit_step"):
            np.testing.assert_array_equal(step(x), clean * 2 + 1)
            wrong = np.asarray(step(x))
        damaged = np.asarray(x.addressable_data(0) + 0)
        assert flipped(clean, damaged) == 3
        np.testing.assert_array_equal(wrong, damaged * 2 + 1)
        np.testing.assert_array_equal(step(x), wrong)
        seen.append(damaged.tobytes())
    assert seen[0] == seen[1] != seen[2]


def test_bits_flip_in_one_shard(rows: NamedSharding) -> None:
    clean = np.arange(64, dtype=np.float32)
    x = jax.device_put(clean, rows)
    with neuronjax.inject_faults("bit_flip core=2 bits=2"):
        wrong = step(x)
    shards = [np.asarray(shard.data) for shard in wrong.addressable_shards]
    expected = np.split(clean * 2 + 1, 4)
    assert [bool((a == b).all()) for a, b in zip(shards, expected, strict=True)] == [
        True, True, False, True,
    ]  # fmt: skip


def test_bits_flip_on_a_link(rows: NamedSharding) -> None:
    x = jax.device_put(np.ones(64, np.float32), rows)
    run = total(rows)
    with neuronjax.inject_faults("bit_flip memory=link core=1 seed=5"):
        np.testing.assert_array_equal(step(on(1)), np.arange(64) * 2 + 1)  # no link: does not count
        wrong = run(x)
    shards = [np.asarray(shard.data) for shard in wrong.addressable_shards]
    assert [flipped(np.full(16, 4, np.float32), shard) for shard in shards] == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        ("hbm", "NRT_EXEC_HW_ERR_HBM_UE (status 1201)"),
        ("sbuf", "NRT_EXEC_HW_ERR_NC_UE (status 1202)"),
        ("link", "NRT_EXEC_HW_ERR_DMA_ABORT (status 1203)"),
    ],
)
def test_bits_that_the_hardware_notices(memory: str, words: str, rows: NamedSharding) -> None:
    x = jax.device_put(np.ones(8, np.float32), rows)
    with neuronjax.inject_faults(f"bit_flip memory={memory} detected=1"):
        assert words in outcome(lambda: step(x))
        assert outcome(lambda: step(x)) == ""


def test_bits_flip_in_sbuf(run_python: Any) -> None:
    """On engines: the results are wrong for one run, and wrong in the same way again."""
    done = run_python(
        """
        import jax, jax.numpy as jnp, numpy as np
        import neuronjax
        neuronjax.configure(executor="engine")
        f = jax.jit(lambda x: jnp.tanh(x) * 2)
        x = jnp.linspace(-1, 1, 4096, dtype=jnp.float32).reshape(64, 64)
        clean = np.asarray(f(x))
        found = []
        for seed in [*range(20), 3]:
            with neuronjax.inject_faults(f"bit_flip memory=sbuf bits=64 seed={seed}"):
                found.append(np.asarray(f(x)).tobytes())
        print(sum(each != clean.tobytes() for each in found) > 0, found[3] == found[-1])
        print(np.asarray(f(x)).tobytes() == clean.tobytes())
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True", "True"]


@pytest.mark.parametrize(
    ("faults", "words"),
    [
        ("core_dies core=8", "names core 8; trn2.3xlarge (LNC 1) has cores 0 to 7 here"),
        ("slow_core core=9", "names core 9"),
        (
            "slow_link axis=z",
            "names the links along 'z'; trn2.3xlarge (LNC 1) has links of no axis",
        ),
        ("bit_flip memory=sbuf", "only emulated engines have an SBUF; set NEURONJAX_EXECUTOR"),
        ("earthquake", "there is no fault 'earthquake'; choose one of core_dies, "),
        ("core_dies core=x", "core_dies core='x' must be a whole number"),
        ("core_dies step=0", "step='0' must be a whole number of at least 1"),
        ("bit_flip memory=l2", "memory='l2' must be one of hbm, sbuf, link"),
        ("slow_core factor=nan", "factor='nan' must be a number from 1 to"),
        ("core_dies size=1", "core_dies cannot have 'size=1'; it takes each of core=, step=, "),
    ],
)
def test_faults_that_cannot_be(faults: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught, neuronjax.inject_faults(faults):
        pass
    assert words in str(caught.value)
    assert outcome(lambda: step(on(0))) == ""


def test_nothing_is_left_behind(run_python: Any) -> None:
    """Programs run by the same function as before, without a look at faults."""
    done = run_python(
        """
        import jax, jax.numpy as jnp
        import neuronjax
        from neuronjax.recording import client_in_use
        step = jax.jit(lambda x: x + 1)
        step(jnp.arange(4.0))
        programs = list(client_in_use().injector._programs)
        with neuronjax.inject_faults("bit_flip core=0"):
            print({"execute" in vars(program) for program in programs})
            step(jnp.arange(4.0))
        print({"execute" in vars(program) for program in programs})
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["{True}", "{False}"]
