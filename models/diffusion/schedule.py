"""How noise grows with time, by a scheduler_config.json of diffusers.

A noisy latent at time t is alpha[t] · latent + sigma[t] · noise, with alpha² + sigma² = 1; of flows
alpha + sigma = 1.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from models.errors import ConfigError
from models.published.defaults import DEFAULTS
from models.weights.fields import Fields, read_fields

SCHEDULER_FILE = "scheduler_config.json"
FLOW = "FlowMatchEulerDiscreteScheduler"

BETAS: Mapping[str, Callable[[float, float, int], np.ndarray]] = {
    "linear": np.linspace,
    "scaled_linear": lambda start, end, count: np.linspace(start**0.5, end**0.5, count) ** 2,
}
PREDICTIONS = ("epsilon", "v_prediction")
MOST_TIMES = 1_000_000
SPACINGS = ("linspace", "leading", "trailing")


@dataclass(frozen=True)
class ShiftBySize:
    """The logarithm of a flow's shift, linear in the number of patches of an image."""

    base_shift: float = 0.5
    max_shift: float = 1.15
    base_places: int = 256
    max_places: int = 4096

    def shift(self, places: int) -> float:
        """The shift for that many patches."""
        slope = (self.max_shift - self.base_shift) / (self.max_places - self.base_places)
        return math.exp(self.base_shift + slope * (places - self.base_places))


@dataclass(frozen=True)
class Schedule:
    """The noise, and which sampler takes it away; the default is that of Stable Diffusion 2.1.

    Raises ConfigError for a name that is not known.
    """

    sampler: str = "PNDMScheduler"  # a key of models.diffusion.samplers.SAMPLERS
    num_times: int = 1000  # of training
    beta_start: float = 0.00085
    beta_end: float = 0.012
    betas: str = "scaled_linear"  # a key of BETAS
    prediction: str = "epsilon"  # what the denoiser predicts, one of PREDICTIONS
    spacing: str = "leading"  # how times are chosen, one of SPACINGS
    offset: int = 1  # added to times that lead
    ends_clean: bool = False  # the last step leaves no noise, rather than that of time 0
    first_order_end: bool = True  # DPM-Solver++ ends with a first-order step if there are few
    distilled_steps: int = 50  # of LCM's teacher: it takes some of their times
    time_scale: float = 10.0  # of LCM: larger ones trust predictions more
    shift: float = 1.0  # of flows: larger ones have more steps with much noise
    shift_by_size: ShiftBySize | None = None  # of flows: the shift follows the size of the image

    def __post_init__(self) -> None:
        for name, known in (
            ("betas", tuple(BETAS)),
            ("prediction", PREDICTIONS),
            ("spacing", SPACINGS),
        ):
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"the scheduler's {name}={getattr(self, name)!r} is not supported; choose one "
                    f"of {', '.join(known)}"
                )

        if self.distilled_steps > self.num_times:
            raise ConfigError(
                f"original_inference_steps={self.distilled_steps} is greater than "
                f"num_train_timesteps={self.num_times}"
            )

    @property
    def longest(self) -> int:
        """How many steps there can be."""
        return self.distilled_steps if self.sampler == "LCMScheduler" else self.num_times

    def at_size(self, places: int) -> "Schedule":
        """The schedule for images of that many patches."""
        by_size = self.shift_by_size
        return self if by_size is None else replace(self, shift=by_size.shift(places))

    def alphas_squared(self) -> np.ndarray:
        """alpha² at every time of training, FP64 [num_times]."""
        return np.cumprod(1 - BETAS[self.betas](self.beta_start, self.beta_end, self.num_times))


