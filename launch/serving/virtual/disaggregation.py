"""Prompts on one copy of the model, answers on another: see `launch.serving.disaggregated`."""

import math
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import replace

import numpy as np

from launch.serving.device_clock import Carrier
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.scheduler.sequences import Sequence
from launch.serving.virtual.latencies import Latencies
from launch.serving.virtual.one_copy import Coming, Copy, Pace
from launch.serving.virtual.outcome import Outcome
from launch.serving.virtual.traffic import Arrival


def simulate_disaggregated(
    limits: SchedulerLimits,
    pace: Pace,
    moving: Callable[[int], float],
    arrivals: Items[Arrival],
) -> Outcome:
    """Answers all arrivals, which are in order of time. The first copy draws one token of each; so
    many blocks then take `moving` seconds over the link, one text after the other, and the second
    copy goes on.

    Raises RequestError for a request that does not fit the limits.
    """
    count, between = len(arrivals), Latencies()
    handed_over: list[tuple[int, Coming]] = []  # numbers of the requests whose texts go on
    link = Carrier(moving)

    def go_on(sequence: Sequence, now: float) -> None:
        arrival = arrivals[sequence.number]
        if arrival.max_tokens > 1:
            known = prefill.scheduler.known(sequence.tokens, arrival.root)
            rest = Arrival(
                link.carried(known.length, now),
                bytes(sequence.tokens),
                arrival.max_tokens - 1,
                arrival.adapter,
            )
            handed_over.append((sequence.number, Coming(rest, known)))

    alone = replace(limits, guesses=0)
    prefill = Copy(alone, pace._replace(guessing=None), count, between, on_end=go_on)
    for arrival in arrivals:
        limits.check(len(arrival.prompt), arrival.max_tokens)
        prefill.take(Coming(arrival._replace(max_tokens=1)))
    prefill.advance(math.inf)

    handed_over.sort(key=lambda entry: entry[1].arrival.seconds)  # with no blocks: at once
    decode = Copy(limits, pace, len(handed_over), between)
    for _, coming in handed_over:
        decode.take(coming)
    decode.advance(math.inf)

    numbers = np.array([number for number, _ in handed_over], np.int64)
    between.add(decode.first - prefill.first[numbers])
    finished = prefill.finished.copy()
    finished[numbers] = decode.finished
    return Outcome.of([prefill, decode], arrivals, prefill.first, finished, between)
