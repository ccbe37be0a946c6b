"""What is recorded, against the scheduler and what is known of the program."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import neuronjax
from neuronjax.errors import ConfigurationError, ProfileError
from neuronjax.hlo.module import Signature
from neuronjax.profiling import store
from neuronjax.profiling.arrays import Interface
from neuronjax.profiling.records import COMPILATION, from_json
from neuronjax.profiling.session import host_phases, host_times, sentence
from neuronjax.runtime import recording
from tests.cli.test_monitor import free_port
from tests.conftest import RunPython
from tests.profiling import recorded


def test_runs_and_programs() -> None:
    found = recorded.profile()
    by_name = dict(zip((each.name for each in found.programs), found.counts, strict=True))
    assert by_name["jit_step"] == recorded.RUNS
    assert by_name["jit_sin"] == 1
    step = next(each for each in found.programs if each.name == "jit_step")
    assert not step.error
    assert step.ranks == 4
    assert step.model_flops == 2 * 2 * 128 * 256 * 256  # two layers, a quarter of the rows
    assert step.work["hardware_flops"] >= step.model_flops


def test_runs_follow_each_other_on_their_cores() -> None:
    found = recorded.profile()
    free: dict[int, float] = {}
    for run in found.runs:
        assert run.start_ns == max(run.host_ns, *(free.get(core, 0.0) for core in run.cores))
        for core in run.cores:
            free[core] = run.start_ns + found.programs[run.program].total_ns
    assert found.total_ns <= max(free.values())


def test_kernels_have_lines_and_lie_within_the_run() -> None:
    line = Path(recorded.__file__).read_text().splitlines().index(
        next(row for row in Path(recorded.__file__).read_text().splitlines() if "# LINE" in row)
    )  # fmt: skip
    step = next(each for each in recorded.profile().programs if each.name == "jit_step")
    lines = {part.source for kernel in step.kernels for part in kernel.parts}
    assert f"{recorded.__file__}:{line + 1}" in lines
    assert {kernel.source for kernel in step.kernels} <= lines
    assert len({kernel.path for kernel in step.kernels}) == len(step.kernels)
    for kernel in step.kernels:
        assert 0 <= kernel.start_ns <= kernel.end_ns <= step.total_ns + 1e-6
        for span in kernel.spans:
            assert 0 <= span.start <= span.end
            assert span.after == -1 or kernel.spans[span.after].end <= span.start + 1e-6
    assert step.collectives
    assert sum(kernel.runs for kernel in step.kernels) > len(step.kernels)  # of the scan


def test_busy_times_are_sums_over_kernels() -> None:
    for program in recorded.profile().programs:
        for name, time in program.busy_ns.items():
            kernels = sum(each.busy_ns[name] * each.runs for each in program.kernels)
            assert time == pytest.approx(kernels)


def test_a_profile_comes_back_from_its_folder(tmp_path: Path) -> None:
    found = recorded.profile()
    store.write(found, tmp_path / "out")
    assert store.read(tmp_path / "out") == found
    assert from_json(json.loads(json.dumps(found.to_json()))) == found


def test_nothing_is_recorded_outside() -> None:
    double = jax.jit(lambda x: x * 2)
    x = jax.device_put(jnp.ones(8), jax.devices("neuron")[0])
    double(x)
    with neuronjax.profile() as found:
        pass
    double(x)
    assert found.profile is not None
    assert found.profile.runs == ()
    assert "no program ran" in str(found)


def test_a_recording_that_raises_is_kept(tmp_path: Path) -> None:
    def fail() -> None:
        x = jax.device_put(jnp.ones(8), jax.devices("neuron")[0])
        with neuronjax.profile(tmp_path):
            jax.jit(lambda x: x + 1)(x)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert store.read(tmp_path).runs


def test_a_run_that_a_fault_ends_is_kept_with_those_before_it(tmp_path: Path) -> None:
    """It took time, too."""
    x = jax.device_put(jnp.ones((8, 8)), jax.devices("neuron")[0])
    double = jax.jit(lambda x: x * 2)

    @neuronjax.profile(tmp_path)
    def run() -> None:
        with neuronjax.inject_faults("core_dies core=0 step=3"):
            for _ in range(5):
                double(x).block_until_ready()

    with pytest.raises(jax.errors.JaxRuntimeError, match="core"):
        run()
    kept = store.read(tmp_path)
    assert (sum(kept.counts), len(kept.runs)) == (3, 3)
    assert kept.host_ns > 0


def test_the_host_is_recorded() -> None:
    """Phases follow one another in real time, and their times add up to the session."""
    kept = recorded.profile()
    compiled = [phase for phase in kept.phases if phase.phase == COMPILATION]
    assert [phase.name for phase in compiled] == ["jit_step", "jit_sin"]
    for program, phase in zip(kept.programs, compiled, strict=True):
        first = next(run for run in kept.runs if kept.programs[run.program] is program)
        assert phase.end_ns <= first.host_ns - first.dispatch_ns
    phases = sorted(host_phases(kept), key=lambda phase: phase.start_ns)
    for before, after in itertools.pairwise(phases):
        assert 0 <= before.start_ns <= before.end_ns <= after.start_ns
    times = host_times(kept)
    assert sum(times.values()) == kept.host_ns
    assert times[COMPILATION] == sum(phase.end_ns - phase.start_ns for phase in compiled)
    assert min(times.values()) >= 0
    assert "of real time on this machine: compilation" in sentence(kept)


def test_the_exception_of_the_block_is_the_one_shown(tmp_path: Path) -> None:
    """Also when its folder has become one that cannot be written to."""
    folder = tmp_path / "out"

    @neuronjax.profile(folder)
    def fail() -> None:
        shutil.rmtree(folder)
        folder.touch()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        fail()
    assert "Its profile was lost: the profile's folder" in raised.value.__notes__[0]


PROGRAMS = {
    "no arguments": (lambda: jnp.ones((8, 8)), ()),
    "no results": (lambda x: None, (np.ones(8),)),
    "an argument that is not used": (lambda x, y: x, (np.ones(8), np.ones(8))),
    "nothing to compute": (lambda x: x, (np.ones(8),)),
    "empty arrays": (lambda x: x + 1, (np.ones((0, 8)),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("cores", [1, 4])
def test_odd_programs_are_shown(name: str, cores: int, tmp_path: Path) -> None:
    function, arguments = PROGRAMS[name]
    mesh = Mesh(np.array(jax.devices("neuron")[:cores]), ("data",))
    whole = NamedSharding(mesh, PartitionSpec())
    values = jax.device_put(arguments, whole)
    with neuronjax.profile(tmp_path) as recorded:
        jax.jit(function, out_shardings=whole)(*values)
    assert recorded.profile is not None
    assert not any(program.error for program in recorded.profile.programs)
    assert store.read(tmp_path) == recorded.profile
    assert not recorded.profile.runs or (tmp_path / store.REPORT).stat().st_size


def test_a_program_that_cannot_be_shown_says_why_and_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect of ours, in the analysis of one program of two and in one of the files."""
    real = recording.interface

    def broken(code: bytes, signature: Signature, *rest: int) -> Interface:
        if signature.name == "jit_sin":
            raise IndexError("no such rank")
        return real(code, signature, *rest)

    monkeypatch.setattr(recording, "interface", broken)
    monkeypatch.setitem(store.FILES, store.SUMMARY, lambda profile: 1 // 0)
    x = jax.device_put(jnp.ones(8), jax.devices("neuron")[0])
    with neuronjax.profile(tmp_path) as recorded:
        jax.jit(jnp.sin)(x)
        jax.jit(jnp.cos)(x)
    assert recorded.profile is not None
    errors = {program.name: program.error for program in recorded.profile.programs}
    assert errors["jit_cos"] == ""
    assert errors["jit_sin"].endswith("a defect of neuronjax: IndexError('no such rank')")
    assert "not timed" in str(recorded)
    assert store.read(tmp_path) == recorded.profile
    assert "summary.json was not written" in caplog.text
    assert (tmp_path / store.REPORT).stat().st_size


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "there is no profile"), ("no json", "is not a profile"), ("{}", "format None"),
     ('{"format": 7}', "damaged"), ('{"format": 6}', "record it again")],
)  # fmt: skip
def test_folders_that_are_no_profiles(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / store.PROFILE).write_text(text)
    with pytest.raises(ProfileError, match=message):
        store.read(tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot be written to"), neuronjax.profile(
        tmp_path / "file" / "x"
    ):  # fmt: skip
        pass


