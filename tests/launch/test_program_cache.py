"""Programs on disk: another process finds them, unless the platform's own files have changed."""

import os
from pathlib import Path

import pytest

from neuronjax.pjrt.client_state import sources_digest
from tests.conftest import RunPython


@pytest.mark.parametrize("named", [False, True], ids=["by the flag", "by JAX's variable"])
def test_the_next_process_finds_them(run_python: RunPython, tmp_path: Path, named: bool) -> None:
    code = f"""
        import jax
        from launch.program_cache import keep_programs
        hits = []
        jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
        keep_programs({str(tmp_path / "flag")!r})
        print(jax.jit(lambda x: x * 2 + 1)(20.5))
        print(hits.count("/jax/compilation_cache/cache_hits"))
    """
    variable = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    variable |= {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "variable")} if named else {}
    first, second = (run_python(code, variable).stdout.split() for _ in range(2))
    assert first == ["42.0", "0"]
    assert second[0] == "42.0"
    assert int(second[1]) > 0
    assert [folder.name for folder in tmp_path.iterdir()] == ["variable" if named else "flag"]


def test_edited_files_make_other_programs(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    file = tmp_path / "room" / "a.py"
    file.write_text("a = 1")
    before = sources_digest(tmp_path)
    assert sources_digest(tmp_path) == before
    os.utime(file, ns=(1, 1))
    assert sources_digest(tmp_path) != before
