"""A program of a kind with its choices, for a machine, as a script that stands alone."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import jax

from tests.conformance.real_sizes import (
    attention,
    images,
    movement,
    orders,
    products,
    rows,
    sequences,
    tables,
    training,
)
from tests.conformance.real_sizes.kind import Array, Choice, Kind, Unsuitable, Written

KINDS: Mapping[str, Kind] = {
    **attention.KINDS, **images.KINDS, **movement.KINDS, **orders.KINDS, **products.KINDS,
    **rows.KINDS, **sequences.KINDS, **tables.KINDS, **training.KINDS,
}  # fmt: skip

NEWER: Mapping[str, str | None] = {
    "inf2.xlarge": "trn2.3xlarge",
    "trn1.2xlarge": "trn2.3xlarge",
    "trn2.3xlarge": "trn3-gen1-ultraserver",
    "trn3-gen1-ultraserver": None,
}
"""A machine for programs of one core -> one of the next generation."""

_MESHES: Mapping[str, tuple[Mapping[str, int], ...]] = {
    "inf2.48xlarge": ({"x": 2}, {"x": 4, "y": 2}, {"x": 3, "y": 8}),
    "trn1.32xlarge": ({"x": 2}, {"x": 2, "y": 4}, {"x": 4, "y": 8}),
    "trn2.48xlarge": ({"x": 4}, {"x": 4, "y": 8}, {"x": 16, "y": 4}),
    "trn3-gen1-ultraserver": ({"x": 4}, {"x": 4, "y": 8}, {"x": 2, "y": 32}),
}
_OVER_A_MESH = 0.25
_MOST_BYTES = 6 << 30
"""Of arguments and results: the smallest core has 16 GiB."""

_SCRIPT = """\
import jax
from jax import ShapeDtypeStruct as S
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

import neuronjax


{definitions}

