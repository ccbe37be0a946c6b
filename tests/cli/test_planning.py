"""``neuronjax estimate``, ``sweep``, ``nccom`` and ``ls`` as one calls them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from neuronjax.cli import main as cli

STACK = "tests.planning.programs:stack"


@pytest.fixture
def out(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Runs a command line; gives its exit code and both outputs."""
    monkeypatch.setattr("jax.config.update", lambda *_: None)  # this process has its platforms

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_estimate(out, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    picture = tmp_path / "roofline.svg"
    code, text, _ = out(
        "estimate", STACK, "--target=trn2.3xlarge", "--mesh=model=4", "--batch=64", "--price=3",
        f"--roofline={picture}",
    )  # fmt: skip
    assert code == 0
    assert "trn2.3xlarge" in text
    assert "mesh model=4" in text
    assert "8 identical layers, extrapolated from 3 and 4" in text
    assert "1 M tokens" in text
    assert picture.read_text().startswith("<svg")


def test_estimate_json_layers_and_settings(out) -> None:  # type: ignore[no-untyped-def]
    code, text, _ = out(
        "estimate", STACK, "--target=trn1.2xlarge", "--layers=2", "--set=dtype=float32",
        "--format=json",
    )  # fmt: skip
    record = json.loads(text)
    assert code == 0
    assert record["memory"]["weights"] == 4 * (2 * 2 * 128 * 256)
    assert record["assumed"] == []


def test_estimate_that_does_not_fit(out, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "small.toml"
    file.write_text('[chip.hbm]\ncapacity_bytes = "256 MiB"\n[chip]\nmicrocode_bytes = "128 MiB"\n')
    code, text, _ = out("estimate", STACK, "--target=trn1.2xlarge", f"--machine={file}")
    assert code == 1
    assert "It does not fit" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["estimate", STACK, "--target=trn7"], "not a known instance"),
        (["estimate", STACK, "--mesh=model"], "malformed"),
        (["estimate", STACK, "--depths=3"], "--depths"),
        (["estimate", STACK, "--set", "x"], "NAME=VALUE"),
        (["estimate", STACK, "--set", "colour=1"], "has no parameter colour"),
        (["estimate", "nowhere:nothing"], "no module"),
        (["estimate", STACK, "--machine=none.toml"], "none.toml"),
        (
            ["estimate", "launch.workloads:llama_decode", "--set=model=9b"],
            "SettingsError: model='9b' is unknown; choose one of 1b, 8b, 70b (at ",
        ),
        (
            ["estimate", "launch.workloads:llama_train", "--mesh=data=3,model=5"],
            "does not divide kv_heads=8",
        ),
        (
            ["estimate", "launch.workloads:llama_decode", "--set=model=1b", "--mesh=modl=4"],
            "the mesh has the axes modl. Name the axes that it uses, such as --mesh=model=4 (at ",
        ),
        (["fit", "nowhere"], "not a directory, a file or a published name. MODULE:FUNCTION works"),
        (["fit", "stabilityai/stable-diffusion-xl-base-1.0"], "name one of"),
        (["fit", "meta-llama/Llama-3.1-8"], "Did you mean meta-llama/Llama-3.1-8B"),
        (["fit", STACK, "--target=trn7"], "not a known instance"),
        (["fit", "tests/cli"], "config.json"),
        (["nccom", "allr", "-r", "3000"], "do not fit"),
        (["nccom", "allr", "-r", "4", "-f", "1"], "factor"),
        (["ls", "--target=trn7"], "not a known instance"),
    ],
)
def test_refused(out, arguments: list[str], words: str) -> None:  # type: ignore[no-untyped-def]
    code, _, errors = out(*arguments)
    assert code == 2
    assert words in errors


