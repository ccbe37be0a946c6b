"""`--help` of a program shows every flag that it defines, wherever the definition stands."""

from __future__ import annotations

import pytest

from tests.conftest import RunPython

FLAGS = {
    "launch.train": ("--steps", "--data", "--learning_rate", "--preset", "--num_layers"),
    "launch.serve": ("--checkpoint_dir", "--mesh", "--served_model_name", "--port"),
    "launch.route": ("--servers", "--port", "--api_key_file"),
    "launch.generate": ("--prompt", "--temperature", "--max_new_tokens"),
}


@pytest.mark.parametrize("module", FLAGS)
def test_help_shows_the_flags(module: str, run_python: RunPython) -> None:
    run = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    text = run_python(f"import runpy, sys; sys.argv[1:] = ['--help']; {run}").stdout
    assert [flag for flag in FLAGS[module] if f"\n  {flag}:" not in text] == []
