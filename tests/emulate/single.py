"""Programs of one instruction, or a few, on tiles that are loaded before and stored afterwards."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from neuronjax.emulate.checks import Checks
from neuronjax.emulate.core import Emulation
from neuronjax.emulate.element_types import PLAIN, Rounding
from neuronjax.program.program import Program
from neuronjax.program.text import parse

Arrays = Mapping[str, np.ndarray]
Outputs = Mapping[str, tuple[str, tuple[int, int]]]
"""Name -> element type and shape [partitions, elements]."""


def tile(name: str, shape: tuple[int, ...]) -> str:
    """All of a tile, as text."""
    walk = f"; 1:{shape[1]}" if len(shape) > 1 else ""
    return f"%{name}<0, {shape[0]}>[0{walk}]"


def hbm(name: str, shape: tuple[int, ...]) -> str:
    """All of a tensor in HBM, as text."""
    return f"%{name}[0; {shape[1]}:{shape[0]}, 1:{shape[1]}]"


def program(
    text: str,
    inputs: Arrays,
    outputs: Outputs,
    *,
    psum: tuple[str, ...] = (),
    target: str = "trainium2",
    registers: tuple[str, ...] = (),
    ranks: int = 1,
) -> Program:
    """The program around `text`, in which ``{x}`` is the tile of input or output x.

    ``{hbm_x}`` is the tensor in HBM that an input comes from or an output goes to.
    """
    shapes = {name: value.shape for name, value in inputs.items()}
    types = {name: value.dtype.name for name, value in inputs.items()}
    shapes |= {name: shape for name, (_, shape) in outputs.items()}
    types |= {name: dtype for name, (dtype, _) in outputs.items()}
    places = {name: tile(name, shape) for name, shape in shapes.items()}
    places |= {f"hbm_{name}": hbm(f"hbm_{name}", shape) for name, shape in shapes.items()}
    size = f"ranks {ranks} " if ranks > 1 else ""
    lines = [f'program "single" target {target} lnc 1 {size}{{']
    lines += [f"register ${name}" for name in registers]
    for name, shape in shapes.items():
        kind = "argument" if name in inputs else "result"
        lines.append(f"hbm %hbm_{name} : {types[name]}[{shape[0]}, {shape[1]}] {kind}")
    lines.append('kernel "it" sources ("it.py:1") {')
    for name, shape in shapes.items():
        memory = "psum" if name in psum else "sbuf"
        lines.append(f"{memory} %{name} : {types[name]}[{shape[0]}, {shape[1]}]")
    lines += [f"dma_copy dst={places[name]} src={places[f'hbm_{name}']}" for name in inputs]
    lines += [line.format(**places) for line in text.strip().splitlines()]
    lines += [
        f"dma_copy dst={places[f'hbm_{name}']} src={places[name]}"
        for name in outputs
        if f"dst={{hbm_{name}}}" not in text and f"dsts=({{hbm_{name}}})" not in text
    ]
    return parse("\n".join([*lines, "}", "}"]))


def execute(
    text: str,
    inputs: Arrays,
    outputs: Outputs,
    *,
    checks: Checks | None = None,
    rounding: Rounding = PLAIN,
    **options: object,
) -> dict[str, np.ndarray]:
    """What the outputs hold in the end."""
    made = program(text, inputs, outputs, **options)
    arguments = {f"hbm_{name}": value for name, value in inputs.items()}
    emulation = Emulation(made, [arguments], checks=checks, rounding=rounding)
    emulation.run()
    return {name: emulation.results()[0][f"hbm_{name}"] for name in outputs}
