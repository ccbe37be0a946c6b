"""How far the time of a recorded program is to be trusted."""

from __future__ import annotations

from neuronjax.machine.chips import CHIPS
from neuronjax.profiling.records import MachineFacts, ProgramProfile
from neuronjax.timing.ranges import Range, Traits, range_of
from neuronjax.timing.runs import HOST
from neuronjax.timing.timeline import COLLECTIVE


def range_of_run(program: ProgramProfile, machine: MachineFacts) -> Range | None:
    """The range of one run, and what it rests on; None: the program was not timed.

    What a step trains is not recorded: it counts as a forward pass.
    """
    if not program.total_ns:
        return None
    nbytes = program.work.get("hbm_read_bytes", 0.0) + program.work.get("hbm_write_bytes", 0.0)
    ridge = machine.max_flops / machine.max_hbm_bandwidth
    traits = Traits(
        chip=machine.chip,
        ranks=program.ranks,
        intensity=program.model_flops / nbytes / ridge if nbytes else 0.0,
        is_one_kernel=sum(kernel.runs for kernel in program.kernels) == 1,
        collective_share=program.busy_ns.get(COLLECTIVE, 0.0) / program.total_ns,
        host_share=program.busy_ns.get(HOST, 0.0) / program.total_ns,
        assumed=CHIPS[machine.chip].core.assumed,
    )
    return range_of(program.total_ns, traits)
