"""Samplers, from noise to latents: DDIM, PNDM, Euler, DPM-Solver++ 2M, Euler of flows, and with new
noise at every step ancestral Euler and LCM.

All of them are linear multistep methods: what a step does to the sample, to the denoiser's output
and to what earlier steps remember are numbers that depend on the schedule alone. So a sampler is a
function that writes a table of them, and there is one step for all.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from models.diffusion.schedule import FLOW, Schedule
from models.errors import InputError

MEMORY = 3  # earlier predictions that a step may look at


class Steps(NamedTuple):
    """The table of a sampler, a row per step, FP32 but for the flags. Predictions are of noise or
    of the clean latents, as the sampler likes."""

    time: np.ndarray  # [N] what the denoiser is told
    scale: np.ndarray  # [N] multiplies the sample for the denoiser
    from_output: np.ndarray  # [N] prediction = from_output · output …
    from_sample: np.ndarray  # [N] … + from_sample · sample
    weights: np.ndarray  # [N, 1 + MEMORY] of this prediction and earlier ones, the latest first
    keep: np.ndarray  # [N] next sample = keep · sample …
    move: np.ndarray  # [N] … + move · the weighted predictions
    remember: np.ndarray  # [N] bool: later steps may look at this prediction
    restart: np.ndarray  # [N] bool: the step starts from the first sample again
    signal: np.ndarray  # [N] the sample before the step = signal · clean latents …
    noise: np.ndarray  # [N] … + noise · noise
    fresh: np.ndarray  # [N] standard deviation of new noise, added after the step


class Plan(NamedTuple):
    """The plan of a sampling run."""

    steps: Steps
    noise: float  # standard deviation of the first sample


class State(NamedTuple):
    """The state that is passed from step to step."""

    sample: jax.Array
    first: jax.Array  # the sample of the beginning
    predictions: jax.Array  # [MEMORY, *sample], the latest first


def begin(sample: jax.Array) -> State:
    """The state before the first step, from noise of the plan's standard deviation, or from what
    `noisy` makes."""
    sample = sample.astype(jnp.float32)
    return State(sample, sample, jnp.zeros((MEMORY, *sample.shape), jnp.float32))


def step(state: State, row: Steps, output: jax.Array) -> State:
    """The state after the step of `row` (one row of Plan.steps), whose denoiser said `output` of
    row.scale · state.sample."""
    sample = jnp.where(row.restart, state.first, state.sample)
    prediction = row.from_output * output + row.from_sample * sample
    known = jnp.concatenate([prediction[None], state.predictions])
    mixed = jnp.tensordot(row.weights, known, axes=1)
    predictions = jnp.where(row.remember, known[:MEMORY], state.predictions)
    return State(row.keep * sample + row.move * mixed, state.first, predictions)


def noisy(row: Steps, latents: jax.Array, noise: jax.Array) -> jax.Array:
    """The sample before the step of `row` that has these clean latents and this noise."""
    return row.signal * latents + row.noise * noise


def plan(schedule: Schedule, num_steps: int, start: int = 0) -> Plan:
    """The table of a sampler for that number of denoising steps, without the first `start`.

    PNDM takes one more. Raises InputError if there are more steps than times, or none is left.
    """
    if not 1 <= num_steps <= schedule.longest:
        raise InputError(
            f"num_steps={num_steps} is out of range: this scheduler supports 1 to "
            f"{schedule.longest} steps"
        )
    if start >= num_steps:
        raise InputError(
            f"num_steps={num_steps} leaves no steps to run. Use more steps or a higher strength."
        )
    steps, noise = SAMPLERS[schedule.sampler](schedule, num_steps, start)
    return Plan(Steps(*(_as_array(column) for column in steps)), float(noise))


def _as_array(column: np.ndarray) -> np.ndarray:
    return column if column.dtype == bool else column.astype(np.float32)


class Levels(NamedTuple):
    """How much latent and how much noise there is, before and after each step, FP64 [N]."""

    alpha: np.ndarray
    sigma: np.ndarray
    next_alpha: np.ndarray
    next_sigma: np.ndarray

    @classmethod
    def of(cls, squared: np.ndarray, next_squared: np.ndarray) -> "Levels":
        """The levels for these squares of alpha."""
        pairs = (squared, 1 - squared, next_squared, 1 - next_squared)
        return cls(*(np.sqrt(values) for values in pairs))

    def towards_noise(self, prediction: str) -> tuple[np.ndarray, np.ndarray]:
        """(from_output, from_sample) that give the noise."""
        if prediction == "epsilon":
            return np.ones_like(self.alpha), np.zeros_like(self.alpha)
        return self.alpha, self.sigma

    def towards_latents(self, prediction: str) -> tuple[np.ndarray, np.ndarray]:
        """(from_output, from_sample) that give the clean latents."""
        if prediction == "epsilon":
            return -self.sigma / self.alpha, 1 / self.alpha
        return -self.sigma, self.alpha

    def keep_and_move(self) -> tuple[np.ndarray, np.ndarray]:
        """The next sample from this one and its noise: what remains, mixed anew."""
        keep = self.next_alpha / self.alpha
        return keep, self.next_sigma - keep * self.sigma


def _times(schedule: Schedule, num_steps: int) -> np.ndarray:
    """Times of the steps, falling. See Lin et al., "Common Diffusion Noise Schedules and Sample
    Steps are Flawed", 2023, table 2."""
    count = schedule.num_times
    if schedule.spacing == "linspace":
        return np.linspace(0, count - 1, num_steps)[::-1]
    if schedule.spacing == "leading":
        return (np.arange(num_steps) * (count // num_steps))[::-1] + schedule.offset
    return np.round(np.arange(count, 0, -count / num_steps)) - 1


def _squared_at(schedule: Schedule, times: np.ndarray) -> np.ndarray:
    """alpha² at whole times; beyond the end, what is left after the last step."""
    squared = schedule.alphas_squared()
    last = 1.0 if schedule.ends_clean else squared[0]
    return np.where(times >= 0, squared[np.maximum(times, 0)], last)


def _single(count: int) -> dict[str, np.ndarray]:
    """The columns of a sampler without memory."""
    weights = np.zeros((count, 1 + MEMORY))
    weights[:, 0] = 1
    return {
        "scale": np.ones(count),
        "weights": weights,
        "remember": np.zeros(count, bool),
        "restart": np.zeros(count, bool),
        "fresh": np.zeros(count),
    }


def _ddim(schedule: Schedule, num_steps: int, start: int) -> tuple[Steps, float]:
    """Song et al., "Denoising Diffusion Implicit Models", 2021, without added noise."""
    times = np.round(_times(schedule, num_steps)).astype(int)[start:]
    after = times - schedule.num_times // num_steps
    levels = Levels.of(_squared_at(schedule, times), _squared_at(schedule, after))
    from_output, from_sample = levels.towards_noise(schedule.prediction)
    keep, move = levels.keep_and_move()
    columns = _single(len(times)) | {
        "time": times,
        "keep": keep,
        "move": move,
        "signal": levels.alpha,
        "noise": levels.sigma,
    }
    return Steps(from_output=from_output, from_sample=from_sample, **columns), 1.0


# Adams-Bashforth weights of this prediction and earlier ones, by how many there are.
_ADAMS_BASHFORTH = (
    (1, 0, 0, 0),
    (3 / 2, -1 / 2, 0, 0),
    (23 / 12, -16 / 12, 5 / 12, 0),
    (55 / 24, -59 / 24, 37 / 24, -9 / 24),
)


def _pndm(schedule: Schedule, num_steps: int, start: int) -> tuple[Steps, float]:
    """Liu et al., "Pseudo Numerical Methods for Diffusion Models on Manifolds", 2022, with linear
    multisteps alone. The first step is taken twice: again with the mean of both predictions."""
    single = np.round(_times(schedule, num_steps)).astype(int)
    times = np.concatenate([single[:1], single[1:2], single[1:]])[start:]
    stride = schedule.num_times // num_steps
    begins, ends = times.copy(), times - stride
    count, again = len(times), np.arange(len(times)) == 1
    begins[again], ends[again] = times[again] + stride, times[again]
    levels = Levels.of(_squared_at(schedule, begins), _squared_at(schedule, ends))
    # The outputs are mixed before they become predictions, so that is part of keep and move.
    from_output, from_sample = levels.towards_noise(schedule.prediction)
    keep, move = levels.keep_and_move()
    at_times = Levels.of(*[_squared_at(schedule, times)] * 2)
    order = np.arange(count) - (np.arange(count) > 1)
    weights = np.array([_ADAMS_BASHFORTH[min(n, MEMORY)] for n in order])
    weights[again] = (1 / 2, 1 / 2, 0, 0)
    columns = _single(count) | {
        "time": times,
        "weights": weights,
        "keep": keep + move * from_sample,
        "move": move * from_output,
        "remember": ~again,
        "restart": again,
        "signal": at_times.alpha,
        "noise": at_times.sigma,
    }
    return Steps(from_output=np.ones(count), from_sample=np.zeros(count), **columns), 1.0


def _ratios(schedule: Schedule, times: np.ndarray) -> np.ndarray:
    """sigma / alpha at times that need not be whole, and after the last step [N + 1]."""
    squared = schedule.alphas_squared()
    ratios = np.sqrt((1 - squared) / squared)
    last = 0.0 if schedule.ends_clean else ratios[0]
    return np.append(np.interp(times, np.arange(len(ratios)), ratios), last)


def _euler(schedule: Schedule, num_steps: int, start: int) -> tuple[Steps, float]:
    """Karras et al., "Elucidating the Design Space of Diffusion-Based Generative Models", 2022,
    algorithm 2 without churn. The sample is latents + sigma / alpha · noise."""
    times = _times(schedule, num_steps)
    ratios = _ratios(schedule, times)
    largest = ratios.max()
    noise = np.sqrt(largest**2 + 1) if schedule.spacing == "leading" else largest
    times, ratios = times[start:], ratios[start:]
    now = ratios[:-1]
    alpha = 1 / np.sqrt(now**2 + 1)
    from_output, from_sample = np.ones_like(now), np.zeros_like(now)
    if schedule.prediction == "v_prediction":
        from_output, from_sample = alpha, now * alpha**2
    columns = _single(len(times)) | {
        "time": times,
        "scale": alpha,
        "keep": np.ones_like(now),
        "move": np.diff(ratios),
        "signal": np.ones_like(now),
        "noise": now,
    }
    return Steps(from_output=from_output, from_sample=from_sample, **columns), noise


def _ancestral(schedule: Schedule, num_steps: int, start: int) -> tuple[Steps, float]:
    """Euler's steps, but further down, and up again with new noise: Crowson, k-diffusion, 2022."""
    steps, noise = _euler(schedule, num_steps, start)
    after = np.append(steps.noise[1:], 0)
    fresh = after * np.sqrt(steps.noise**2 - after**2) / steps.noise
    down = np.sqrt(after**2 - fresh**2)
    return steps._replace(move=down - steps.noise, fresh=fresh), noise


_DATA_DEVIATION = 0.5  # of clean latents, as LCM assumes


def _lcm(schedule: Schedule, num_steps: int, start: int) -> tuple[Steps, float]:
    """Luo et al., "Latent Consistency Models", 2023: every step predicts the clean latents, which
    get new noise."""
    stride = schedule.num_times // schedule.distilled_steps
    times = (np.arange(1, schedule.distilled_steps + 1) * stride - 1)[::-1]
    chosen = np.linspace(0, len(times), num_steps, endpoint=False).astype(int)
    times = times[chosen][start:]
    squared = _squared_at(schedule, times)
    levels = Levels.of(squared, np.append(squared[1:], 1.0))
    from_output, from_sample = levels.towards_latents(schedule.prediction)
    scaled = times * schedule.time_scale
    length = np.hypot(scaled, _DATA_DEVIATION)
    columns = _single(len(times)) | {
        "time": times,
        "keep": levels.next_alpha * (_DATA_DEVIATION / length) ** 2,
        "move": levels.next_alpha * scaled / length,
        "signal": levels.alpha,
        "noise": levels.sigma,
        "fresh": levels.next_sigma,
    }
    return Steps(from_output=from_output, from_sample=from_sample, **columns), 1.0


def _flow(schedule: Schedule, num_steps: int, start: int) -> tuple[Steps, float]:
    """Esser et al., "Scaling Rectified Flow Transformers", 2024: Euler along the direction from the
    latents to noise that the denoiser predicts."""
    sigmas = np.linspace(1, 1 / num_steps, num_steps)
    sigmas = schedule.shift * sigmas / (1 + (schedule.shift - 1) * sigmas)
    sigmas = np.append(sigmas, 0)[start:]
    now, ones = sigmas[:-1], np.ones(len(sigmas) - 1)
    columns = _single(len(now)) | {
        "time": now * schedule.num_times,
        "keep": ones,
        "move": np.diff(sigmas),
        "signal": 1 - now,
        "noise": now,
    }
    return Steps(from_output=ones, from_sample=np.zeros(len(now)), **columns), 1.0


_FEW_STEPS = 15  # below which DPM-Solver++ ends carefully


def _dpm_solver(schedule: Schedule, num_steps: int, start: int) -> tuple[Steps, float]:
    """Lu et al., "DPM-Solver++", 2022: second-order multistep, midpoint."""
    times = _dpm_times(schedule, num_steps)
    ratios = _ratios(schedule, times)
    alphas = 1 / np.sqrt(ratios**2 + 1)
    sigmas = ratios * alphas
    levels = Levels(alphas[:-1], sigmas[:-1], alphas[1:], sigmas[1:])
    from_output, from_sample = levels.towards_latents(schedule.prediction)
    with np.errstate(divide="ignore"):
        widths = np.diff(np.log(alphas) - np.log(sigmas))  # in log(alpha / sigma); the last: inf
    count = len(times)
    weights = np.zeros((count, 1 + MEMORY))
    weights[:, 0] = 1
    share = 0.5 * widths[1:] / widths[:-1]  # of the slope from the prediction before
    careful = schedule.first_order_end and count < _FEW_STEPS
    second_order = slice(1, count - (careful or schedule.ends_clean))
    share = share[: second_order.stop - 1]
    weights[second_order, 0], weights[second_order, 1] = 1 + share, -share
    weights[start] = np.eye(1 + MEMORY)[0]  # nothing is remembered yet
    columns = _single(count) | {
        "time": times,
        "weights": weights,
        "keep": levels.next_sigma / levels.sigma,
        "move": -levels.next_alpha * np.expm1(-widths),
        "remember": np.ones(count, bool),
        "signal": levels.alpha,
        "noise": levels.sigma,
    }
    steps = Steps(from_output=from_output, from_sample=from_sample, **columns)
    return Steps(*(column[start:] for column in steps)), 1.0


def _dpm_times(schedule: Schedule, num_steps: int) -> np.ndarray:
    """The times of the steps: one more is chosen, and the last, where the last step ends,
    dropped."""
    count = schedule.num_times
    if schedule.spacing == "linspace":
        return np.linspace(0, count - 1, num_steps + 1).round()[::-1][:-1]
    if schedule.spacing == "leading":
        stride = count // (num_steps + 1)
        return (np.arange(num_steps + 1) * stride)[::-1][:-1] + schedule.offset
    return _times(schedule, num_steps)


SAMPLERS: Mapping[str, Callable[[Schedule, int, int], tuple[Steps, float]]] = {
    "DDIMScheduler": _ddim,
    "PNDMScheduler": _pndm,
    "EulerDiscreteScheduler": _euler,
    "EulerAncestralDiscreteScheduler": _ancestral,
    "LCMScheduler": _lcm,
    FLOW: _flow,
    "DPMSolverMultistepScheduler": _dpm_solver,
}