SOME_CORES = """
import jax, numpy as np, neuronjax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from neuronjax.profiling import mesh_traffic
from neuronjax.recording import client_in_use

rows = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
with neuronjax.profile() as recorded:
    jax.jit(lambda x: x + x.sum())(jax.device_put(np.ones((6, 4), np.float32), rows))
(program,), (run,) = recorded.profile.programs, recorded.profile.runs
drawn = mesh_traffic.described(program, recorded.profile.machine)
report = client_in_use().monitor.report(1.0)["neuron_runtime_data"][0]["report"]
print(program.cores, run.cores, [device.core for device in jax.devices()])
print(list(report["neuroncore_counters"]["neuroncores_in_use"]))
print([core for core in range(8) if f"<title>core {core}: x " in drawn["svgs"][0]])
"""


def test_cores_are_those_of_the_machine(run_python: RunPython) -> None:
    """Where a process sees some of them, its devices have other numbers."""
    seen = {"NEURON_RT_VISIBLE_CORES": "2,5-6", "NEURONJAX_MONITOR_PORT": str(free_port())}
    done = run_python(SOME_CORES, seen)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "(2, 5, 6) (2, 5, 6) [2, 5, 6]",
        "['2', '5', '6']",
        "[2, 5, 6]",
    ]


def _fails_when_traced(x: jax.Array) -> jax.Array:
    raise LookupError("of the user")


def _fails_when_compiled(x: jax.Array) -> jax.Array:
    return jax.ffi.ffi_call("AwsNeuronUnknown", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def _fails_for_want_of_memory(x: jax.Array) -> jax.Array:
    return jnp.ones((1 << 33, 16)) + x[0]


def _fails_in_a_callback(x: jax.Array) -> jax.Array:
    return jax.pure_callback(lambda _: 1 / 0, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def test_half_of_the_programs_fail(neuron_devices: list[jax.Device], tmp_path: Path) -> None:
    """Those that ran have their rows."""
    failing = {
        _fails_when_traced: LookupError,
        _fails_when_compiled: jax.errors.JaxRuntimeError,
        _fails_for_want_of_memory: jax.errors.JaxRuntimeError,
        _fails_in_a_callback: jax.errors.JaxRuntimeError,
    }
    x = jax.device_put(np.ones((8, 16), np.float32), neuron_devices[0])
    with neuronjax.profile(tmp_path) as recorded:
        for number, (function, error) in enumerate(failing.items()):
            with pytest.raises(error):
                jax.jit(function)(x).block_until_ready()
            jax.jit(lambda x, by=number: x * by)(x)
    assert recorded.profile is not None
    good = [each for each in recorded.profile.programs if each.name == "jit__lambda"]
    assert [each.error for each in good] == [""] * len(failing)
    assert store.read(tmp_path) == recorded.profile
    assert (tmp_path / "report.html").exists()
