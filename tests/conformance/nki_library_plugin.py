"""A pytest plugin: what the tests of nki-library import, as modules of this project.

Their simulation harness imports a simulator as `nki_cpu_simulator`, and number formats as
`neuron_dtypes`. It has no ranks; tests of collectives get them here, with inputs, results and
expectations for each, as the harness has them where it runs on chips.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
from jax.tree_util import tree_map

import neuronjax.nki as nki
from neuronjax.emulate.core import DataflowOrder, Order
from neuronjax.nki import collectives, constants, isa, language
from neuronjax.program.element_types import PACKED
from tests.conformance import nki_library_formats as formats

ORDER = "NKI_LIBRARY_ORDER"
"""The variable with the order: `program` or `adversarial`."""

_ABSENT: Mapping[str, tuple[str, ...]] = {
    "scripts": (),
    "scripts.remote_lock_scripts": ("LockResult", "LockStatus"),
    "perf_analysis_private": ("analyze_trace",),
}
"""Modules of `test.utils` for machines with chips, which the public repository does not have."""


_WRITTEN = ".must_alias_input"
"""What the harness adds to the name of an array that the kernel writes to."""


class _Simulated:
    """`nki.cpu_simulate(kernel)[cores](**inputs)`; with `ranks`, arrays have one more dimension."""

    def __init__(self, kernel: Any, cores: int = 1, ranks: int | None = None) -> None:
        self.kernel, self.cores, self.ranks = kernel, cores, ranks

    def __getitem__(self, cores: int) -> _Simulated:
        return _Simulated(self.kernel, cores, self.ranks)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        kernel = self.kernel if isinstance(self.kernel, nki.Kernel) else nki.jit(self.kernel)
        order: Order | None = None
        if os.environ.get(ORDER) == "adversarial":
            order = DataflowOrder(seed=1, adversarial=True)
        target = os.environ.get("NKI_NC_VERSION", "gen3")
        run = nki.simulate(kernel[self.cores], order, target, self.ranks)
        results = run(*map(formats.given, arguments), **tree_map(formats.given, keywords))
        return tree_map(formats.Result, results)


class ParserFrontend:
    """The compiler's front end, of which tests that are compiled only make one."""

    def compile(
        self, kernel: Any, *, inputs: Mapping[str, Any], target: str, lnc: int, **options: Any
    ) -> Any:
        """The kernel's program; `options` say where a compiler writes what."""
        traced = kernel if isinstance(kernel, nki.Kernel) else nki.jit(kernel)
        return traced[lnc].trace(**inputs, target=target)


def _module(name: str, source: ModuleType | None = None, **names: Any) -> ModuleType:
    """A module called `name` with the names of another one, and these."""
    module = ModuleType(name)
    if source is not None:
        module.__dict__.update(
            {key: value for key, value in vars(source).items() if not key.startswith("__")}
        )
        if hasattr(source, "__getattr__"):
            module.__dict__["__getattr__"] = source.__getattr__
    module.__dict__.update(names)
    module.__path__ = []
    sys.modules[name] = module
    return module


def _jit(function: Any = None, **options: Any) -> Any:
    """`nki.jit`, also with options, which are for compilers."""
    return _jit if function is None else nki.jit(function)


def _language() -> ModuleType:
    """`nki.language` whose dtypes are those of numpy, where it has them, as in the simulator that
    the tests are written for."""
    dtypes = {
        name: dtype.dtype
        for name, dtype in language.DTYPES.items()
        if name not in PACKED and dtype.dtype is not None
    }
    return _module("neuronjax.nki.language_of_numpy", language, **dtypes)