def test_sweep(out, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, text, errors = out(
        "sweep", STACK, "--targets=trn1.2xlarge,trn2.3xlarge", "--mesh=core=1", "--batch=64,128",
        "--layers=1", f"--out={tmp_path / 'found'}",
    )  # fmt: skip
    assert code == 0
    assert text.count("trn2.3xlarge") == 2
    assert "[1/4] trn1.2xlarge core=1 b64: done" in errors
    record = json.loads((tmp_path / "found" / "sweep.json").read_text())
    assert len(record["points"]) == 4
    assert (tmp_path / "found" / "sweep.svg").read_text().startswith("<svg")
    _, _, errors = out(
        "sweep", STACK, "--targets=trn1.2xlarge,trn2.3xlarge", "--mesh=core=1",
        "--batch=64,128,256", "--layers=1", f"--out={tmp_path / 'found'}",
    )  # fmt: skip
    assert "4 of 6 points are already in" in errors
    assert "[2/2] trn2.3xlarge core=1 b256: done" in errors
    assert "b64" not in errors


def test_a_folder_that_cannot_be_written_to_costs_no_work(out) -> None:  # type: ignore[no-untyped-def]
    code, _, errors = out("sweep", STACK, "--layers=1", "--out=/proc/nothing")
    assert code == 2
    assert "/proc/nothing" in errors
    assert "done" not in errors


def test_fit(out, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 96,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = str(tmp_path / "config.json")
    given = ("--target=trn2.3xlarge", "--phases=decode", "--length=32", "--mesh=data=2,model=2")
    code, text, errors = out("fit", model, *given)
    assert code == 0
    assert "tokens/s" in text
    assert "decode on trn2.3xlarge: fits" in errors
    code, text, _ = out("fit", model, *given, "--format=json")
    (row,) = json.loads(text)
    assert row["points"][0]["estimate"]["tokens"] == 2
    code, _, errors = out("fit", model, *given, "--phases=painting")
    assert code == 2
    assert "has no painting; it has prefill, decode" in errors
    (tmp_path / "config.json").write_text(json.dumps({**config, "rms_norm_eps": -1.0}))
    code, _, errors = out("fit", model, *given)
    assert code == 2
    assert errors.startswith(f"neuronjax: {model} has rms_norm_eps=-1.0: it must be a number from")


DYING = """\
import os
import jax

def step(mesh, batch=4):
    if mesh.shape["model"] == 2:
        os.abort()
    return (lambda x: x + 1), jax.ShapeDtypeStruct((batch, 8), "float32")
"""


@pytest.mark.parametrize(
    ("command", "meshes", "expected"),
    [
        ("sweep", ("model=1", "model=2", "model=4"), ["model=1: done", "died", "model=4: done"]),
        ("fit", ("data=1,model=2",), ["dying:step on trn2.3xlarge: unknown"]),
    ],
)
def test_estimates_outlive_a_process_that_dies(  # type: ignore[no-untyped-def]
    command: str,
    meshes: tuple[str, ...],
    expected: list[str],
    out,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As XLA ends one."""
    (tmp_path / "dying.py").write_text(DYING)
    monkeypatch.chdir(tmp_path)
    given = [f"--mesh={mesh}" for mesh in meshes]
    code, text, errors = out(command, "dying:step", "--targets=trn2.3xlarge", *given)
    assert code == (command == "fit")
    assert "the process that estimated it died" in text
    for line, words in zip(errors.splitlines(), expected, strict=True):
        assert words in line


def test_fit_without_the_repository(  # type: ignore[no-untyped-def]
    out, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neuronjax.cli.fit.MODELS", "nowhere.model_workloads:phases")
    code, _, errors = out("fit", str(tmp_path))
    assert code == 2
    assert "run this in a checkout, or give MODULE:FUNCTION" in errors


def test_nccom_units_are_those_of_nccom_test(out, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """40.69 there is GiB/s: 33554432 bytes in 768 us."""
    report = tmp_path / "report.json"
    code, text, _ = out(
        "nccom", "-r", "2", "-b", "32MB", "-d", "uint8", "allr", "--target=trn1.2xlarge",
        f"--report-to-json-file={report}",
    )  # fmt: skip
    assert code == 0
    lines = text.splitlines()
    headings = ["size(B)", "count(elems)", "type", "time:avg(us)", "algbw(GB/s)", "busbw(GB/s)"]
    assert lines[0].split() == headings
    size, count, dtype, time, algorithm, bus = lines[1].split()
    assert (size, count, dtype) == ("33554432", "33554432", "uint8")
    gib = 33554432 / (float(time) * 1e-6) / (1 << 30)
    assert float(algorithm) == pytest.approx(gib, abs=0.01)
    assert float(bus) == pytest.approx(gib, abs=0.01)  # 2(r - 1)/r is 1 for two ranks
    (row,) = json.loads(report.read_text())["results"]
    assert lines[2] == f"Avg bus bandwidth: {row['bus_bandwidth']:.4f}GB/s"


def test_nccom_sizes_and_nodes(out) -> None:  # type: ignore[no-untyped-def]
    _, text, _ = out(
        "nccom", "-r", "64", "-b", "8", "-e", "1GB", "-f", "2", "-d", "bf16", "allr",
        "--target=trn2.48xlarge", "--show-algorithm",
    )  # fmt: skip
    rows = [line.split(maxsplit=6) for line in text.splitlines()[1:-1]]
    assert [int(row[0]) for row in rows] == [8 << i for i in range(28)]
    assert [int(row[1]) for row in rows] == [4 << i for i in range(28)]
    times = [float(row[3]) for row in rows]
    assert times == sorted(times)
    assert rows[-1][6] == "kangaring"
    _, two, _ = out("nccom", "-r", "64", "-N", "2", "-b", "1MB", "allg", "--target=trn1.32xlarge")
    _, one, _ = out("nccom", "-r", "32", "-b", "1MB", "allg", "--target=trn1.32xlarge")
    assert float(two.splitlines()[1].split()[3]) > float(one.splitlines()[1].split()[3])


def test_nccom_tells_a_benchmark_from_a_program(out) -> None:  # type: ignore[no-untyped-def]
    given = ("nccom", "-r", "64", "-b", "64KB", "allr", "--target=trn2.48xlarge")
    _, alone, note = out(*given, "--show-algorithm")
    _, within, _ = out(*given, "--show-algorithm", "--in-program")
    assert "mesh" in alone.splitlines()[1]
    assert "ring" in within.splitlines()[1]
    assert float(within.splitlines()[1].split()[3]) > float(alone.splitlines()[1].split()[3])
    assert "not modelled" in note
    assert "--in-program" in note
    factors = re.search(r"within (\S+) to (\S+) of these times, by: collectives, ", note)
    assert factors is not None
    assert float(factors[1]) < 1 < float(factors[2])


def test_ls(out) -> None:  # type: ignore[no-untyped-def]
    """The sample row of tools/neuron-sys-tools/neuron-ls.rst, without what only hosts have."""
    code, text, _ = out("ls", "--target=trn2.48xlarge", "--lnc=2", "-t")
    assert code == 0
    lines = text.splitlines()
    assert lines[:2] == ["instance-type: trn2.48xlarge", "logical-neuroncore-config: 2"]
    cells = [cell.strip() for cell in lines[6].strip("|").split("|")]
    assert cells == ["0", "4", "0-3", "96 GB", "12, 3, 4, 1"]
    assert "[  0 ]==[  1 ]==[  2 ]==[  3 ]" in text


def test_ls_json(out) -> None:  # type: ignore[no-untyped-def]
    _, text, _ = out("ls", "-j", "--target=trn2.48xlarge", "--lnc=2")
    devices = json.loads(text)
    assert len(devices) == 16
    assert devices[5] == {
        "neuron_device": 5,
        "bdf": "0000:15:00.0",
        "cpu_affinity": "",
        "numa_node": -1,
        "connected_to": [1, 4, 9, 6],
        "nc_count": 4,
        "logical_neuroncore_config": 2,
        "memory_size": 103079215104,
        "neuroncore_ids": [20, 21, 22, 23],
        "neuron_processes": [],
        "invented": ["bdf", "cpu_affinity", "numa_node"],
    }


def test_what_jax_refuses_is_told_at_the_line_of_the_workload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "refused_mesh.py").write_text(
        "import jax\n\n\ndef make(mesh):\n"
        "    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('model'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["estimate", "refused_mesh:make", "--mesh=foo=4"]) == 2
    message = capsys.readouterr().err
    assert "model" in message
    assert f"(at {tmp_path / 'refused_mesh.py'}:5)" in message
