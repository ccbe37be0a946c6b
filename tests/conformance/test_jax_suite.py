"""The runner of JAX's test-suite, on a small checkout whose tests misbehave in every known way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance import suite_files, suite_runner, suite_score
from tests.conformance.suite_runner import Settings

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
def settings(tmp_path: Path) -> Settings:
    checkout = tmp_path / "checkout"
    for name, text in FILES.items():
        path = checkout / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (checkout / "pyproject.toml").write_text(PYPROJECT)
    return Settings(
        checkout=checkout,
        platform="cpu",
        x64=False,
        work=tmp_path / "work",
        cases=1,
        timeout=10.0,
        crashes=10,
    )


def short_outcomes(settings: Settings, name: str) -> dict[str, str]:
    record = suite_runner.record_path(settings.folder(), name)
    found = suite_runner.outcomes(record)
    return {identity.split("::")[-1]: event["outcome"] for identity, event in found.items()}


def test_every_test_of_a_crashing_file_gets_its_outcome(settings: Settings) -> None:
    counts = suite_runner.run_file(settings, "lax_test.py")
    assert short_outcomes(settings, "lax_test.py") == OUTCOMES
    assert counts == {"passed": 2, "crashed": 2, "timeout": 1, "failed": 2, "skipped": 1}
    record = suite_runner.record_path(settings.folder(), "lax_test.py")
    errors = {i.split("::")[-1]: e["error"] for i, e in suite_runner.outcomes(record).items()}
    assert errors["test2_aborts"].startswith("SIGABRT")
    assert errors["test4_fails"] == "AssertionError: 1 != 2"
    assert errors["test5_skips"] == "Skipped: no such device"


def test_a_broken_off_run_goes_on_without_repeating(settings: Settings) -> None:
    name = "lax_test.py"
    record = suite_runner.record_path(settings.folder(), name)
    record.parent.mkdir(parents=True)
    done = '{"event": "outcome", "id": "lax_test.py::Cases::%s", "outcome": "passed"}\n'
    slow = [test for test, outcome in OUTCOMES.items() if outcome in ("crashed", "timeout")]
    record.write_text("".join(done % test for test in slow) + '{"event": "sta')
    suite_runner.run_file(settings, name)
    assert short_outcomes(settings, name) == OUTCOMES | dict.fromkeys(slow, "passed")
    before = record.read_bytes()
    suite_runner.run_file(settings, name)
    assert record.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("missing_test.py", {"<collection>": "failed"}),
        ("exit_test.py", {"test_passes": "passed", "<exit>": "crashed"}),
    ],
)
def test_faults_outside_of_tests_are_recorded(
    settings: Settings, name: str, expected: dict[str, str]
) -> None:
    suite_runner.run_file(settings, name)
    assert short_outcomes(settings, name) == expected


def test_a_file_is_given_up_after_too_many_crashes(settings: Settings) -> None:
    (settings.checkout / "tests" / "lax_test.py").write_text(
        "import os, pytest\n@pytest.mark.parametrize('n', range(9))\ndef test(n): os.abort()\n"
    )
    few = Settings(**{**vars(settings), "crashes": 2})
    assert suite_runner.run_file(few, "lax_test.py") == {"crashed": 2}


def test_excluded_files_are_not_listed_and_the_telling_come_first(settings: Settings) -> None:
    names = suite_files.test_files(settings.checkout / "tests", "*")
    assert names == ["lax_test.py", "exit_test.py", "missing_test.py"]


def test_a_folder_without_tests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="jax_repo"):
        suite_files.test_files(tmp_path, "*")


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


def test_the_message_of_a_failed_check_is_kept(settings: Settings) -> None:
    message = "F1120 20:00:34.613474 24449 client.cc:139] no such handle"
    (settings.checkout / "tests" / "lax_test.py").write_text(
        f"import os\ndef test():\n  os.write(2, b'{message}')\n  os.abort()\n"
    )
    suite_runner.run_file(settings, "lax_test.py")
    record = suite_runner.record_path(settings.folder(), "lax_test.py")
    (found,) = suite_runner.outcomes(record).values()
    assert found["error"].startswith("SIGABRT: client.cc:139] no such handle")


def event(outcome: str, error: str = "") -> dict[str, str]:
    return {"outcome": outcome, "error": error}


def test_score_counts_what_passes_on_cpu_only() -> None:
    cpu = {i: event("passed") for i in "abcdei"} | {"f": event("failed"), "g": event("skipped")}
    neuron = {
        "a": event("passed"),
        "b": event("failed", "ValueError: shape [1, 2] at 0x7f"),
        "c": event("failed", "ValueError: shape [3] at 0x80"),
        "d": event("crashed", "SIGSEGV: "),
        "f": event("failed", "not counted"),
        "g": event("passed"),
        "i": event("skipped", "Skipped: cpu only"),
    }
    results = {"cpu": {"x": cpu, "y": {"h": event("passed")}}, "neuron": {"x": neuron}}
    board = suite_score.scoreboard(suite_score.file_scores(results, cases=3))
    assert board["score"] == {
        "files": 1,
        "passed_on_cpu": 6,
        "passed_on_both": 1,
        "skipped_on_neuron": 1,
        "share": 0.16667,
        "share_of_not_skipped": 0.2,
    }
    assert [(group["cause"], group["count"]) for group in board["causes"]] == [
        ("failed: ValueError: shape […] at #", 2),
        ("crashed: SIGSEGV: ", 1),
        ("not run: the file was given up, or has no such test", 1),
        ("skipped: Skipped: cpu only", 1),
    ]
    assert board["totals"]["neuron"] == {"crashed": 1, "failed": 3, "passed": 2, "skipped": 1}


def test_a_scoreboard_keeps_the_files_of_earlier_runs(tmp_path: Path) -> None:
    def record(work: Path, name: str, outcome: str) -> None:
        for platform in suite_score.PLATFORMS:
            folder = suite_runner.records_folder(work, platform, False)
            folder.mkdir(parents=True, exist_ok=True)
            lines = [{"event": "outcome", "id": f"{name}::t", **event(outcome)}, {"event": "end"}]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            suite_runner.record_path(folder, f"{name}.py").write_text(text)

    board = tmp_path / "board.json"
    for run, names in enumerate([{"a": "passed", "b": "failed"}, {"b": "passed", "c": "passed"}]):
        for name, outcome in names.items():
            record(tmp_path / str(run), name, outcome)
        suite_score.write(board, tmp_path / str(run), False, cases=run + 1)
    written = json.loads(board.read_text())
    assert {name: file["cases"] for name, file in written["files"].items()} == {
        "a": 1,
        "b": 2,
        "c": 2,
    }
    assert written["score"]["passed_on_both"] == 3
