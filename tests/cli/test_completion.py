"""What shells complete: asked of bash itself."""

from __future__ import annotations

import subprocess

import pytest

from neuronjax.cli.completion import SHELLS
from neuronjax.cli.main import COMMANDS, main


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["lin"], ["lint"]),
        (["es"], ["estimate"]),
        (["lint", "--sev"], ["--severity"]),
        (["lint", "--severity", "w"], ["warning"]),
        (["lint", "--severity", "=", "e"], ["error"]),
        (["lint", "--format", "="], ["text", "json"]),
        (["completion", ""], ["bash", "fish", "zsh"]),
        (["lint", "tra"], []),  # files are the shell's own
        (["unknown", "--sev"], []),
    ],
)
def test_bash_completes(
    words: list[str], completed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    ask = 'COMP_WORDS=(neuronjax "$@"); COMP_CWORD=$#; _neuronjax; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", script + ask, "bash", *words], capture_output=True, text=True, check=True
    )
    assert not done.stderr
    assert sorted(done.stdout.split()) == sorted(completed)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_is_completed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert set(COMMANDS) <= set(capsys.readouterr().out.replace("'", " ").split())
