"""Every sampler against diffusers' scheduler, on the same made-up denoiser."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from models.diffusion.samplers import Steps, begin, noisy, plan, step
from models.diffusion.schedule import SPACINGS, Schedule, read_schedule
from models.errors import ConfigError, InputError

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
    ("EulerAncestralDiscreteScheduler", {}),
    ("LCMScheduler", {}),
    ("LCMScheduler", {"original_inference_steps": 20, "timestep_scaling": 0.01}),
    ("DPMSolverMultistepScheduler", {}),
    (
        "DPMSolverMultistepScheduler",
        {"final_sigmas_type": "sigma_min", "lower_order_final": False},
    ),
]
COUPLING = 0.3 * np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)
NOISE, LATENTS = np.random.default_rng(1).normal(size=(2, 2, 5)).astype(np.float32)
NEW = torch.from_numpy(NOISE[::-1].copy())
DRAWING = {
    "EulerAncestralDiscreteScheduler": "scheduling_euler_ancestral_discrete",
    "LCMScheduler": "scheduling_lcm",
}


def denoiser(sample: np.ndarray, time: float) -> np.ndarray:
    """Not linear, and another one at every time."""
    return np.tanh(np.asarray(sample) @ COUPLING + float(time) / 1000).astype(np.float32)


def drawn(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a scheduler of diffusers draw NEW wherever it draws."""
    monkeypatch.setattr(f"diffusers.schedulers.{module}.randn_tensor", lambda *_, **__: NEW)


# diffusers 0.42 converts tensors in a way that NumPy 2 warns of.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction"])
@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize(("name", "settings"), SCHEDULERS)
def test_sampler_is_the_scheduler(
    name: str,
    settings: dict[str, object],
    spacing: str,
    prediction: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = getattr(diffusers, name)(
        **BETAS | settings, prediction_type=prediction, timestep_spacing=spacing
    )
    if name in DRAWING:
        drawn(DRAWING[name], monkeypatch)
    scheduler.save_pretrained(tmp_path)
    schedule = read_schedule(tmp_path)
    for num_steps, start in ((1, 0), (3, 0), (16, 0), (8, 1), (8, 3)):
        scheduler.set_timesteps(num_steps)
        planned = plan(schedule, num_steps, start)
        times = scheduler.timesteps[start:]
        np.testing.assert_allclose(planned.steps.time, times.numpy(), rtol=1e-6)
        rows = [Steps(*(column[i] for column in planned.steps)) for i in range(len(times))]
        theirs = torch.from_numpy(NOISE) * scheduler.init_noise_sigma
        ours = begin(planned.noise * jnp.asarray(NOISE))
        if start:  # what the sampler begins with has something of known latents
            if hasattr(scheduler, "set_begin_index"):
                scheduler.set_begin_index(start)
            theirs = scheduler.add_noise(
                torch.from_numpy(LATENTS), torch.from_numpy(NOISE), times[:1]
            )
            ours = begin(noisy(rows[0], jnp.asarray(LATENTS), NOISE))
        for time, row in zip(times, rows, strict=True):
            seen = scheduler.scale_model_input(theirs, time).numpy()
            output = torch.from_numpy(denoiser(seen, time))
            theirs = scheduler.step(output, time, theirs).prev_sample
            ours = step(ours, row, jnp.asarray(denoiser(row.scale * ours.sample, row.time)))
            ours = ours._replace(sample=ours.sample + row.fresh * NEW.numpy())
            # FP32 on both sides; diffusers also accumulates alpha in FP32.
            np.testing.assert_allclose(ours.sample, theirs.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ((21, 0), "num_steps=21 is out of range: this scheduler supports 1 to 20"),
        ((4, 4), "num_steps=4 leaves no steps to run"),
    ],
)
def test_steps_that_there_are_not_are_refused(asked: tuple[int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(Schedule(sampler="LCMScheduler", distilled_steps=20), *asked)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("DDIMScheduler", {}, "clip_sample=True: it must be false"),
        ("PNDMScheduler", {}, "skip_prk_steps=False: it must be true"),
        ("EulerDiscreteScheduler", {"use_karras_sigmas": True}, "use_karras_sigmas=True"),
        (
            "EulerDiscreteScheduler",
            {"beta_schedule": "squaredcos_cap_v2"},
            "v2': it must be one of linear",
        ),
        ("LCMScheduler", {"clip_sample": True}, "clip_sample=True: it must be false"),
        ("LCMScheduler", {"num_train_timesteps": 40}, "is greater than num_train_timesteps=40"),
        (
            "PNDMScheduler",
            {"skip_prk_steps": True, "num_train_timesteps": 10**7},
            "a number from 1 to 1e\\+06",
        ),
        ("DDPMScheduler", {}, "_class_name='DDPMScheduler': choose one of DDIM"),
    ],
)
def test_other_schedulers_are_refused(
    name: str, settings: dict[str, object], message: str, tmp_path: Path
) -> None:
    getattr(diffusers, name)(**settings).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=message):
        read_schedule(tmp_path)