def _install() -> None:
    typing = ModuleType("typing")
    parts = {
        "language": _language(),
        "isa": isa,
        "collectives": collectives,
        "isa.constants": constants,
        "typing": typing,
        "compiler": ModuleType("compiler"),
        "tensor": ModuleType("tensor"),
        "builtin": ModuleType("builtin"),
    }
    parts["language.dtypes"] = parts["language"]
    parts["dtype"] = parts["language"]
    root = {"cpu_simulate": _Simulated, "jit": _jit}
    for prefix in ("nki_cpu_simulator.nki", "nki", "neuronxcc.nki"):
        _module(prefix, nki, **root)
        for name, part in parts.items():
            extra = {"tensor": Any, "mutable_tensor": Any} if name == "typing" else {}
            made = _module(f"{prefix}.{name}", part, **extra)
            parent, _, last = f"{prefix}.{name}".rpartition(".")
            setattr(sys.modules[parent], last, made)
    _module("nki.compiler.frontend", NKIFrontend=ParserFrontend, ParserFrontend=ParserFrontend)
    for package in ("nki_cpu_simulator", "neuronxcc"):
        _module(package, nki=sys.modules[f"{package}.nki"])
    for name, names in _ABSENT.items():
        _module(f"test.utils.{name}", **{key: MagicMock() for key in names})
    formats.let_numpy_know()
    _module("neuron_dtypes", **formats.NAMES)


_install()


class _Inputs(dict[str, Any]):
    """Inputs of a kernel, in which arrays that it writes to have their plain names, too: tests ask
    for both."""

    def __missing__(self, name: str) -> Any:
        if name.endswith(_WRITTEN):
            raise KeyError(name)
        return self[name + _WRITTEN]


def _with_plain_names(framework: Any) -> None:
    begin = framework.run_test

    def run_test(self: Any, *arguments: Any, **keywords: Any) -> Any:
        descriptor = self.output_tensor_descriptor
        self.output_tensor_descriptor = lambda inputs: descriptor(_Inputs(inputs))
        return begin(self, *arguments, **keywords)

    framework.run_test = run_test


def _with_ranks(orchestrator: Any) -> None:
    """Tests of several ranks run on them; what each of them returns is written where the harness
    looks for it."""
    begin = orchestrator._run_simulator_inference
    orchestration = importlib.import_module(orchestrator.__module__)

    def run(self: Any, test: Any) -> str | None:
        ranks = test.inference_args.collective_ranks
        if ranks == 1:
            return begin(self, test)
        folder = Path(self.fs_config.artifacts_output_directory_path)
        folder /= orchestration.INF_ARTIFACT_DIR_NAME
        for rank, results in enumerate(_results_by_rank(test, ranks)):
            own = folder / f"output_worker_{rank}"
            own.mkdir(parents=True, exist_ok=True)
            for name, result in results.items():
                (own / f"{name}.bin").write_bytes(result.tobytes())
        return str(folder)

    orchestrator._run_simulator_inference = run


def _results_by_rank(test: Any, ranks: int) -> list[dict[str, np.ndarray]]:
    """The results of a test's kernel on each rank, in the dtypes of what is expected."""
    compiler = test.compiler_input
    os.environ["NKI_NC_VERSION"] = compiler.platform_target.get_nc_gen()
    given = test.kernel_input
    by_rank = [given.for_rank(r) if hasattr(given, "for_rank") else given for r in range(ranks)]
    inputs = {
        name.removesuffix(_WRITTEN): np.stack([own[name] for own in by_rank])
        if isinstance(value, np.ndarray)
        else value
        for name, value in by_rank[0].items()
    }
    results = _Simulated(test.kernel_func, compiler.logical_nc_config, ranks)(**inputs)
    if not isinstance(results, list | tuple):
        results = [results]
    arrays = [np.asarray(result) for result in results]
    normalized = importlib.import_module("test.utils.common_dataclasses").normalize_golden_output
    expected = [normalized(test.validation_args.golden_output, rank) for rank in range(ranks)]
    return [
        {
            name: array[rank].astype(golden.dtype)
            for array, (name, golden) in zip(arrays, expected[rank].items(), strict=True)
        }
        for rank in range(ranks)
    ]


def pytest_collection_finish() -> None:
    """The harness asks for a kernel that only a compilation makes, and compares words by name."""
    _with_plain_names(importlib.import_module("test.utils.unit_test_framework").UnitTestFramework)
    _with_ranks(importlib.import_module("test.utils.test_orchestrator").Orchestrator)
    unpackers = importlib.import_module("test.utils.output_validator")._X4_UNPACKERS
    unpackers.update({str(words): unpackers[name] for name, words in formats.WORDS.items()})
    importlib.import_module("test.utils.test_orchestrator").Orchestrator._compiled_kernel = None
