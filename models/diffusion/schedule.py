"""How noise grows with time, by a scheduler_config.json of diffusers.

A noisy latent at time t is alpha[t] · latent + sigma[t] · noise, with alpha² + sigma² = 1; of flows
alpha + sigma = 1.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from models.errors import ConfigError
from models.published.defaults import DEFAULTS
from models.settings import OneOf, Range, check_settings, read_settings, setting
from models.weights.fields import Fields, read_fields

SCHEDULER_FILE = "scheduler_config.json"
FLOW = "FlowMatchEulerDiscreteScheduler"

BETAS: Mapping[str, Callable[[float, float, int], np.ndarray]] = {
    "linear": np.linspace,
    "scaled_linear": lambda start, end, count: np.linspace(start**0.5, end**0.5, count) ** 2,
}
PREDICTIONS = OneOf(("epsilon", "v_prediction"))
SPACINGS = OneOf(("linspace", "leading", "trailing"))
NAMES = tuple(name for name in DEFAULTS if name.endswith("Scheduler"))


@dataclass(frozen=True)
class ShiftBySize:
    """The logarithm of a flow's shift, linear in the number of patches of an image."""

    base_shift: float = setting("base_shift", default=0.5)
    max_shift: float = setting("max_shift", default=1.15)
    base_places: int = setting("base_image_seq_len", default=256)
    max_places: int = setting("max_image_seq_len", default=4096)

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
    num_times: int = setting(
        "num_train_timesteps", "times of training", Range(1, 1_000_000), default=1000
    )
    beta_start: float = setting("beta_start", default=0.00085)
    beta_end: float = setting("beta_end", default=0.012)
    betas: str = setting("beta_schedule", "how noise grows", OneOf(BETAS), default="scaled_linear")
    prediction: str = setting(
        "prediction_type", "what the denoiser predicts", PREDICTIONS, default="epsilon"
    )
    spacing: str = setting("timestep_spacing", "how times are chosen", SPACINGS, default="leading")
    offset: int = setting("steps_offset", default=1)
    ends_clean: bool = False  # the last step leaves no noise, rather than that of time 0
    first_order_end: bool = setting("lower_order_final", default=True)
    distilled_steps: int = setting("original_inference_steps", default=50)
    time_scale: float = setting("timestep_scaling", default=10.0)
    shift: float = setting("shift", default=1.0)
    shift_by_size: ShiftBySize | None = None  # of flows: the shift follows the size of the image

    def __post_init__(self) -> None:
        check_settings(self)
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
    if sampler not in NAMES:
        raise fields.fail("_class_name", f"choose one of {', '.join(NAMES)}")
    fields = fields.of_family(DEFAULTS[sampler])
    fields.refuse_others(DEFAULTS[sampler])
    given = {"sampler": sampler, "ends_clean": _ends_clean(fields)}
    if sampler == FLOW and fields.flag("use_dynamic_shifting"):
        given["shift_by_size"] = _shift_by_size(fields)
    return Schedule(**read_settings(Schedule, fields, given=given))


def _ends_clean(fields: Fields) -> bool:
    if fields.knows("clip_sample") and fields.flag("clip_sample"):
        raise fields.fail("clip_sample", "it must be false, because latents are not clipped")
    if fields.knows("skip_prk_steps") and not fields.flag("skip_prk_steps"):
        raise fields.fail(
            "skip_prk_steps", "it must be true, because Runge-Kutta steps are not supported"
        )
    fields.refuse("final_sigmas_type", "zero", "sigma_min", why="choose zero or sigma_min")
    if fields.knows("set_alpha_to_one"):
        return fields.flag("set_alpha_to_one")
    return fields.text("final_sigmas_type") == "zero"


def _shift_by_size(fields: Fields) -> ShiftBySize:
    by_size = ShiftBySize(**read_settings(ShiftBySize, fields))
    if by_size.base_places == by_size.max_places:
        raise fields.fail("max_image_seq_len", "it must differ from base_image_seq_len")
    return by_size
