"""Random numbers: their distribution, and that the state decides them."""

from __future__ import annotations

import numpy as np

from tests.emulate.single import execute

SEED = {"s": np.array([[7]], np.uint32)}


def test_rand2_is_uniform() -> None:
    low = np.full((128, 1), -2, np.float32)
    found = execute(
        "set_rng_seed seed={s}\nrand2 dst={y} low={low} high=#6.0", {**SEED, "low": low},
        {"y": ("float32", (128, 2048))},
    )["y"].astype(np.float64)  # fmt: skip
    assert found.min() >= -2
    assert found.max() <= 6
    counts, _ = np.histogram(found, 16, (-2, 6))
    assert np.all(np.abs(counts / found.size * 16 - 1) < 0.03)
    lanes = np.corrcoef(found)[~np.eye(128, dtype=bool)]
    assert np.abs(lanes).max() < 0.15


def test_rng_goes_on_and_starts_again() -> None:
    found = execute(
        "set_rng_seed seed={s}\nrng dst={a}\nrand_get_state dst={t} engine=vector\nrng dst={b}\n"
        "rand_set_state seeds={t} engine=vector\nrng dst={c}\nset_rng_seed seed={s}\nrng dst={d}",
        SEED,
        dict.fromkeys("abcd", ("uint32", (128, 16))) | {"t": ("uint32", (128, 24))},
    )  # fmt: skip
    assert len(np.unique(found["a"])) > 2000
    assert not np.array_equal(found["a"], found["b"])
    np.testing.assert_array_equal(found["b"], found["c"])
    np.testing.assert_array_equal(found["a"], found["d"])


def test_narrow_random_bits() -> None:
    found = execute("set_rng_seed seed={s}\nrng dst={y}", SEED, {"y": ("uint8", (128, 64))})["y"]
    assert len(np.unique(found)) == 256


def test_dropout_drops_its_part() -> None:
    x = np.ones((128, 1024), np.float32)
    found = execute("dropout dst={y} data={x} prob=#0.25", {"x": x}, {"y": ("float32", x.shape)})
    assert set(np.unique(found["y"])) == {0.0, 1.0}
    assert abs((found["y"] == 0).mean() - 0.25) < 0.01
    for prob, kept in ((0.0, 1.0), (1.0, 0.0)):
        found = execute(
            f"dropout dst={{y}} data={{x}} prob=#{prob}", {"x": x}, {"y": ("float32", x.shape)}
        )
        assert (found["y"] == kept).all()
