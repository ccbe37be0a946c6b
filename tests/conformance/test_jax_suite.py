"""The runner of JAX's test-suite, on a small checkout whose tests misbehave in every known way."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.conformance import (
    suite_files,
    suite_reference,
    suite_runner,
    suite_score,
    suite_settings,
    suite_worker,
)
from tests.conformance.suite_runner import WHOLE, Record, Run, Unit

PYPROJECT = '[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\n'

FILES = {
    "lax_test.py": """
import os, time, unittest

class Cases(unittest.TestCase):
  def test1_passes(self): pass
  def test2_aborts(self): os.abort()
  def test3_hangs(self): time.sleep(600)
  def test4_fails(self): self.assertEqual(1, 2)
  def test5_skips(self): self.skipTest("no such device")
  def test6_interrupts(self): raise KeyboardInterrupt
  def test7_fails_in_part(self):
    for i in range(3):
      with self.subTest(i=i): self.assertLess(i, 2)
  def test8_passes(self): pass
""",
    "missing_test.py": "import a_module_that_does_not_exist",
    "exit_test.py": "import atexit, os\natexit.register(os.abort)\ndef test_passes(): pass\n",
    "pallas/kernel_test.py": "def test_never_run(): assert False",
}

OUTCOMES = {
    "test1_passes": "passed",
    "test2_aborts": "crashed",
    "test3_hangs": "timeout",
    "test4_fails": "failed",
    "test5_skips": "skipped",
    "test6_interrupts": "crashed",
    "test7_fails_in_part": "failed",
    "test8_passes": "passed",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "checkout" / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "checkout" / "pyproject.toml").write_text(PYPROJECT)
    return tmp_path / "checkout"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(environment=os.environ, records=tmp_path / "records", timeout=10.0, crashes=10)


def unit(checkout: Path, name: str) -> Unit:
    tests = checkout / "tests"
    return Unit(name, tests, checkout / "pyproject.toml", (str(tests / name),), tests)


def outcomes(run: Run, name: str) -> dict[str, dict[str, str]]:
    record = suite_runner.read(suite_runner.record_path(run.records, name))
    return {identity.split("::")[-1]: event for identity, event in record.outcomes.items()}


def short_outcomes(run: Run, name: str) -> dict[str, str]:
    return {identity: event["outcome"] for identity, event in outcomes(run, name).items()}


@pytest.mark.slow
def test_every_test_of_a_crashing_file_gets_its_outcome(run: Run, checkout: Path) -> None:
    counts = suite_runner.run_unit(run, unit(checkout, "lax_test.py"))
    assert short_outcomes(run, "lax_test.py") == OUTCOMES
    assert counts == {"passed": 2, "crashed": 2, "timeout": 1, "failed": 2, "skipped": 1}
    errors = {i: event["error"] for i, event in outcomes(run, "lax_test.py").items()}
    assert errors["test2_aborts"].startswith("SIGABRT")
    assert errors["test4_fails"] == "AssertionError: 1 != 2"
    assert errors["test5_skips"] == "Skipped: no such device"


def test_a_broken_off_run_goes_on_without_repeating(run: Run, checkout: Path) -> None:
    name = "lax_test.py"
    record = suite_runner.record_path(run.records, name)
    record.parent.mkdir(parents=True)
    done = '{"event": "outcome", "id": "lax_test.py::Cases::%s", "outcome": "passed"}\n'
    slow = [test for test, outcome in OUTCOMES.items() if outcome in ("crashed", "timeout")]
    record.write_text("".join(done % test for test in slow) + '{"event": "sta')
    suite_runner.run_unit(run, unit(checkout, name))
    assert short_outcomes(run, name) == OUTCOMES | dict.fromkeys(slow, "passed")
    before = record.read_bytes()
    suite_runner.run_unit(run, unit(checkout, name))
    assert record.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("missing_test.py", {"<collection>": "failed"}),
        ("exit_test.py", {"test_passes": "passed", "<exit>": "crashed"}),
    ],
)
def test_faults_outside_of_tests_are_recorded(
    run: Run, checkout: Path, name: str, expected: dict[str, str]
) -> None:
    suite_runner.run_unit(run, unit(checkout, name))
    assert short_outcomes(run, name) == expected


def test_a_file_is_given_up_after_too_many_crashes(run: Run, checkout: Path) -> None:
    (checkout / "tests" / "lax_test.py").write_text(
        "import os, pytest\n@pytest.mark.parametrize('n', range(9))\ndef test(n): os.abort()\n"
    )
    few = replace(run, crashes=2)
    assert suite_runner.run_unit(few, unit(checkout, "lax_test.py")) == {"crashed": 2}


@pytest.mark.slow
def test_parts_of_a_file_add_up(run: Run, checkout: Path) -> None:
    (checkout / "tests" / "lax_test.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', range(9))\ndef test(n): pass\n"
    )
    passed = [
        suite_runner.run_unit(replace(run, sample=(part, 3)), unit(checkout, "lax_test.py"))
        for part in (1, 2, 3)
    ]
    counts = [each["passed"] for each in passed]
    assert 0 < counts[0] < counts[1] < counts[2] == 9
    record = suite_runner.read(suite_runner.record_path(run.records, "lax_test.py"))
    assert suite_score.share_of_tests(record) == pytest.approx(1)


def test_chosen_tests_run_alone(run: Run, checkout: Path) -> None:
    only = ("lax_test.py::Cases::test8_passes",)
    chosen = replace(run, only=only)
    assert suite_runner.run_unit(chosen, unit(checkout, "lax_test.py")) == {"passed": 1}


def test_excluded_files_are_not_listed_and_the_telling_come_first(checkout: Path) -> None:
    names = suite_files.test_files(checkout / "tests", ["*"])
    assert names == ["lax_test.py", "exit_test.py", "missing_test.py"]
    assert suite_files.test_files(checkout / "tests", ["m*", "e*"]) == names[1:]


def test_a_folder_without_tests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="jax_repo"):
        suite_files.test_files(tmp_path, ["*"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("shape [1, 2] at 0x7f1a", "shape [3] at 0x80"),
        ("error 5 in 'f' (file.py:3 (called (twice)))", 'error -1.5e3 in "g" (other.py:20)'),
    ],
)
def test_errors_of_one_cause_look_alike(one: str, other: str) -> None:
    assert suite_score.cause(one) == suite_score.cause(other)
    assert suite_score.cause(one) != suite_score.cause("another " + one)


def test_the_message_of_a_failed_check_is_kept(run: Run, checkout: Path) -> None:
    message = "F1120 20:00:34.613474 24449 client.cc:139] no such handle"
    (checkout / "tests" / "lax_test.py").write_text(
        f"import os\ndef test():\n  os.write(2, b'{message}')\n  os.abort()\n"
    )
    suite_runner.run_unit(run, unit(checkout, "lax_test.py"))
    (event,) = outcomes(run, "lax_test.py").values()
    assert event["error"].startswith("SIGABRT: client.cc:139] no such handle")


TAGGED = """
from jax._src import test_util
from jax._src.internal_test_util.test_harnesses import Harness, Limitation

