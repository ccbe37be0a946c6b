"""Every sampler against diffusers' scheduler, on the same made-up denoiser."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from models.diffusion.samplers import Steps, begin, plan, step
from models.diffusion.schedule import SPACINGS, read_schedule
from models.errors import ConfigError

diffusers = pytest.importorskip(
    "diffusers", reason="diffusers is not installed: the reference needs the extra `parity`"
)
import torch  # noqa: E402 (the reference is made of it)

BETAS = {
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "steps_offset": 1,
}
SCHEDULERS = [
    ("DDIMScheduler", {"clip_sample": False, "set_alpha_to_one": False}),
    ("DDIMScheduler", {"clip_sample": False, "beta_schedule": "linear"}),
    ("PNDMScheduler", {"skip_prk_steps": True}),
    ("EulerDiscreteScheduler", {}),
    ("EulerDiscreteScheduler", {"final_sigmas_type": "sigma_min"}),
    ("DPMSolverMultistepScheduler", {}),
    (
        "DPMSolverMultistepScheduler",
        {"final_sigmas_type": "sigma_min", "lower_order_final": False},
    ),
]
COUPLING = 0.3 * np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)
NOISE = np.random.default_rng(1).normal(size=(2, 5)).astype(np.float32)


def denoiser(sample: np.ndarray, time: float) -> np.ndarray:
    """Not linear, and another one at every time."""
    return np.tanh(np.asarray(sample) @ COUPLING + float(time) / 1000).astype(np.float32)


# diffusers 0.42 converts tensors in a way that NumPy 2 warns of.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize(("name", "settings"), SCHEDULERS)
def test_sampler_is_the_scheduler(
    name: str, settings: dict[str, object], spacing: str, prediction: str, tmp_path: Path
) -> None:
    scheduler = getattr(diffusers, name)(
        **BETAS | settings, prediction_type=prediction, timestep_spacing=spacing
    )
    scheduler.save_pretrained(tmp_path)
    schedule = read_schedule(tmp_path)
    for num_steps in (1, 3, 16):
        scheduler.set_timesteps(num_steps)
        planned = plan(schedule, num_steps)
        np.testing.assert_allclose(planned.steps.time, scheduler.timesteps.numpy(), rtol=1e-6)
        theirs = torch.from_numpy(NOISE) * scheduler.init_noise_sigma
        ours = begin(planned, jnp.asarray(NOISE))
        for i, time in enumerate(scheduler.timesteps):
            seen = scheduler.scale_model_input(theirs, time).numpy()
            output = torch.from_numpy(denoiser(seen, time))
            theirs = scheduler.step(output, time, theirs).prev_sample
            row = Steps(*(column[i] for column in planned.steps))
            ours = step(ours, row, jnp.asarray(denoiser(row.scale * ours.sample, row.time)))
            # FP32 on both sides; diffusers also accumulates alpha in FP32.
            np.testing.assert_allclose(ours.sample, theirs.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("DDIMScheduler", {}, "clip_sample=True: latents are not clipped"),
        ("PNDMScheduler", {}, "skip_prk_steps=False: Runge-Kutta steps"),
        ("EulerDiscreteScheduler", {"use_karras_sigmas": True}, "use_karras_sigmas=True"),
        ("EulerDiscreteScheduler", {"beta_schedule": "squaredcos_cap_v2"}, "betas.*not supported"),
        ("DDPMScheduler", {}, "_class_name='DDPMScheduler': supported are DDIM"),
    ],
)
def test_other_schedulers_are_refused(
    name: str, settings: dict[str, object], message: str, tmp_path: Path
) -> None:
    getattr(diffusers, name)(**settings).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=message):
        read_schedule(tmp_path)
