"""A run that is killed, stopped and out of space goes on to the same losses."""

from pathlib import Path

import pytest

from tests.training.interruptions import WAYS, finish, interrupt

IN_TURN = ("kill in the middle of saving", "full disk", "SIGTERM", "Ctrl-C twice")


@pytest.mark.slow
def test_an_interrupted_run_has_the_losses_of_an_uninterrupted_one(tmp_path: Path) -> None:
    expected = finish(tmp_path / "uninterrupted")
    for name in IN_TURN:
        interrupt(tmp_path / "interrupted", WAYS[name])
    assert finish(tmp_path / "interrupted") == expected
