"""Simulates a machine's latency and throughput: `python -m launch.traffic --model=70b`.

The scheduler of `launch.serve` answers random or recorded requests on a simulated clock, on which
each step takes the time that the timing model estimates for its bucket. No values are computed:
hours of traffic take seconds once the buckets have been timed (`--timings` saves the times in a
file). The highest rate that meets the objective is searched for, unless `--rates` gives some;
`--sweep` compares settings.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from absl import flags
from tqdm import tqdm

from launch.emulation import cores_of
from launch.errors import LaunchError
from launch.meshes import parse_mesh, text_of
from launch.program import run, say
from launch.serving.config import CACHE_DTYPES, EngineConfig
from launch.serving.copies import COPIES, check_copies, with_split_cache
from launch.serving.errors import ServingError
from launch.serving.runner.sizes import choose_buckets
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.virtual.costs import Costs, seconds_of_steps, speculation_of
from launch.serving.virtual.disaggregation import simulate_disaggregated
from launch.serving.virtual.guessing import Guessing
from launch.serving.virtual.one_copy import Pace
from launch.serving.virtual.report import Objective, knee, summarise, table, write
from launch.serving.virtual.simulation import simulate
from launch.serving.virtual.summary import Summary
from launch.serving.virtual.sweep import Case, best, combinations, comparison, parsed, save, search
from launch.serving.virtual.timings import Machine, Timings
from launch.serving.virtual.traffic import Arrival, TrafficConfig, draw_traffic, read_trace
from launch.settings import define_flags, from_flags, names_of
from models.errors import ModelsError

_SEARCH = "auto"  # in place of rates
_RATES = flags.DEFINE_list(
    "rates",
    [_SEARCH],
    "Request rates, per second, such as 1,2,4; each is a separate simulation. auto: rates around "
    "the highest one that meets the objective.",
)
_SWEEP = flags.DEFINE_multi_string(
    "sweep",
    [],
    "A setting of engine or machine and the values to try, such as max_num_seqs=16/64 or "
    "mesh=model=32/data=2,model=32; of several, all combinations.",
)
_TRACE = flags.DEFINE_string(
    "trace", None, "JSONL file of requests (seconds, prompt_tokens, answer_tokens) to replay."
)
_TIMINGS = flags.DEFINE_string("timings", None, "File to keep the bucket times in.")
_OUT = flags.DEFINE_string("out", None, "Folder for traffic.json, traffic.svg and traffic.html.")
_CONTEXT = 8192  # tokens, unless the flags say otherwise
_FLAGS = EngineConfig(
    max_model_len=_CONTEXT, max_num_seqs=64, max_num_batched_tokens=2048, block_size=32
)


def main() -> int:
    values = flags.FLAGS.flag_values_dict()
    timings = Timings(None if _TIMINGS.value is None else Path(_TIMINGS.value))
    folder = None if _OUT.value is None else Path(_OUT.value)
    if _SWEEP.value:
        return _sweep(values, timings, folder)
    _show(_simulate_rates(values, timings), values, folder)
    return 0


def _sweep(values: Mapping[str, Any], timings: Timings, folder: Path | None) -> int:
    """Each combination of settings, and what they come to."""
    known = [*names_of(EngineConfig), *names_of(Machine)]
    changes = [(change, parsed(change)) for change in combinations(_SWEEP.value, known)]
    cases: list[Case] = []
    for number, (change, changed) in enumerate(changes, 1):
        case, own = Case(change, ()), {**values, **changed}
        print(f"{case.name}:")
        try:
            case = case._replace(runs=_simulate_rates(own, timings))
        except (LaunchError, ModelsError) as error:
            case = case._replace(why=str(error))
            print(f"impossible: {error}")
        else:
            _show(case.runs, own, folder and folder / str(number))
        cases.append(case)
    print(f"\nat the knee of each:\n{comparison(cases)}")
    leader = best(cases)
    print("nothing meets the objective" if leader is None else f"most tokens/s: {leader.name}")
    if folder is not None:
        save(cases, folder)
    return 0 if any(case.runs for case in cases) else 1


def _simulate_rates(values: Mapping[str, Any], timings: Timings) -> Sequence[Summary]:
    """A summary for each rate. Raises LaunchError or ModelsError for settings that cannot be."""
    config = from_flags(EngineConfig, values)
    machine, copies, machines = _machine(from_flags(Machine, values), config)
    objective, traffic = from_flags(Objective, values), from_flags(TrafficConfig, values)
    _check(config, traffic, copies)
    limits = _limits(config)
    requests = _requests(traffic, limits.longest, config.max_loras if config.enable_lora else 0)
    rates = _rates(requests)  # known before buckets are timed, which takes minutes
    costs = Costs.of(machine, limits, config)
    with tqdm(total=costs.count, desc="buckets", dynamic_ncols=True) as bar:
        seconds = seconds_of_steps(costs, timings, lambda bucket: bar.update())
    pace = Pace(
        seconds.plain.__getitem__,
        1 if config.async_scheduling else 0,
        None
        if traffic.acceptance_rate is None
        else Guessing(traffic.acceptance_rate, seconds.checked.__getitem__, traffic.seed),
    )

    def run_at(rate: float) -> Summary:
        arrivals = requests(rate)
        outcome = (
            simulate_disaggregated(limits, pace, seconds.moving, arrivals)
            if config.disaggregated_prefill
            else simulate(limits, pace, arrivals, copies=copies)
        )
        say(f"{rate:g} requests per second: {outcome.duration:.1f} s on {machine.target}")
        return summarise(outcome, rate, objective, machines)

    return search(run_at) if rates is None else [run_at(rate) for rate in rates]


def _show(summaries: Sequence[Summary], values: Mapping[str, Any], folder: Path | None) -> None:
    print(table(summaries))
    highest = knee(summaries)
    if highest is None:
        print("no rate can be sustained: too few requests meet the objective")
    else:
        print(
            f"knee: {highest.rate:g} requests per second, {highest.tokens_per_second:.0f} tokens/s"
        )
    if folder is not None:
        write(summaries, folder, {"machine": asdict(from_flags(Machine, values))})


def _machine(machine: Machine, config: EngineConfig) -> tuple[Machine, int, int]:
    """What runs one copy of the model, with what the engine's settings say of its cores and its
    cache; how many copies there are, and how many machines they take. Raises ServingError for a
    mesh that no number of machines has."""
    sizes = parse_mesh(machine.mesh)
    copies = sizes[COPIES]
    needed, there = math.prod(sizes.values()), cores_of(machine.target)
    if needed > there and needed % there:
        raise ServingError(
            f"--mesh={machine.mesh} has {needed} cores, but {machine.target} has {there}: use at "
            "most as many, or a multiple of them"
        )
    mesh = with_split_cache(text_of({**sizes, COPIES: 1}), config)
    dtype = machine.cache_dtype or CACHE_DTYPES[config.kv_cache_dtype]
    return replace(machine, mesh=mesh, cache_dtype=dtype), copies, -(-needed // there)


def _check(config: EngineConfig, traffic: TrafficConfig, copies: int) -> None:
    """Raises ServingError for settings that do not go together."""
    wanted = speculation_of(config)
    check_copies(config, copies, wanted)
    if config.lora_modules:
        raise ServingError(
            "--lora_modules names files, which a simulation does not read: write --enable_lora "
            "--num_adapters=2"
        )
    if config.scan_layers:
        raise ServingError(
            "--scan_layers changes how long programs take to compile, which a simulation does not "
            "tell: leave it out"
        )
    if (wanted is None) != (traffic.acceptance_rate is None):
        raise ServingError(
            "--speculative_config and --acceptance_rate need each other: the one says how tokens "
            "are guessed, the other how often a guess is right"
        )


def _limits(config: EngineConfig) -> SchedulerLimits:
    context = config.max_model_len or _CONTEXT
    groups = config.attention_data_parallel_size
    wanted = speculation_of(config)
    of_group = -(-config.max_num_seqs // groups) * -(-context // config.block_size)
    return SchedulerLimits(
        context=context,
        blocks=config.num_blocks or groups * of_group,
        block_size=config.block_size,
        buckets=choose_buckets(config, context),
        prefix_caching=config.prefix_caching,
        prefills_per_decode=config.prefills_per_decode,
        guesses=0 if wanted is None else wanted.num_speculative_tokens,
        groups=groups,
    )


def _requests(
    traffic: TrafficConfig, longest: int, adapters: int
) -> Callable[[float], list[Arrival]]:
    """What comes at a rate: drawn, or of the trace whatever the rate. Raises ServingError for what
    cannot be, also with room for so many adapters."""
    if _TRACE.value is None:
        arrivals, asked = draw_traffic(traffic, 1.0, longest), traffic.num_adapters
    else:
        arrivals = read_trace(Path(_TRACE.value), longest)
        asked = max((arrival.adapter for arrival in arrivals), default=0)
    if asked > adapters:
        raise ServingError(
            f"requests ask for {asked} adapters, but there is room for {adapters}: give "
            f"--enable_lora --max_loras={asked}"
        )
    if _TRACE.value is None:
        return lambda rate: draw_traffic(traffic, rate, longest)
    return lambda rate: arrivals


def _rates(requests: Callable[[float], list[Arrival]]) -> list[float] | None:
    """The rates of the flag, or the one of the trace; None if they are to be searched for."""
    if _TRACE.value is not None:
        arrivals = requests(0.0)
        return [len(arrivals) / max(arrivals[-1].seconds, 1e-9)]
    if _RATES.value == [_SEARCH]:
        return None
    try:
        rates = [float(text) for text in _RATES.value]
    except ValueError as error:
        raise ServingError(
            f"--rates: {error}; write numbers such as 0.5,1,2, or {_SEARCH}"
        ) from error
    if not all(rate > 0 for rate in rates):
        raise ServingError(f"--rates={','.join(_RATES.value)}: every rate must be positive")
    return rates


if __name__ == "__main__":
    for record in (_FLAGS, Machine(), Objective(), TrafficConfig()):
        define_flags(record)
    run(main)
