"""Which chip a kernel is compiled for."""

from __future__ import annotations

from collections.abc import Mapping

from neuronjax import options
from neuronjax.errors import KernelError, UnknownTargetError, quoted
from neuronjax.machine.chips import CHIPS
from neuronjax.machine.instances import find_instance

KERNEL_CHIPS = tuple(name for name, chip in CHIPS.items() if chip.core.is_published)
"""The chips that kernels are written for."""

_GENERATIONS: Mapping[str, str] = {
    "trn1": "trainium1",
    "inf2": "inferentia2",
    "gen2": "trainium1",
    "trn2": "trainium2",
    "gen3": "trainium2",
    "trn3": "trainium3",
    "gen4": "trainium3",
}
_LATEST = "trainium2"
"""The generation that kernels are built for on machines whose chips take none."""


def chip_of(target: str | None) -> str:
    """The chip of a target: an instance such as `trn2.48xlarge`, a generation such as `trn2` or
    `gen3`, or a chip. None is ``NEURON_PLATFORM_TARGET_OVERRIDE`` or else the emulated machine.

    KernelError: there is no such target, or kernels cannot run on it.
    """
    if target is None:
        return _chip_here()
    if target in KERNEL_CHIPS:
        return target
    if target in _GENERATIONS:
        return _GENERATIONS[target]
    try:
        chip = find_instance(target).chip.name
    except UnknownTargetError:
        chip = ""
    if chip not in KERNEL_CHIPS:
        raise KernelError(
            f"kernels cannot run on target {quoted(target)}; choose from "
            f"{', '.join(_GENERATIONS)}, or an instance such as trn2.48xlarge."
        )
    return chip


def _chip_here() -> str:
    chosen = options.load()
    if chosen.kernel_target is not None:
        return _GENERATIONS[chosen.kernel_target]
    chip = find_instance(chosen.target).chip.name
    return chip if chip in KERNEL_CHIPS else _LATEST
