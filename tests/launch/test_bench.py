"""The benchmarks: that the estimator is right and every row's machinery works; never how fast."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from launch.benchmarks import decoding, loading, processes, report, training, training_by_hand
from launch.benchmarks.paired import Measurement, compare, time_pairs
from launch.benchmarks.platforms import Settings, devices
from launch.benchmarks.rows import ROWS, Row
from launch.training.objectives import next_tokens
from models.decoder.config import DecoderConfig
from models.decoder.families import llama_json
from models.pretrained import describe_fields
from models.weights.fields import Fields
from tests import forked
from tests.conftest import RunPython

PROJECT = Path(__file__).resolve().parents[2]


class Machine:
    """A clock that only its own work moves, on a machine that gets slower all the time."""

    def __init__(self, slowdown: float) -> None:
        self.now = 0.0
        self.load = 1.0
        self.slowdown = slowdown

    def clock(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds * self.load
        self.load *= self.slowdown


@pytest.mark.parametrize("slowdown", [1.0, 1.05, 0.95])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 3.0])
def test_paired_ratio_is_right_while_the_machine_slows_down(ratio: float, slowdown: float) -> None:
    machine = Machine(slowdown)
    seconds = time_pairs(
        lambda: machine.work(ratio), lambda: machine.work(1.0), 40, warmup=2, clock=machine.clock
    )
    found = compare(*seconds, how="ratio")
    # Pairs are off by one slowdown, up in one order and down in the other: that is all.
    error = (slowdown + 1 / slowdown) / 2 - 1
    assert found.value == pytest.approx(ratio, rel=error + 1e-9)
    # The first call of one and the last of the other are a bad estimate: the load has changed.
    if slowdown != 1.0:
        assert seconds[0][0] / seconds[1][-1] != pytest.approx(ratio, rel=0.5)


def test_outliers_do_not_move_the_median() -> None:
    ours = [2.0] * 9 + [1000.0] * 2
    found = compare(ours, [1.0] * 11, how="ratio")
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)
    assert found.details == {"subject_seconds": 2.0, "baseline_seconds": 1.0}


def test_differences_are_taken_pairwise() -> None:
    assert compare([5.0, 7.0, 9.0], [4.0, 6.5, 7.0], how="difference").value == 1.0


def test_repetitions_and_warmup_are_counted_and_the_order_alternates() -> None:
    calls: list[str] = []
    seconds = time_pairs(lambda: calls.append("a"), lambda: calls.append("b"), 3, warmup=1)
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"
    assert [len(side) for side in seconds] == [3, 3]


def measure_quickly(settings: Settings, repetitions: int) -> Measurement:
    return Measurement(float(repetitions), 1.0, 3.0, {})


def measure_badly(settings: Settings, repetitions: int) -> Measurement:
    raise RuntimeError("no such device\nand a long explanation")


@pytest.mark.parametrize(
    ("target", "measure", "met", "text"),
    [
        (5.0, measure_quickly, True, "met"),
        (4.0, measure_quickly, False, "missed"),
        (5.0, measure_badly, False, "failed: RuntimeError: no such device"),
    ],
)
def test_findings(target: float, measure: object, met: bool, text: str) -> None:
    row = Row("row", target, "s", 5, measure)  # type: ignore[arg-type]
    finding = report.measure(row, Settings())
    assert finding.met is met
    assert finding.line().endswith(text)
    assert finding.record()["met"] is met
    assert ("explanation" in finding.record()["error"]) is (finding.measurement is None)


def test_rows_are_chosen_by_name() -> None:
    assert [row.name for row in report.chosen(ROWS, "tiny*")] == ["tiny call"]
    with pytest.raises(ValueError, match="the rows are: training step, "):
        report.chosen(ROWS, "nothing")


def test_too_few_devices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"asked for 100000 devices of platform cpu"):
        devices("cpu", 100_000)


def test_the_binary_measures_cpu_against_itself(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    command = ["-m", "launch.bench", "--platform=cpu", "--repetitions=2", "--rows=[!i]*y call"]
    process = forked.run(
        [*command, f"--out={out}"], env={**os.environ, "JAX_PLATFORMS": "cpu"}, timeout=300
    )
    assert process.returncode == 0, process.stderr
    document = json.loads(out.read_text())
    assert document["settings"] == {"platform": "cpu", "baseline": "cpu", "repetitions": 2}
    (row,) = document["rows"]
    assert (row["name"], row["error"]) == ("tiny call", "")
    found = row["measurement"]
    assert 0 < found["low"] <= found["value"] <= found["high"]
    assert row["name"] in process.stdout


def test_growth_is_measured_in_a_process() -> None:
    found = processes.growth(Settings(platform="cpu"), repetitions=1, calls=10)
    assert np.isfinite(found.value)


def test_rounding_is_measured_in_a_process() -> None:
    found = processes.rounding(Settings(platform="cpu"), repetitions=1, calls=1)
    assert len(found.details) == 10
    assert found.value == max(found.details.values())
    assert min(found.details.values()) > 0


def test_a_failing_process_says_why() -> None:
    with pytest.raises(RuntimeError, match="nowhere"):
        processes.run_child("nowhere", ["first_jit"], {})


TINY = DecoderConfig(
    vocab_size=96,
    num_layers=2,
    dim=32,
    hidden_dim=48,
    num_heads=4,
    num_kv_heads=4,
    head_dim=8,
    initializer_range=0.5,  # tokens vary
)


def test_loading_reads_what_safetensors_reads(tmp_path: Path) -> None:
    size = loading.write_random(tmp_path, TINY)
    loaded = loading.load(tmp_path, jax.devices("cpu")[: loading.MODEL_AXIS])
    read = loading.read_plainly(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert sum(tensor.nbytes for tensor in read) == size

    def numbers(arrays: Iterable[Any]) -> np.ndarray:
        return np.sort(np.concatenate([np.ravel(np.asarray(a, np.float32)) for a in arrays]))

    np.testing.assert_array_equal(numbers(loaded.parameters.values()), numbers(read))


def test_the_checkpoint_has_a_billion_weights_and_goes_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = []
    monkeypatch.setattr(loading, "write_random", written.append)
    with loading.random_checkpoint() as directory:
        assert written == [directory]
        assert directory.is_dir()
    assert not directory.exists()
    described = describe_fields(Fields(llama_json(loading.BILLION), "the test"))
    _, abstract = described.architecture.abstract(described.config)
    assert sum(leaf.size for leaf in abstract.values()) > 1e9
    assert {str(leaf.dtype) for leaf in abstract.values()} == {"bfloat16"}


@pytest.mark.slow
def test_each_side_of_loading_is_measured_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "write_random", partial(loading.write_random, config=TINY))
    found = processes.loading_time(Settings(platform="cpu"), repetitions=1)
    seconds = found.details["subject_seconds"], found.details["baseline_seconds"]
    assert found.value == seconds[0] / seconds[1] > 1  # for so few weights


def test_peak_memory_sees_what_was_given_back(run_python: RunPython) -> None:
    """In a process of its own, where nobody else takes memory or gives it back."""
    done = run_python("""
        import time
        import numpy as np
        from launch.benchmarks.loading import peak_memory

        def use():
            held = np.ones(100_000_000, np.uint8)
            time.sleep(0.5)  # seen even where the sampling thread has to wait for a core
            del held

        print(peak_memory(lambda: [use() for _ in range(2)])["anonymous"])
    """)
    assert done.returncode == 0, done.stderr
    assert 0.95e8 < float(done.stdout) < 1.3e8


def test_generation_by_hand_gives_the_same_tokens() -> None:
    on = jax.devices("cpu")
    tokens = decoding.generating(on, TINY)()
    assert tokens.shape == (1, decoding.NEW)
    assert len(set(tokens[0].tolist())) > 20
    np.testing.assert_array_equal(decoding.generating_by_hand(on, TINY)(), tokens[0])


@pytest.mark.slow
def test_the_step_by_hand_is_the_jobs() -> None:
    on, config = jax.devices("cpu")[:1], replace(TINY, max_seq_len=16)
    made = training.job(on, training.byte_level(config))
    optimizer, step = training_by_hand.written_step(config)
    state = made.init()
    parameters = jax.tree.map(jnp.copy, state.parameters)
    by_hand = (parameters, optimizer.init(parameters))
    rng = np.random.default_rng(0)
    for _ in range(2):
        batch = next_tokens(rng.integers(0, config.vocab_size, (32, 17), dtype=np.int32))
        state, reported = made.step(state, batch)
        by_hand, loss, norm = step(by_hand, batch["tokens"], batch["targets"])
        np.testing.assert_allclose(loss, reported["loss"], rtol=1e-5)
        np.testing.assert_allclose(norm, reported["grad_norm"], rtol=1e-4)