def read_schedule(path: Path) -> Schedule:
    """The schedule of a scheduler_config.json, given as the file or its directory.

    Raises ConfigError if it cannot be read or asks for something that is not supported.
    """
    fields = read_fields(path / SCHEDULER_FILE if path.is_dir() else path)
    sampler = fields.text("_class_name")
    if sampler not in (*_KINDS, FLOW):
        raise fields.fail("_class_name", f"choose one of {', '.join((*_KINDS, FLOW))}")
    if sampler == FLOW:
        return _read_flow(fields)
    check, ends_clean, spacing = _KINDS[sampler]
    fields.refuse(
        "use_dynamic_shifting", False, why="this setting is not supported for this scheduler"
    )
    fields.refuse_others(DEFAULTS["scheduler"])
    check(fields)
    defaults = _BETAS_OF.get(sampler, _USUAL_BETAS)
    return Schedule(
        sampler=sampler,
        num_times=_count_of_times(fields),
        beta_start=fields.number("beta_start", defaults["beta_start"]),
        beta_end=fields.number("beta_end", defaults["beta_end"]),
        betas=fields.text("beta_schedule", defaults["beta_schedule"]),
        prediction=fields.text("prediction_type", "epsilon"),
        spacing=fields.text("timestep_spacing", spacing),
        offset=fields.integer("steps_offset", 0),
        ends_clean=ends_clean(fields),
        first_order_end=fields.flag("lower_order_final", True),
        distilled_steps=fields.positive("original_inference_steps", 50),
        time_scale=fields.positive_number("timestep_scaling", 10.0),
    )


def _read_flow(fields: Fields) -> Schedule:
    fields.refuse_others(DEFAULTS["scheduler"])
    fields.refuse("time_shift_type", "exponential", why="only exponential is supported")
    by_size = None
    if fields.flag("use_dynamic_shifting", False):
        by_size = ShiftBySize(
            base_shift=fields.number("base_shift", 0.5),
            max_shift=fields.number("max_shift", 1.15),
            base_places=fields.positive("base_image_seq_len", 256),
            max_places=fields.positive("max_image_seq_len", 4096),
        )
        if by_size.base_places == by_size.max_places:
            raise fields.fail("max_image_seq_len", "it must differ from base_image_seq_len")
    return Schedule(
        sampler=FLOW,
        num_times=_count_of_times(fields),
        shift=fields.positive_number("shift", 1.0),
        shift_by_size=by_size,
    )


_USUAL_BETAS: Mapping[str, Any] = {
    "beta_start": 1e-4,
    "beta_end": 0.02,
    "beta_schedule": "linear",
}
# Samplers of diffusers that assume other ones.
_BETAS_OF: Mapping[str, Mapping[str, Any]] = {
    "LCMScheduler": {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
}


def _check_ddim(fields: Fields) -> None:
    if fields.flag("clip_sample", True):
        raise fields.fail("clip_sample", "it must be false, because latents are not clipped")


def _check_lcm(fields: Fields) -> None:
    fields.refuse("clip_sample", False, why="it must be false, because latents are not clipped")


def _check_pndm(fields: Fields) -> None:
    if not fields.flag("skip_prk_steps", False):
        raise fields.fail(
            "skip_prk_steps", "it must be true, because Runge-Kutta steps are not supported"
        )


def _check_sigmas(fields: Fields) -> None:
    fields.refuse("final_sigmas_type", "zero", "sigma_min", why="choose zero or sigma_min")
    fields.refuse("euler_at_final", False, why="only false is supported")


def _ends_at_zero(fields: Fields) -> bool:
    return fields.text("final_sigmas_type", "zero") == "zero"


# By sampler: what its fields must say, whether it ends without noise, its default spacing.
_KINDS: Mapping[str, tuple[Callable[[Fields], None], Callable[[Fields], bool], str]] = {
    "DDIMScheduler": (_check_ddim, lambda f: f.flag("set_alpha_to_one", True), "leading"),
    "PNDMScheduler": (_check_pndm, lambda f: f.flag("set_alpha_to_one", False), "leading"),
    "EulerDiscreteScheduler": (_check_sigmas, _ends_at_zero, "linspace"),
    "EulerAncestralDiscreteScheduler": (_check_sigmas, lambda f: True, "linspace"),
    "LCMScheduler": (_check_lcm, lambda f: True, "leading"),
    "DPMSolverMultistepScheduler": (_check_sigmas, _ends_at_zero, "linspace"),
}


def _count_of_times(fields: Fields) -> int:
    count = fields.positive("num_train_timesteps", 1000)
    if count > MOST_TIMES:
        raise fields.fail("num_train_timesteps", f"it must be at most {MOST_TIMES}")
    return count