def test():
  known = Limitation("no such kernel", devices="cpu")
  harness = Harness("group", "name", lambda x: x, [], dtype=None, jax_unimplemented=[known])
  assert not harness.filter("neuron")
  assert harness.filter("neuron", include_jax_unimpl=True)
  assert test_util.test_device_matches(["cpu"])
"""


@pytest.mark.parametrize(("tags", "outcome"), [(("cpu",), "passed"), ((), "failed")])
def test_a_device_is_taken_for_its_tags_too(
    run: Run, checkout: Path, tags: tuple[str, ...], outcome: str
) -> None:
    (checkout / "tests" / "lax_test.py").write_text(TAGGED)
    tagged = replace(run, tags=tags, timeout=60.0)
    assert suite_runner.run_unit(tagged, unit(checkout, "lax_test.py")) == {outcome: 1}


def event(outcome: str, error: str = "", types: Sequence[str] = ()) -> dict[str, Any]:
    return {"outcome": outcome, "error": error, "types": types}


def record(events: dict[str, dict[str, Any]], sample: tuple[int, int] = WHOLE) -> Record:
    return Record(events, frozenset({sample}))


def test_score_counts_what_passes_in_the_reference_only() -> None:
    cpu = {i: event("passed") for i in "abcdeij"} | {"f": event("failed"), "g": event("skipped")}
    neuron = {
        "a": event("passed"),
        "b": event("failed", "ValueError: shape [1, 2] at 0x7f"),
        "c": event("failed", "ValueError: shape [3] at 0x80"),
        "d": event("crashed", "SIGSEGV: "),
        "f": event("failed", "not counted"),
        "g": event("passed"),
        "i": event("skipped", "Skipped: cpu only"),
        "j": event("failed", "not counted", types=["f64"]),
    }
    reference = {"x": record(cpu), "y": record({"h": event("passed")})}
    units = suite_score.unit_scores(reference, {"x": record(neuron)}, {"cases": 1})
    suite_score.add_reasons(units, {"b": "int64"})
    board = suite_score.section(units)
    assert board["score"] == {
        "units": 1,
        "passed_in_reference": 6,
        "passed_in_both": 1,
        "aside": 1,
        "skipped_under_test": 1,
        "share": 0.16667,
        "share_of_not_skipped": 0.2,
    }
    assert [(group["cause"], group["count"]) for group in board["causes"]] == [
        ("failed: ValueError: shape […] at #", 2),
        ("crashed: SIGSEGV: ", 1),
        ("not run: the unit was given up, or has no such test", 1),
        ("skipped: Skipped: cpu only", 1),
    ]
    assert board["totals"]["tested"] == {"crashed": 1, "failed": 4, "passed": 2, "skipped": 1}
    assert board["reasons"] == {"unexplained": 4, "int64": 1}


def test_errors_name_no_folder_of_the_machine() -> None:
    error = "E: at /a/b/jax/tests/a_test.py:3 and/or/not (/c/x/b.py:4)"
    tested = {"x": record({"a": event("failed", error)})}
    units = suite_score.unit_scores({"x": record({"a": event("passed")})}, tested, {})
    (loss,) = units["x"]["lost"]
    assert loss["error"] == "E: at tests/a_test.py:3 and/or/not (x/b.py:4)"


def test_a_sample_is_compared_with_the_same_tests_of_the_reference() -> None:
    names = [f"test{n}" for n in range(40)]
    part = [name for name in names if suite_worker.in_sample(name, 1, 4)]
    units = suite_score.unit_scores(
        {"x": record({name: event("passed") for name in names})},
        {"x": record({name: event("passed") for name in part[1:]}, (1, 4))},
        {},
    )
    assert units["x"]["passed_in_reference"] == len(part) < 20
    assert [loss["id"] for loss in units["x"]["lost"]] == part[:1]
    assert units["x"]["covered"] == 0.25


def test_a_scoreboard_keeps_the_units_of_earlier_runs(tmp_path: Path) -> None:
    board = tmp_path / "board.json"
    for run, names in enumerate([{"a": "passed", "b": "failed"}, {"b": "passed", "c": "passed"}]):
        reference = {name: record({"t": event("passed")}) for name in names}
        tested = {
            name: Record({"t": event(outcome)}, frozenset({WHOLE}), (str(run),))
            for name, outcome in names.items()
        }
        suite_score.update(board, "one", {"v": 1}, suite_score.unit_scores(reference, tested, {}))
        suite_score.update(board, "other", {"v": run}, {})
    written = json.loads(board.read_text())["one"]
    assert {name: score["commits"] for name, score in written["units"].items()} == {
        "a": ["0"],
        "b": ["1"],
        "c": ["1"],
    }
    assert written["score"]["passed_in_both"] == 3


def test_a_part_of_a_unit_does_not_replace_the_whole(tmp_path: Path) -> None:
    board = tmp_path / "board.json"
    samples = [(1, 4), WHOLE, (1, 2), WHOLE]
    for run, sample in enumerate(samples):
        tests = Record({"t": event("passed")}, frozenset({sample}), (str(run),))
        units = suite_score.unit_scores({"u": record({"t": event("passed")})}, {"u": tests}, {})
        suite_score.update(board, "section", {"v": 1}, units)
        commits = json.loads(board.read_text())["section"]["units"]["u"]["commits"]
        assert commits == [str(run) if sample != (1, 2) else "1"]


@pytest.mark.parametrize(
    ("samples", "share"),
    [
        ({WHOLE, (2, 4)}, 1),
        ({(1, 8), (1, 4), (2, 4)}, 1 / 2),
        ({(5, 8), (1, 4)}, 1 / 4),
        ({(2, 8), (1, 4)}, 3 / 8),
    ],
)
def test_parts_of_parts_count_once(samples: set[tuple[int, int]], share: float) -> None:
    assert suite_score.share_of_tests(Record({}, frozenset(samples))) == share


def test_the_reference_is_kept_of_the_same_versions_only(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json.xz"
    outcomes = {"x::a": event("passed"), "x::b": event("skipped")}
    kept = {"x": record(outcomes), "half": record({"half::a": event("passed")}, (1, 2))}
    suite_reference.write(path, {"jax": "1"}, kept)
    (read,) = suite_reference.read(path, {"jax": "1"}).values()
    assert {i: e["outcome"] for i, e in read.outcomes.items()} == {
        "x::a": "passed",
        "x::b": "skipped",
    }
    assert suite_reference.read(path, {"jax": "2"}) == {}
    assert suite_reference.read(tmp_path / "missing", {}) == {}


@pytest.mark.parametrize(
    ("function", "arguments", "types"),
    [
        (lambda x: x[1:, ::2] + 1, (np.zeros((4, 8), np.float32),), set()),
        (lambda x: lax.rev(x, (0,)), (np.zeros(4, np.float32),), set()),
        (jnp.fft.fft, (np.zeros(4, np.float32),), {"complex<f32>"}),
        (lambda x: x * 2, (np.zeros(4, np.float64),), {"f64"}),
        (lambda: jnp.arange(4), (), {"i64"}),
        (lambda x: x.astype(jnp.uint64), (np.int32(3),), {"ui64"}),
    ],
)
def test_types_that_no_engine_has_are_seen(
    function: Callable[..., Any], arguments: tuple[Any, ...], types: set[str]
) -> None:
    with jax.enable_x64(True):
        text = jax.jit(function).lower(*arguments).as_text()
    assert suite_worker.foreign_types(text) == types


def test_a_setting_starts_from_nothing_of_ours() -> None:
    inherited = {
        "NEURONJAX_NUMERICS": "ieee",
        "XLA_FLAGS": "-x",
        "JAX_ENABLE_X64": "1",
        "HOME": "/",
    }
    for setting, own in suite_settings.SETTINGS.items():
        environment = suite_settings.environment(inherited, setting, 4)
        assert environment.items() >= {"HOME": "/", **own}.items()
        assert "JAX_ENABLE_X64" not in environment
        assert ("NEURONJAX_NUMERICS" in environment) == ("NEURONJAX_NUMERICS" in own)
