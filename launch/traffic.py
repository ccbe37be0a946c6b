"""Simulates a machine's latency and throughput: `python -m launch.traffic --rates=1,2,4,8`.

The scheduler of `launch.serve` answers random or recorded requests on a simulated clock, on which
each step takes the time that the timing model estimates for its bucket. No values are computed:
hours of traffic take seconds once the buckets have been timed (`--timings` saves the times in a
file).
"""

from dataclasses import asdict, replace
from pathlib import Path

from absl import flags
from tqdm import tqdm

from launch.program import run, say
from launch.serving.config import CACHE_DTYPES, EngineConfig
from launch.serving.copies import with_split_cache
from launch.serving.errors import ServingError
from launch.serving.runner.sizes import choose_buckets
from launch.serving.scheduler.limits import SchedulerLimits
from launch.serving.virtual.report import Objective, knee, summarise, table, write
from launch.serving.virtual.simulation import simulate
from launch.serving.virtual.summary import Summary
from launch.serving.virtual.timings import Machine, Timings, measure
from launch.serving.virtual.traffic import Arrival, TrafficConfig, draw_traffic, read_trace
from launch.settings import define_flags, from_flags

_RATES = flags.DEFINE_list(
    "rates", ["1"], "Request rates, per second; each is a separate simulation."
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
    config = from_flags(EngineConfig, values)
    machine = _machine(from_flags(Machine, values), config)
    objective, traffic = from_flags(Objective, values), from_flags(TrafficConfig, values)
    limits = _limits(config)
    runs = _runs(traffic, limits.longest)  # before the buckets are timed, which takes minutes
    timings = _timings(machine, limits)
    ahead = 1 if config.async_scheduling else 0
    summaries: list[Summary] = []
    for rate, arrivals in runs:
        outcome = simulate(limits, timings, arrivals, steps_ahead=ahead)
        summaries.append(summarise(outcome, rate, objective))
        say(f"{rate:g} requests per second: {outcome.duration:.1f} s on {machine.target}")
    print(table(summaries))
    best = knee(summaries)
    if best is None:
        print("no rate can be sustained: too few requests meet the objective")
    else:
        print(f"knee: {best.rate:g} requests per second, {best.tokens_per_second:.0f} tokens/s")
    if _OUT.value is not None:
        write(summaries, Path(_OUT.value), {"machine": asdict(machine)})
    return 0


def _machine(machine: Machine, config: EngineConfig) -> Machine:
    """With what the engine's settings say of its cores and its cache. Raises ServingError for those
    whose cost is not known."""
    for name in ("speculative_config", "disaggregated_prefill", "enable_lora", "lora_modules"):
        if getattr(config, name):
            raise ServingError(f"--{name} cannot be simulated. Leave it out.")
    return replace(
        machine,
        mesh=with_split_cache(machine.mesh, config),
        cache_dtype=machine.cache_dtype or CACHE_DTYPES[config.kv_cache_dtype],
    )


def _limits(config: EngineConfig) -> SchedulerLimits:
    context = config.max_model_len or _CONTEXT
    groups = config.attention_data_parallel_size
    of_group = -(-config.max_num_seqs // groups) * -(-context // config.block_size)
    return SchedulerLimits(
        context=context,
        blocks=config.num_blocks or groups * of_group,
        block_size=config.block_size,
        buckets=choose_buckets(config, context),
        prefix_caching=config.prefix_caching,
        prefills_per_decode=config.prefills_per_decode,
        groups=groups,
    )


def _timings(machine: Machine, limits: SchedulerLimits) -> Timings:
    file = None if _TIMINGS.value is None else Path(_TIMINGS.value)
    if file is not None and file.is_file():
        timings = Timings.read(file)
        if timings.fits(machine, limits):
            return timings
        say(f"{file} has the times of other buckets or of another machine and is replaced")
    with tqdm(total=len(list(limits.buckets)), desc="buckets", dynamic_ncols=True) as bar:
        timings = measure(machine, limits, lambda bucket: bar.update())
    if file is not None:
        timings.save(file)
    return timings


def _runs(traffic: TrafficConfig, longest: int) -> list[tuple[float, list[Arrival]]]:
    """Requests per second, and the requests: of the trace, or drawn for each rate."""
    if _TRACE.value is None:
        return [(rate, draw_traffic(traffic, rate, longest)) for rate in _rates()]
    arrivals = read_trace(Path(_TRACE.value), longest)
    return [(len(arrivals) / max(arrivals[-1].seconds, 1e-9), arrivals)]


def _rates() -> list[float]:
    try:
        rates = [float(text) for text in _RATES.value]
    except ValueError as error:
        raise ServingError(f"--rates: {error}; write numbers such as 0.5,1,2") from error
    if not all(rate > 0 for rate in rates):
        raise ServingError(f"--rates={','.join(_RATES.value)}: every rate must be positive")
    return rates


if __name__ == "__main__":
    for record in (_FLAGS, Machine(), Objective(), TrafficConfig()):
        define_flags(record)
    run(main)
