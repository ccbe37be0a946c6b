"""Projects that stand on JAX, where their tests are, and which of them say nothing here.

The extra `ecosystem` of pyproject.toml installs them, and what their tests import.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib import metadata
from pathlib import Path

from tests.conformance.suite_runner import Unit


class Source(Enum):
    """Where the tests of the installed version come from."""

    WHEEL = "installed with the package"
    SDIST = "the source distribution on PyPI"
    CHECKOUT = "a checkout of the repository"


@dataclass(frozen=True)
class Project:
    """One project.

    Attributes:
      name: of its distribution.
      source: where its tests come from.
      units: name of a unit to its paths, from the root of the source.
      repository: address of the checkout; ``{version}`` of its tag is the installed version.
      root: folder of the project in the source.
      imports_source: its tests import the source; if not, the installed package.
      devices: how many devices its tests have.
      host_devices: whether `cpu` gets them from here; if not, its tests ask for them.
      left_out: glob of files under the root to the reason why they are not run.
      cpu_only: test to the words in it that are true of `cpu` alone; it is not run.
      options: more options of pytest.
      plugin: module of this project that pytest loads first.
    """

    name: str
    source: Source
    units: Mapping[str, tuple[str, ...]]
    repository: str = ""
    tag: str = "v{version}"
    root: str = ""
    imports_source: bool = False
    devices: int = 8
    host_devices: bool = True
    left_out: Mapping[str, str] = field(default_factory=dict)
    cpu_only: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    plugin: str = ""


_COLOCATED = (
    "orbax/checkpoint/experimental/emergency/multi_tier_checkpointing/colocated_utils_test.py"
    "::ColocatedUtilsTest"
)
_CONTROLLER = (
    "orbax/checkpoint/experimental/emergency/multi_tier_checkpointing/colocated_controller_test.py"
    "::ColocatedControllerInternalTest"
)
_COMPATIBLE = (
    "orbax/checkpoint/experimental/v1/_src/testing/v1_checkpointer_compatibility_test.py"
    "::V1CheckpointerCompatibilityTest"
)
_V1_TESTING = "orbax/checkpoint/experimental/v1/_src/testing"
_IMPORTLIB = ("--import-mode=importlib",)
_TORCHAX = """
amp checkpoint context conv core_aten_ops embedding exports flax functions image interop
jittable_module libraries misc mutations ops ops_out shared_weights symbolic_shapes
threading train unbounded_dynamism util view
"""
"""Files of torchax' tests. Each has a process of its own, as upstream: some leave torch changed."""

