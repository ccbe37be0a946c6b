"""Which programs of a recording are its work, and which only prepare it.

A recording of a few steps is full of what a long job does once: drawing weights, converting them.
A program is taken for such *one-off* work if another one runs again and again that computes more,
and it ran a single time, or for the last time before that one began.
"""

from __future__ import annotations

from neuronjax.profiling.records import Profile


def one_off(profile: Profile) -> frozenset[int]:
    """The numbers of the programs that only prepare, or run a single time beside steps."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for position, run in enumerate(profile.runs):
        first.setdefault(run.program, position)
        last[run.program] = position
    flops = [program.model_flops for program in profile.programs]
    repeating = [number for number in first if profile.counts[number] > 1]
    return frozenset(
        number
        for number, count in enumerate(profile.counts)
        if any(
            flops[step] > flops[number]
            and (count == 1 or last.get(number, len(profile.runs)) < first[step])
            for step in repeating
        )
    )


def ranked(profile: Profile) -> list[int]:
    """Numbers of the programs: the work before what is one-off, longest total time first."""
    aside = one_off(profile)

    def rank(number: int) -> tuple[bool, float]:
        return number in aside, -profile.programs[number].total_ns * profile.counts[number]

    return sorted(range(len(profile.programs)), key=rank)
