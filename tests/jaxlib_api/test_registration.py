"""What JAX's processes get of the installed package, used or not; each is a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.conftest import ENVIRONMENT, RunPython

UNSET: dict[str, str | None] = dict.fromkeys(ENVIRONMENT)
"""No variable of ours, and no platform named."""

PATCHES = """
def patches():
    '''Attributes of JAX's modules and classes that neuronjax put there.'''
    found = set()
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] in ("jax", "jaxlib"):
            classes = [value for value in vars(module).values() if isinstance(value, type)]
            for owner in (module, *classes):
                for attribute, value in list(vars(owner).items()):
                    if str(getattr(value, "__module__", "")).startswith("neuronjax"):
                        found.add(f"{name}.{attribute}")
    return sorted(found)
"""
BYSTANDER = f"""
import sys, tempfile
import jax, jax.numpy as jnp
{PATCHES}
print(jax.devices()[0].platform, jax.jit(lambda x: x + 1)(1))
with tempfile.TemporaryDirectory() as folder, jax.profiler.trace(folder):
    pass
print(sorted(name for name in sys.modules if name.split(".")[0] == "neuronjax"))
print(patches())
"""
USER = f"""
import sys
import jax, jax.numpy as jnp
from jax.experimental import topologies
from jax.extend.backend import clear_backends
import neuronjax
{PATCHES}
print(jax.devices()[0].platform, jax.device_count("neuron"))
core = jax.devices("neuron")[1]
x = jax.device_put(jnp.arange(3.0), core)
compiled = jax.jit(lambda x: x + 1).lower(x).compile()
print(compiled(x), *compiled(x).devices(), jax.local_devices(backend="neuron")[1] is core)
print(compiled.as_text().split()[0], neuronjax.program_text(compiled).split()[0])
print(len(topologies.get_topology_desc("trn1.2xlarge", platform="neuron").devices))
print(patches())
clear_backends()
print(jax.devices("neuron")[1])
"""


@pytest.mark.parametrize("platforms", ["cpu", None])
def test_a_process_that_does_not_use_the_platform(
    start_python: RunPython, platforms: str | None
) -> None:
    """Two modules, no patch, and not a word: no variable is read, whatever its value."""
    wrong = {"NEURONJAX_NUMERICS": "foo", "NEURONJAX_TARGET": "bar", "NEURONJAX_UNKNOWN": "1"}
    done = start_python(BYSTANDER, UNSET | wrong | {"JAX_PLATFORMS": platforms})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["cpu 2", "['neuronjax', 'neuronjax.jaxlib_api']", "[]"]
    assert done.stderr == ""


HOST_EXECUTOR = """
import sys
import jax
jax.block_until_ready(jax.jit(lambda x: x @ x)(jax.numpy.ones((4, 4))))
rooms = {"lower", "program", "emulate", "timing", "planning", "profiling", "nki"}
print([name for name in sys.modules if set(name.split(".")[1:2]) & rooms and "neuronjax" in name])
"""


def test_a_process_that_runs_on_the_host_does_not_wait_for_engines(start_python: RunPython) -> None:
    done = start_python(HOST_EXECUTOR, {"JAX_PLATFORMS": "neuron"})
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_the_platform_without_naming_it(start_python: RunPython) -> None:
    done = start_python(USER, UNSET)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "cpu 4",
        "[1. 2. 3.] NeuronDevice(id=1) True",
        "HloModule program",
        "2",
        "[]",
        "NeuronDevice(id=1)",
    ]
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("NEURONJAX_NUMERICS", "foo", True),
        ("NEURONJAX_TARGET", "nonsense", True),
        ("NEURONJAX_TARGET", "nonsense", False),
    ],
)
def test_the_reason_of_a_wrong_variable_is_said(
    start_python: RunPython, variable: str, value: str, named: bool
) -> None:
    platforms = "neuron" if named else None
    environment = UNSET | {"JAX_PLATFORMS": platforms, variable: value}
    done = start_python("import jax; jax.devices('neuron')", environment)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert f"{value!r} is not " in last
    assert variable in last


def test_export_from_a_process_of_another_platform(start_python: RunPython) -> None:
    code = """
        import jax, jax.numpy as jnp
        exported = jax.export.export(jax.jit(jnp.linalg.inv), platforms=["neuron"])
        print(exported(jax.ShapeDtypeStruct((3, 3), jnp.float32)).platforms)
    """
    done = start_python(code, UNSET | {"JAX_PLATFORMS": "cpu"})
    assert done.stdout == "('neuron',)\n", done.stderr


AWS_PLUGIN = """
from types import SimpleNamespace
from jax._src import xla_bridge
from neuronjax.pjrt import plugin

def initialize():
    device = SimpleNamespace(process_index=0)
    client = SimpleNamespace(
        platform="neuron", platform_version="", device_count=lambda: 1, process_index=lambda: 0,
        local_devices=lambda: [device], devices=lambda: ["a device of AWS's plugin"],
    )
    c_api = plugin.capsule(plugin.start())
    xla_bridge.register_backend_factory("neuron", lambda: client, priority=500, c_api=c_api)
    print("libneuronxla")
"""
BESIDE_AWS = """
import jax, neuronjax
ours = neuronjax.initialize

def initialize():
    print("neuronjax")
    ours()

neuronjax.initialize = initialize
print(jax.devices("neuron")[0])
"""


def _orders() -> dict[tuple[str, ...], str]:
    """The orders in which JAX may ask two plugins -> a seed of Python's hashes that makes it so."""
    (entry,) = (
        entry for entry in metadata.entry_points(group="jax_plugins") if entry.name == "neuron"
    )
    code = f"print(*[['libneuronxla', 'neuronjax'][n == {entry.value!r}] for n in \
        {{'libneuronxla', {entry.value!r}}}])"
    orders = {}
    for seed in map(str, range(1, 9)):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True
        )
        orders[tuple(done.stdout.split())] = seed
    return orders


@pytest.mark.parametrize("first", ["libneuronxla", "neuronjax"])
@pytest.mark.parametrize("emulate", [None, "1"])
def test_beside_the_plugin_of_aws(
    start_python: RunPython, tmp_path: Path, first: str, emulate: str | None
) -> None:
    (tmp_path / "libneuronxla.py").write_text(AWS_PLUGIN)
    information = tmp_path / "libneuronxla-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: libneuronxla\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[jax_plugins]\nneuronxla = libneuronxla\n")
    order = ("libneuronxla", "neuronjax")
    order = order if first == order[0] else order[::-1]
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    environment = UNSET | {
        "JAX_PLATFORMS": "neuron,cpu",
        "NEURONJAX_EMULATE": emulate,
        "PYTHONPATH": path,
        "PYTHONHASHSEED": _orders()[order],
    }
    done = start_python(BESIDE_AWS, environment)
    assert done.returncode == 0, done.stderr
    device = "NeuronDevice(id=0)" if emulate else "a device of AWS's plugin"
    assert done.stdout.splitlines() == [*order, device]
    assert ("NEURONJAX_EMULATE=1" in done.stderr) == (emulate is None)
