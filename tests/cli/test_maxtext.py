"""`neuronjax maxtext`: what it adds to MaxText's settings and what it refuses.

The runs themselves need MaxText, and so Python 3.12: `python -m tests.clients`.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from neuronjax.cli.main import main
from neuronjax.cli.maxtext import AXES, COMPILER, DEFAULTS, SETTINGS, settings_for_chip

_BASE = "attention: 'autoselected'\nmegablox: true\nhardware: 'tpu'\n"


@pytest.fixture
def maxtext(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the name, which has nothing but its settings."""
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "base.yml").write_text(_BASE)
    package = types.ModuleType("maxtext")
    package.__path__ = [str(tmp_path)]
    package.__spec__ = types.SimpleNamespace(name="maxtext")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "maxtext", package)
    monkeypatch.setitem(sys.modules, SETTINGS, types.SimpleNamespace(initialize=list))
    axes = types.SimpleNamespace(fill_unspecified_mesh_axes=list)
    monkeypatch.setitem(sys.modules, AXES, axes)
    return tmp_path


def test_what_the_chip_needs_is_added_where_the_version_knows_it(maxtext: Path) -> None:
    file, *settings = settings_for_chip(["steps=5", "hardware=cpu"], DEFAULTS)
    assert file == str(maxtext / "configs" / "base.yml")
    assert {"steps=5", "hardware=cpu", "attention=dot_product", "megablox=False"} < {*settings}
    assert not any(setting.startswith("use_tokamax_gmm") for setting in settings)


def test_a_file_of_the_users_takes_the_place_of_the_base(maxtext: Path) -> None:
    assert settings_for_chip(["own.yml", "steps=5"], {})[0] == "own.yml"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "attention=flash"], "set attention=dot_product, or leave it out"),
        (["train", "megablox=True"], "set megablox=False, or leave it out"),
        (["compile", "--target=trn2.48xlarge", "use_tokamax_gmm=true"], "set use_tokamax_gmm="),
        (["train", "steps=5", "own.yml"], "write it as NAME=VALUE"),
        (["train", "--target=trn2.49xlarge"], "trn2.48xlarge"),
        (["compile", "--instances=0"], "--instances"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_settings_are_one_line(
    words: list[str], message: str, maxtext: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["maxtext", *words])
    except SystemExit as end:
        code = end.code
    printed = capsys.readouterr().err.strip()
    assert code == 2
    assert message in printed.splitlines()[-1]
    assert "Traceback" not in printed


def test_without_maxtext_the_page_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["maxtext", "train"]) == 2
    assert "pip install --no-deps maxtext" in capsys.readouterr().err


def test_axes_that_do_not_multiply_to_the_cores_are_named(
    maxtext: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the words of MaxText's own assertion, as its version 0.2.5 has them."""

    def fill() -> None:
        raise AssertionError(
            "Number of devices per slice 64 does not match the product of the ICI parallelism 48"
        )

    axes = types.SimpleNamespace(fill_unspecified_mesh_axes=fill)
    monkeypatch.setitem(sys.modules, AXES, axes)
    _with_compiler(lambda words: axes.fill_unspecified_mesh_axes(), monkeypatch)
    assert main(["maxtext", "compile", "--target=trn2.48xlarge", "ici_fsdp_parallelism=48"]) == 2
    printed = capsys.readouterr().err
    assert "devices per slice 64" in printed
    assert "parallelism 48. Choose ici_" in printed
    assert "Traceback" not in printed


class _Invalid(ValueError):
    """As pydantic's."""

    def errors(self) -> list[dict[str, object]]:
        kinds = ", ".join(map(repr, ("llama3-8b", "gpt3-6b", *"abcdefgh")))
        told = f"Input should be {kinds}"
        return [{"loc": ("model_name",), "input": "lama3-8b", "msg": told}]


def _unknown(exits: bool) -> None:
    try:
        names = ", ".join(map(repr, ("ici_fsdp_parallelism", "steps", *"abcdefgh")))
        raise ValueError(f"'ici_fsdp_paralelism' not in {names}.")
    except ValueError:
        if exits:
            sys.exit(2)
        raise


def _invalid(exits: bool) -> None:
    raise _Invalid("1 validation error")


def _wrong_type(exits: bool) -> None:
    raise ValueError("Input should be a valid integer")


@pytest.mark.parametrize("exits", [False, True], ids=["raises", "exits"])
@pytest.mark.parametrize(
    ("refuse", "message"),
    [
        (_unknown, "not know 'ici_fsdp_paralelism'. Did you mean ici_fsdp_parallelism?"),
        (_invalid, "not know 'lama3-8b'. Did you mean llama3-8b?"),
        (_wrong_type, "Input should be a valid integer"),
    ],
)
def test_what_maxtext_refuses_is_one_line(
    refuse: Callable[[bool], None],
    message: str,
    exits: bool,
    maxtext: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its version 0.2.5 ends the process after an error, unless a test framework is loaded."""
    settings = types.SimpleNamespace(initialize=lambda words: refuse(exits))
    monkeypatch.setitem(sys.modules, SETTINGS, settings)
    _with_compiler(lambda words: settings.initialize(words), monkeypatch)
    assert main(["maxtext", "compile", "--target=trn2.48xlarge", "steps=5"]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert len(printed.splitlines()) == 1


def _with_compiler(work: Callable[[list[str]], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for MaxText's compiler, whose place the command does not take then."""

    @contextlib.contextmanager
    def unpatched(*_: object) -> Iterator[None]:
        yield

    monkeypatch.setattr("neuronjax.cli.maxtext._compiling_with", unpatched)
    monkeypatch.setitem(sys.modules, COMPILER, types.SimpleNamespace(main=work))
