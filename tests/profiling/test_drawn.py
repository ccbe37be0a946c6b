"""Laws of what is drawn, for random programs and kernels in every view.

The last lane ends where the run ends, instructions lie within their kernel, nothing is drawn twice,
and all views say the same, also about when memory is free.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import neuronjax
from neuronjax import nki
from neuronjax.profiling.records import Profile, ProgramProfile, Run
from tests.browser import needs_browser
from tests.nki import test_isa
from tests.profiling import drawn
from tests.profiling.drawn import Drawn

ROUNDED = {"page": 1e-3, "trace.json": 0.5, "trace.pftrace": 0.5, "tables": 1.0, "planes": 2.0}
"""ns: traces and tables round to whole ones; the reader of planes cuts starts and durations
off."""

STEPS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "product": lambda x: jnp.tanh(x @ jnp.ones((x.shape[1], x.shape[1]), x.dtype)),
    "softmax": jax.nn.softmax,
    "norm": lambda x: x / (1 + jnp.std(x, axis=0)),
    "turned": lambda x: x.T @ x,
    "sum": lambda x: x + x.sum(0),
    "loop": lambda x: jax.lax.fori_loop(0, 5, lambda i, y: jnp.sin(y) @ y.T @ y, x),
    "layers": lambda x: jax.lax.scan(
        lambda c, w: (c * w + c.mean(), None), x, jnp.ones(7, x.dtype)
    )[0],
    "sorted": lambda x: jnp.sort(x, axis=1),
    "rows": lambda x: x[jnp.argsort(x[:, 0])],
    "joined": lambda x: jnp.concatenate([x, jnp.exp(x)], axis=0)[: x.shape[0]],
    "summed up": lambda x: jnp.cumsum(x, axis=0),
}


def random_program(seed: int) -> Profile:
    """One to five steps on an array of random size, on one core or split over four; its run begins
    with the recording."""
    rng = np.random.default_rng(seed)
    names = rng.choice(list(STEPS), rng.integers(1, 6))
    cores = int(rng.choice([1, 1, 1, 4]))
    shape = (cores * int(rng.choice([1, 16, 96, 200])), int(rng.choice([1, 8, 64, 300])))
    dtype = rng.choice([jnp.float32, jnp.bfloat16])

    def function(x: jax.Array) -> jax.Array:
        for name in names:
            x = STEPS[name](x)
        return x

    mesh = Mesh(np.array(jax.devices("neuron")[:cores]), ("data",))
    x = jax.device_put(
        rng.standard_normal(shape, np.float32).astype(dtype),
        NamedSharding(mesh, PartitionSpec("data")),
    )
    compiled = jax.jit(function).lower(x).compile()
    with neuronjax.profile() as recorded:
        compiled(x)
    assert recorded.profile is not None
    (run,) = recorded.profile.runs
    return replace(recorded.profile, runs=(run._replace(start_ns=0.0),))


KERNELS = {each.__name__: each for each in test_isa.KERNELS if each not in test_isa.LATEST}


def kernel(name: str) -> Profile:
    return nki.profile(nki.jit(KERNELS[name]), test_isa.X, test_isa.Y)


def near(shown: list[drawn.Slice], expected: list[drawn.Slice], most: float) -> bool:
    """Whether they are the same slices but for lanes and so many ns.

    Rounding may exchange slices of one name that begin within `most` of each other.
    """
    most += 1e-3
    left = sorted(each[1:] for each in expected)
    for name, start, end in sorted(each[1:] for each in shown):
        own = [
            at
            for at, (other, begin, close) in enumerate(left)
            if other == name and abs(start - begin) <= most and abs(end - close) <= most
        ]
        if not own:
            return False
        del left[own[0]]
    return not left


def check(profile: Profile, page: Drawn) -> None:
    (program,) = profile.programs
    assert not program.error
    views = {"page": page} | {name: view(profile) for name, view in drawn.TRACES.items()}
    for name, view in views.items():
        check_run(name, view, program)
        assert view.instructions.keys() <= {each.name for each in program.kernels}, name
        for of_kernel, slices in page.instructions.items():
            assert near(view.instructions[of_kernel], slices, ROUNDED[name]), (name, of_kernel)
        if name != "tables":
            assert near(view.kernels, page.kernels, ROUNDED[name]), name
        for memory, levels in view.levels.items():
            expected = page.levels[memory]
            assert len(levels) == len(expected), (name, memory)
            for (at, nbytes), (time, size) in zip(levels, expected, strict=True):
                assert abs(at - time) <= ROUNDED[name] + 1e-3, (name, memory)
                assert nbytes == size, (name, memory)
    check_memory(page, program)


def check_run(name: str, view: Drawn, program: ProgramProfile) -> None:
    """Ends, instructions within their kernel, and nothing twice."""
    kernels_end = max((each.end_ns for each in program.kernels), default=0.0)
    end = kernels_end if name == "tables" else program.total_ns
    most = ROUNDED[name] + 1e-3
    assert abs(max((each[3] for each in view.kernels), default=end) - end) <= most, name
    assert name == "tables" or not list(drawn.overlaps(view.kernels)), name
    for kernel_name, slices in view.instructions.items():
        around = [each[2:] for each in view.kernels if each[1] == kernel_name]
        for own in slices:
            assert any(start - most <= own[2] and own[3] <= end + most for start, end in around), (
                name,
                kernel_name,
                own,
                around,
            )
    every = [each for slices in view.instructions.values() for each in slices]
    assert len(every) == sum(len(each.spans) for each in program.kernels), name
    engines = [each for each in every if "ueue" not in each[0] and "tream" not in each[0]]
    assert not list(drawn.overlaps(engines)), name
    assert not any("(" in lane for lane, *_ in engines), name  # a second row of an engine


def check_memory(page: Drawn, program: ProgramProfile) -> None:
    """The chart and the map of a memory, between any two moments at which something changes."""
    for memory, levels in page.levels.items():
        tensors = page.tensors[memory]
        times = sorted({at for at, _ in levels} | {at for each in tensors for at in each[:2]})
        for start, end in itertools.pairwise(times):
            middle = (start + end) / 2
            shown = [nbytes for at, nbytes in levels if at <= middle][-1]
            assert drawn.covered(tensors, middle) == shown, (memory, middle)
        assert levels[-1][1] == 0
        assert levels[-1][0] <= program.total_ns + 1e-3


def joined(profiles: list[Profile]) -> Profile:
    """One recording of the programs of several, for one page."""
    programs = tuple(program for each in profiles for program in each.programs)
    runs = tuple(Run(number, (0,), 0.0, 0, 0) for number in range(len(programs)))
    return replace(profiles[0], programs=programs, runs=runs, counts=(1,) * len(programs))


def check_all(profiles: list[Profile], folder: Path) -> None:
    for first in range(0, len(profiles), 20):
        some = profiles[first : first + 20]
        order = sorted(range(len(some)), key=lambda number: -some[number].programs[0].total_ns)
        pages = drawn.of_page(joined(some), folder)
        assert len(pages) == len(some)
        for number, page in zip(order, pages, strict=True):
            check(some[number], page)


@pytest.mark.slow
@needs_browser("the report page")
def test_a_sample_is_drawn_as_it_runs(tmp_path: Path) -> None:
    profiles = [random_program(seed) for seed in range(5)] + [
        kernel("product"),
        kernel("softmax"),
    ]
    check_all(profiles, tmp_path)
    assert any(_overlap(each.programs[0]) for each in profiles)


@pytest.mark.slow
@needs_browser("the report page")
def test_random_programs_and_kernels_are_drawn_as_they_run(tmp_path: Path) -> None:
    profiles = [random_program(seed) for seed in range(200)]
    assert len(KERNELS) >= 20
    check_all(profiles + list(map(kernel, KERNELS)), tmp_path)
    kinds = Counter(_overlap(each.programs[0]) for each in profiles)
    assert kinds[True] >= 50
    assert any(program.collectives for each in profiles for program in each.programs)


def _overlap(program: ProgramProfile) -> bool:
    """Whether spans of kernels overlap, so that their sum is more than the run."""
    return sum(each.span_ns * each.runs for each in program.kernels) > 1.01 * sum(
        each.time_ns for each in program.kernels
    )