PROJECTS = (
    Project(
        "optax",
        Source.WHEEL,
        {"optax": ("optax",)},
        options=_IMPORTLIB,
    ),
    Project(
        "chex",
        Source.WHEEL,
        {"chex": ("chex/_src",)},
        devices=1,  # its tests insist on it
        left_out={"*/fake_set_n_cpu_devices_test.py": "about the flags of `cpu` alone"},
        options=_IMPORTLIB,
    ),
    Project(
        "jraph",
        Source.WHEEL,
        {"jraph": ("jraph",)},
        left_out={
            "jraph/ogb_examples/*": "examples that need pandas, haiku and modules flax has no more",
            "jraph/experimental/*": "imports jax.lib.xla_bridge, which JAX has no more",
            "jraph/_src/utils_test.py": "imports jax.lib.xla_bridge, which JAX has no more",
        },
        options=_IMPORTLIB,
    ),
    Project(
        "flax",
        Source.SDIST,
        {
            "flax-nnx": ("tests/nnx",),
            "flax-linen": ("tests/linen", "tests/core"),
            "flax-rest": (
                *("tests/checkpoints_test.py", "tests/configurations_test.py"),
                *("tests/cursor_test.py", "tests/early_stopping_test.py"),
                *("tests/jax_utils_test.py", "tests/pickle_test.py"),
                *("tests/serialization_test.py", "tests/struct_test.py"),
                *("tests/traceback_util_test.py", "tests/traverse_util_test.py"),
            ),
        },
        devices=4,  # its files ask for so many, and some cannot be divided among more
        cpu_only={
            "tests/linen/summary_test.py::SummaryTest::test_partitioned_params": "JAX counts the "
            "operations of a lowered program for no plugin",
        },
    ),
    Project(
        "equinox",
        Source.CHECKOUT,
        {"equinox": ("tests",)},
        "https://github.com/patrick-kidger/equinox",
        devices=2,
        host_devices=False,
    ),
    Project(
        "diffrax",
        Source.CHECKOUT,
        {"diffrax": ("test",)},
        "https://github.com/patrick-kidger/diffrax",
        devices=1,
    ),
    Project(
        "orbax-checkpoint",
        Source.CHECKOUT,
        {"orbax": ("orbax/checkpoint",)},
        "https://github.com/google/orbax",
        root="checkpoint",
        imports_source=True,
        left_out={
            "*/benchmarks/*": "needs clu and cluster tools",
            "*/_src/logging/*": "needs the client of a cloud",
            "*/tiering_service/*": "a web service with a database, no arrays",
            "*/emergency/multihost_test.py": "several processes of a Borg cluster",
            "*/emergency/broadcast_multislice_test.py": "several processes of a Borg cluster",
        },
        cpu_only={
            f"{_COLOCATED}::test_assert_specs_on_allowed_cpu_ids": "the first device is a CPU",
            f"{_CONTROLLER}::test_restore_none_step_with_dataset_resolves_single_explicit_step": (
                "the workers' arrays lie on CPUs"
            ),
            f"{_COMPATIBLE}::test_checkpointables_metadata": "says where its data was written",
            f"{_V1_TESTING}/v1_checkpointer_compatibility_tmp_test.py"
            "::V1CheckpointerCompatibilityTest::test_checkpointables_metadata": "the same",
            f"{_V1_TESTING}/compatibility/checkpointables_metadata_compatibility_test.py"
            "::CheckpointablesMetadataCompatibilityTest": "the same",
            f"{_V1_TESTING}/compatibility/metadata_compatibility_test.py"
            "::MetadataCompatibilityTest": "the same",
        },
        options=_IMPORTLIB,
    ),
    Project(
        "numpyro",
        Source.CHECKOUT,
        {"numpyro": ("test",)},
        "https://github.com/pyro-ppl/numpyro",
        tag="{version}",
        devices=2,
        left_out={
            "*/test_examples.py": "runs whole examples that fetch data sets",
            "*/test_example_utils.py": "fetches data sets",
            "*/pyroapi/*": "needs pyro-api",
        },
    ),
    Project(
        "blackjax",
        Source.SDIST,
        {"blackjax": ("tests",)},
        left_out={"*/test_benchmarks.py": "times, no values"},
    ),
    Project(
        "torchax",
        Source.CHECKOUT,
        {f"torchax-{name}": (f"test/test_{name}.py",) for name in _TORCHAX.split()},
        "https://github.com/google/torchax",
        devices=1,
        plugin="tests.conformance.torchax_plugin",
    ),
)


def revision(project: Project, folder: Path) -> str:
    """Which version of the project is tested: the installed one, or that of a checkout."""
    describe = ["git", "-C", str(folder), "describe", "--tags", "--always"]
    if project.source is Source.CHECKOUT:
        return subprocess.run(describe, capture_output=True, text=True).stdout.strip()
    return metadata.version(project.name)


def root(project: Project, sources: Path) -> Path:
    """The folder that ids of the project's tests are relative to.

    Raises:
      FileNotFoundError: ``sources`` has no source of the project; the text says how to get it.
      PackageNotFoundError: the project is not installed.
    """
    if project.source is Source.WHEEL:
        return Path(str(metadata.distribution(project.name).locate_file(""))).resolve()
    version = metadata.version(project.name)
    stem = project.name.replace("-", "_")
    names = [f"{stem}-{version}", project.name, stem.partition("_")[0]]
    folders = [path for name in names if (path := sources / name / project.root).is_dir()]
    if not folders:
        raise FileNotFoundError(
            f"asked for the tests of {project.name} {version}, found none of {', '.join(names)} "
            f"in {sources}; get them with: {_how_to_get(project, version)}"
        )
    return folders[0].resolve()


def _how_to_get(project: Project, version: str) -> str:
    if project.source is Source.CHECKOUT:
        tag = project.tag.format(version=version)
        return f"git clone --depth=1 --branch={tag} {project.repository}"
    download = f"pip download --no-deps --no-binary={project.name} {project.name}=={version}"
    return f"{download} && tar xzf {project.name}-{version}.tar.gz"


def units(project: Project, sources: Path) -> list[Unit]:
    """What is run of a project whose sources are under ``sources``."""
    folder = root(project, sources)
    ignored = [f"--ignore-glob={folder / pattern}" for pattern in project.left_out]
    ignored += [f"--deselect={test}" for test in project.cpu_only]
    loaded = ("-p", project.plugin) if project.plugin else ()
    configs = [folder / name for name in ("pytest.ini", "pyproject.toml")]
    found = [path for path in configs if path.is_file() and project.source is not Source.WHEEL]
    return [
        Unit(
            name=name,
            root=folder,
            config=(found or [Path(os.devnull)])[0],
            paths=tuple(str(folder / path) for path in paths),
            folder=folder,
            options=(*project.options, *loaded, *ignored),
            version=revision(project, folder),
        )
        for name, paths in project.units.items()
    ]
