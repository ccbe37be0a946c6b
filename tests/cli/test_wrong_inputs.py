"""Wrong input to every command: one line that says what is wrong, and exit code 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronjax.cli.main import COMMANDS, main

WRONG = "tests.cli.wrong_programs:"
ROW = '["trn1.2xlarge"]\nusd_per_hour = 1.0\nsource = "page"\n'
FILES = {
    "broken.py": "def make(:\n",
    "raising.py": "import nowhere_at_all\n",
    "empty.py": "",
    "bad.toml": "[chip",
    "field.toml": "[chip.hbm]\nsize = 1\n",
    "date.toml": f'{ROW}date = "soon"\n',
    "euro.toml": f'{ROW}date = "2026-01-01"\ncurrency = "EUR"\n',
    "negative.toml": f'{ROW}date = "2026-01-01"\n'.replace("1.0", "-1.0"),
    "record.json": "{}",
}


def estimate(program: str, *more: str) -> tuple[str, ...]:
    return (
        "estimate",
        f"{WRONG}{program}",
        "--target=trn2.48xlarge",
        *(more or ("--mesh=model=3",)),
    )


CASES: list[tuple[tuple[str, ...], str]] = [
    (("lnt",), "Did you mean lint?"),
    (("--verbose", "ls"), "--verbose"),
    (("completion", "csh"), "'csh' is not one of bash, fish, zsh"),
    (("doctor", "now"), "unknown argument 'now'"),
    (("estimate",), "MODULE:FUNCTION"),
    (("estimate", "layer"), "write module:function"),
    (("estimate", "nowhere:make"), "there is no module 'nowhere'"),
    (("estimate", "broken:make"), "cannot be imported: SyntaxError"),
    (("estimate", "raising:make"), "No module named 'nowhere_at_all' (at raising.py:1)"),
    (("estimate", "empty:make"), "has no function 'make'"),
    (("estimate", f"{WRONG}odd_weigth"), "Did you mean odd_weight?"),
    (("estimate", f"{WRONG}mismatch", "--set=colour=1"), "has no parameter colour"),
    (("estimate", f"{WRONG}mismatch", "--set=1"), "write it as NAME=VALUE"),
    (("estimate", f"{WRONG}mismatch", "--batch=none"), "'none' is not a whole number"),
    (("estimate", f"{WRONG}mismatch", "--mesh=model=0"), "mesh axis 'model' has size 0"),
    (("estimate", f"{WRONG}mismatch", "--depths=4,3"), "--depths '4,3' is malformed"),
    (("estimate", f"{WRONG}mismatch", "--price=-1"), "'-1' is not a number greater than 0"),
    (("estimate", f"{WRONG}mismatch", "--target=trn2.48xlrage"), "Did you mean trn2.48xlarge"),
    (("estimate", f"{WRONG}mismatch", "--target=inf1.xlarge"), "AWS publishes neither"),
    (("estimate", f"{WRONG}mismatch", "--lnc=3"), "allowed: 1 or 2"),
    (("estimate", f"{WRONG}mismatch", "--faults=slow"), "faults"),
    (("estimate", f"{WRONG}mismatch", "--machine=bad.toml"), "bad.toml is not TOML"),
    (("estimate", f"{WRONG}mismatch", "--machine=field.toml"), "has no field 'size'"),
    (("estimate", f"{WRONG}mismatch", "--machine=lnc = 3"), "allowed: 1 or 2"),
    (("estimate", f"{WRONG}mismatch", "--prices=date.toml"), "date is 'soon', but must be a day"),
    (("estimate", f"{WRONG}mismatch", "--prices=euro.toml"), "Prices are in US dollars"),
    (("estimate", f"{WRONG}mismatch", "--prices=negative.toml"), "usd_per_hour is -1.0"),
    (estimate("odd_weight"), "argument params['up'] of shape (1024, 4096) has dimension 1 of size "
     "4096, which model=3 does not divide; sizes of model that do: 1, 2, 4, 8"),
    (estimate("odd_rows", "--mesh=data=2,model=3"), "data=2,model=3 does not divide"),
    (estimate("odd_result"), "is of size 1024, which 3 parts do not divide"),
    (estimate("odd_shard"), "is of size 1024, which 3 parts do not divide"),
    (estimate("deep_spec"), "of rank at least 2, but was applied to a value of rank 1"),
    (estimate("missing_axis"), "the mesh has the axes model"),
    (estimate("mismatch"), "contracting dimensions"),
    (estimate("concrete"), "TracerBoolConversionError"),
    (estimate("raises"), "KeyError: 'of several"),
    (estimate("fails_to_make"), "ZeroDivisionError (at "),
    (estimate("no_argument"), "missing 1 required positional argument"),
    (estimate("text_argument"), "<class 'str'>"),
    (estimate("odd_kinds"), "no argument is called 'y'"),
    (estimate("mismatch", "--pad"), "cannot pad: it has no parameter pad"),
    (estimate("odd_key"), "return a dict with fn"),
    (("fit", "nowhere"), "not a directory, a file or a published name"),
    (("fit", f"{WRONG}mismatch", "--targets=trn9"), "'trn9' is not a known instance"),
    (("sweep", f"{WRONG}mismatch", "--batch=1,x"), "'x' is not a whole number"),
    (("sweep", f"{WRONG}mismatch", "--out=/proc/nothing"), "/proc/nothing"),
    (("cost", f"{WRONG}mismatch", "--versus=p4d"), "NAME=USD,RATE"),
    (("cost", f"{WRONG}mismatch", "--steps=0"), "'0' is not a whole number"),
    (("launch", "--hosts=0", "x.py"), "'0' is not a whole number"),
    (("launch", "--hosts=2", "nowhere.py"), "there is no script 'nowhere.py'"),
    (("lint", "nowhere.py"), "there is no script 'nowhere.py'"),
    (("lint", "--severity=fatal", "x.py"), "'fatal' is not one of error, warning, note"),
    (("lower", "--stop_after=nothing", "x.py"), "'nothing' is not one of"),
    (("run", "nowhere.py"), "there is no script"),
    (("profile", "nowhere.py"), "there is no script"),
    (("monitor", "--port=0"), "'0' is not a whole number"),
    (("top", "--port=99999"), "'99999' is not a whole number"),
    (("nccom", "allr", "-r", "3000"), "do not fit"),
    (("nccom", "broadcst", "-r", "4"), "is not one of"),
    (("nki", "check", "nowhere.py:kernel", "--shapes=8x8"), "nowhere.py"),
    (("replay", "record.json"), "record.json"),
    (("ls", "--target=trn7"), "not a known instance"),
    (("validate", "--only=zzzz"), "matches the beginning of no point's name"),
    (("validate", "--only=("), "is not a regular expression"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "words"), CASES, ids=lambda case: " ".join(case)[:60])
def test_one_line_and_exit_code_2(
    arguments: tuple[str, ...],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("jax.config.update", lambda *_: None)  # this process has its platforms
    try:
        code = main(arguments)
    except SystemExit as end:
        code = int(end.code or 0)
    captured = capsys.readouterr()
    assert code == 2, captured.err
    (line,) = captured.err.splitlines()
    assert line.startswith("neuronjax")
    assert words in line
    assert captured.out == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_narrow_terminals(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert "\x1b" not in capsys.readouterr().out