print(
    neuronjax.estimate(
        step,
{arguments}
        target="{machine}",{mesh}
    )
)
"""


@dataclass(frozen=True)
class SizedProgram:
    """A program; `splits` has the axis of the mesh by which each dimension is split."""

    kind: str
    choices: Mapping[str, Choice]
    machine: str
    mesh: Mapping[str, int] = field(default_factory=dict)
    splits: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)

    @functools.cached_property
    def written(self) -> Written:
        """Its text. Unsuitable: the choices do not go together."""
        return KINDS[self.kind].write(**self.choices)

    @functools.cached_property
    def arguments(self) -> dict[str, Array]:
        """What `step` takes: a cotangent and the arguments, or these alone."""
        if not self.written.wrt:
            return dict(self.written.arguments)
        program = _defined(_function(self.written))["program"]
        given = self.written.arguments.values()
        result = jax.eval_shape(program, *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in given))
        return {"cotangent": Array(result.shape, str(result.dtype)), **self.written.arguments}

    @property
    def definitions(self) -> str:
        """The text of `program` and, if it is something else, of its derivative."""
        written, donated = self.written, self.written.donated
        text = _function(written)
        name = "program"
        if written.wrt:
            name, wrt = "derivative", ", ".join(written.wrt)
            text += (
                f"\n\ndef derivative(cotangent, {', '.join(written.arguments)}):\n"
                f"    of = lambda {wrt}: program({', '.join(written.arguments)})\n"
                f"    return jax.vjp(of, {wrt})[1](cotangent)\n"
            )
        given = f", donate_argnames={donated!r}" if donated else ""
        return f"{text}\n\nstep = jax.jit({name}{given})\n"

    @property
    def step(self) -> Callable[..., Any]:
        """The function itself."""
        step: Callable[..., Any] = _defined(self.definitions)["step"]
        return step

    @property
    def script(self) -> str:
        """What shows the program to somebody who has the project alone."""
        arguments = [f'S({a.shape}, "{a.dtype}"),' for a in self.arguments.values()]
        specs = ", ".join(f"P{self.splits[name]!r}" for name in self.arguments if self.mesh)
        mesh = f"\n        mesh={dict(self.mesh)!r},\n        in_specs=({specs},)," if specs else ""
        return _SCRIPT.format(
            definitions=self.definitions,
            arguments=textwrap.indent("\n".join(arguments), " " * 8),
            machine=self.machine,
            mesh=mesh,
        )

    @property
    def name(self) -> str:
        """The kind, its choices and the machine, in one line."""
        text = ", ".join(f"{name}={choice}" for name, choice in self.choices.items())
        mesh = f" over {dict(self.mesh)}" if self.mesh else ""
        return f"{self.kind}({text}) on {self.machine}{mesh}"


def sized_program(seed: int, kind: str | None = None) -> SizedProgram:
    """The program of a seed, which fits into the memory of a core."""
    kind = kind or Random(seed).choice(list(KINDS))
    random = Random(f"{kind} {seed}")
    over_a_mesh = random.random() < _OVER_A_MESH
    while True:
        machine = random.choice(list(_MESHES if over_a_mesh else NEWER))
        program = SizedProgram(kind, KINDS[kind].draw(random), machine)
        try:
            check_size(program)
        except Unsuitable:
            continue
        return _over_a_mesh(program, random) if over_a_mesh else program


def check_size(program: SizedProgram) -> None:
    """Unsuitable: the choices do not go together, or are too large for a core."""
    arguments = program.arguments
    given = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arguments.values()]
    results = jax.tree.leaves(jax.eval_shape(program.step, *given))
    nbytes = sum(a.nbytes for a in arguments.values())
    nbytes += sum(each.size * each.dtype.itemsize for each in results)
    if not 0 < nbytes <= _MOST_BYTES:
        raise Unsuitable


def _over_a_mesh(program: SizedProgram, random: Random) -> SizedProgram:
    """The program over a mesh of its machine, each argument split at random."""
    mesh = random.choice(_MESHES[program.machine])
    splits = {name: _split(a.shape, mesh, random) for name, a in program.arguments.items()}
    return SizedProgram(program.kind, program.choices, program.machine, mesh, splits)


def _split(
    shape: tuple[int, ...], mesh: Mapping[str, int], random: Random
) -> tuple[str | None, ...]:
    axes: list[str | None] = [None] * len(shape)
    for axis, size in mesh.items():
        places = [at for at, n in enumerate(shape) if axes[at] is None and n % size == 0]
        if places and random.random() < 0.75:
            axes[random.choice(places)] = axis
    return tuple(axes)


def plainer(program: SizedProgram) -> Iterator[SizedProgram]:
    """Programs with one choice that comes sooner in its row, or without the mesh."""
    if program.mesh:
        for name, axes in program.splits.items():
            for at in (at for at, axis in enumerate(axes) if axis):
                fewer = {**program.splits, name: (*axes[:at], None, *axes[at + 1 :])}
                yield SizedProgram(
                    program.kind, program.choices, program.machine, program.mesh, fewer
                )
    for name, options in KINDS[program.kind].choices.items():
        at = options.index(program.choices[name]) if program.choices[name] in options else 0
        for sooner in dict.fromkeys((0, at // 2, at - 1)):
            if 0 <= sooner < at and options[sooner] != program.choices[name]:
                choices = {**program.choices, name: options[sooner]}
                candidate = SizedProgram(
                    program.kind, choices, program.machine, program.mesh, program.splits
                )
                if _is_suitable(candidate):
                    yield candidate


def _is_suitable(program: SizedProgram) -> bool:
    try:
        check_size(program)
    except Unsuitable:
        return False
    return all(
        not axis or a.shape[at] % program.mesh[axis] == 0
        for name, a in program.arguments.items()
        if program.mesh
        for at, axis in enumerate(program.splits[name])
    )


def _function(written: Written) -> str:
    return (
        f"def program({', '.join(written.arguments)}):\n{textwrap.indent(written.body, ' ' * 4)}\n"
    )


def _defined(text: str) -> dict[str, Any]:
    scope: dict[str, Any] = {"jax": jax, "lax": jax.lax, "jnp": jax.numpy}
    exec(compile(text, "<program>", "exec"), scope)
    return scope
