"""Images of prompts against the pipelines of diffusers, with tiny random parts."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from models.diffusion import pipeline as pipelines
from models.diffusion.adapter import ImagePrompt, with_adapter
from models.diffusion.parts import load, save
from models.diffusion.prompts import Rows, encode, without_prompt
from models.diffusion.sources import Source, make_source
from models.errors import ConfigError, InputError, WeightsError
from tests.models.parity.case import Case
from tests.models.parity.media_cases import AUTOENCODER, CONTROL, SDXL, TEXT, UNET

diffusers = pytest.importorskip(
    "diffusers", reason="diffusers is not installed: the reference needs the extra `parity`"
)
import torch  # noqa: E402 (the reference is made of it)

from tests.models.parity.media_reference import channels_first, texts_of  # noqa: E402
from tests.models.parity.reference import make_model  # noqa: E402

SIZE, STEPS, GUIDANCE = 16, 3, 4.0
DIM, ADAPTER = 12, "ip-adapter.safetensors"
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
SCHEDULERS = (
    diffusers.PNDMScheduler(
        **BETAS, skip_prk_steps=True, prediction_type="v_prediction", steps_offset=1
    ),
    diffusers.LCMScheduler(),
)


def stable_diffusion(name: str = "StableDiffusionPipeline", **changes: Any) -> Any:
    unet = UNET | {"cross_attention_dim": 32, **changes}
    return getattr(diffusers, name)(
        vae=make_model(Case("AutoencoderKL", "", AUTOENCODER)),
        text_encoder=make_model(Case("CLIPTextModel", "", TEXT)),
        tokenizer=None,
        unet=make_model(Case("UNet2DConditionModel", "", unet)),
        scheduler=SCHEDULERS[name.startswith("Latent")],
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def sdxl() -> Any:
    unet = UNET | SDXL | {"cross_attention_dim": 64}
    return diffusers.StableDiffusionXLPipeline(
        vae=make_model(Case("AutoencoderKL", "", AUTOENCODER | {"scaling_factor": 0.13025})),
        text_encoder=make_model(Case("CLIPTextModel", "", TEXT)),
        text_encoder_2=make_model(
            Case("CLIPTextModelWithProjection", "", TEXT | {"projection_dim": 24})
        ),
        tokenizer=None,
        tokenizer_2=None,
        unet=make_model(Case("UNet2DConditionModel", "", unet)),
        scheduler=diffusers.EulerDiscreteScheduler(
            **BETAS, timestep_spacing="leading", steps_offset=1
        ),
        add_watermarker=False,
    )


def refiner() -> Any:
    told = {"projection_class_embeddings_input_dim": 5 * 8 + 24, "cross_attention_dim": 32}
    return diffusers.StableDiffusionXLImg2ImgPipeline(
        vae=make_model(Case("AutoencoderKL", "", AUTOENCODER | {"scaling_factor": 0.13025})),
        text_encoder=None,
        text_encoder_2=make_model(
            Case("CLIPTextModelWithProjection", "", TEXT | {"projection_dim": 24})
        ),
        tokenizer=None,
        tokenizer_2=None,
        unet=make_model(Case("UNet2DConditionModel", "", UNET | SDXL | told)),
        scheduler=diffusers.EulerDiscreteScheduler(**BETAS, timestep_spacing="leading"),
        requires_aesthetics_score=True,
        add_watermarker=False,
    )


def encoded(pipe: Any, tokens: np.ndarray) -> dict[str, torch.Tensor]:
    """The embeddings that the pipeline makes of the tokens that its tokenizer would give."""
    text = torch.from_numpy(tokens)
    if not hasattr(pipe, "text_encoder_2"):
        return {"prompt_embeds": pipe.text_encoder(text).last_hidden_state}
    done = [encoder(text, output_hidden_states=True) for encoder in _encoders(pipe)]
    return {
        "prompt_embeds": torch.cat([each.hidden_states[-2] for each in done], dim=-1),
        "pooled_prompt_embeds": done[-1].text_embeds,
    }


def _encoders(pipe: Any) -> list[Any]:
    return [encoder for encoder in (pipe.text_encoder, pipe.text_encoder_2) if encoder]


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
@pytest.mark.parametrize("make", [stable_diffusion, sdxl])
def test_images_are_those_of_diffusers(make: Any, tmp_path: Path) -> None:
    pipe = make()
    pipe.set_progress_bar_config(disable=True)
    pipe.save_pretrained(tmp_path)
    tokens, negative = texts_of(Case("", "", TEXT))[:2], texts_of(Case("", "", TEXT))[2:]
    noise = np.random.default_rng(0).normal(size=(2, SIZE // 2, SIZE // 2, 4)).astype(np.float32)
    with torch.no_grad():
        prompts = encoded(pipe, tokens)
        negatives = {f"negative_{name}": v for name, v in encoded(pipe, negative).items()}
        expected = pipe(
            **prompts,
            **negatives,
            latents=channels_first(noise),
            height=SIZE,
            width=SIZE,
            num_inference_steps=STEPS,
            guidance_scale=GUIDANCE,
            output_type="np",
        ).images
    ours = load(tmp_path)
    count = len(ours.encoders)
    request = pipelines.Request(SIZE, SIZE, STEPS, GUIDANCE)
    prompt = encode(ours, [Rows(tokens)] * count)
    np.testing.assert_allclose(prompt.context, prompts["prompt_embeds"], rtol=1e-4, atol=1e-4)
    reported: list[tuple[int, int]] = []
    images = pipelines.make_images(
        ours,
        prompt,
        encode(ours, [Rows(negative)] * count),
        noise,
        request,
        on_step=lambda *numbers: reported.append(numbers),
    )
    taken = len(pipe.scheduler.timesteps)  # of PNDM one more than asked for
    assert reported == [(i + 1, taken) for i in range(taken)]
    assert images.shape == expected.shape
    # Three runs of the denoiser and one of the decoder, each alone within 1e-4.
    np.testing.assert_allclose(images, expected, rtol=1e-4, atol=4e-4)


RNG = np.random.default_rng(0)
NOISE, DRAWN, NEW = RNG.normal(size=(3, 2, SIZE // 2, SIZE // 2, 4)).astype(np.float32)
PIXELS = RNG.uniform(size=(2, SIZE, SIZE, 3)).astype(np.float32)
MASK = (RNG.uniform(size=(2, SIZE, SIZE)) > 0.5).astype(np.float32)
IMAGE = {"image": channels_first(PIXELS)}
MASKED = IMAGE | {"mask_image": torch.from_numpy(MASK)[:, None], "height": SIZE, "width": SIZE}


def img2img() -> Any:
    return diffusers.StableDiffusionImg2ImgPipeline(
        **stable_diffusion().components, requires_safety_checker=False
    )


def inpainting() -> Any:
    return diffusers.StableDiffusionInpaintPipeline(
        **stable_diffusion().components, requires_safety_checker=False
    )


def with_mask_seen() -> Any:
    return stable_diffusion("StableDiffusionInpaintPipeline", in_channels=9)


def consistency() -> Any:
    return stable_diffusion("LatentConsistencyModelPipeline", time_cond_proj_dim=12)


def controlled() -> Any:
    """With a ControlNet."""
    return diffusers.StableDiffusionControlNetPipeline(
        **stable_diffusion().components,
        controlnet=make_model(Case("ControlNetModel", "", CONTROL | {"cross_attention_dim": 32})),
        requires_safety_checker=False,
    )


def draw(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pipeline of diffusers draws: its noise, latents of an image, noise of a sampler."""
    for module, values in (
        (type(pipe).__module__, NOISE),
        ("diffusers.models.autoencoders.vae", DRAWN),
        ("diffusers.schedulers.scheduling_lcm", NEW),
    ):
        drawn = channels_first(values)
        monkeypatch.setattr(f"{module}.randn_tensor", lambda *_, drawn=drawn, **__: drawn)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
@pytest.mark.parametrize(
    ("make", "asked", "strength"),
    [
        (img2img, IMAGE, 0.7),
        (inpainting, MASKED, 0.7),
        (with_mask_seen, MASKED, 1.0),
        (refiner, IMAGE, 0.7),
        (consistency, {"height": SIZE, "width": SIZE}, None),
        (controlled, IMAGE | {"controlnet_conditioning_scale": 0.7}, None),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_given_images_become_those_of_diffusers(
    make: Any,
    asked: dict[str, Any],
    strength: float | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe = make()
    pipe.set_progress_bar_config(disable=True)
    pipe.save_pretrained(tmp_path)
    draw(pipe, monkeypatch)
    tokens, negative = texts_of(Case("", "", TEXT))[:2], texts_of(Case("", "", TEXT))[2:]
    with torch.no_grad():
        prompts = encoded(pipe, tokens)
        if make is not consistency:
            negatives = encoded(pipe, negative).items()
            prompts |= {f"negative_{name}": value for name, value in negatives}
        settings = {"num_inference_steps": STEPS, "guidance_scale": GUIDANCE}
        settings |= {} if strength is None else {"strength": strength}
        expected = pipe(**prompts, **asked, **settings, output_type="np").images
    ours = load(tmp_path)
    source: Source | None = None
    if strength is not None:
        mask = MASK if "mask_image" in asked else None
        source = make_source(ours, 2 * PIXELS - 1, DRAWN, strength, mask)
    images = pipelines.make_images(
        ours,
        encode(ours, [Rows(tokens)]),
        encode(ours, [Rows(negative)]),
        NOISE,
        pipelines.Request(SIZE, SIZE, STEPS, GUIDANCE),
        source=source,
        hint=pipelines.Hint(PIXELS, 0.7) if make is controlled else None,
        fresh=lambda i: NEW,
    )
    assert images.shape == expected.shape
    np.testing.assert_allclose(images, expected, rtol=1e-4, atol=4e-4)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
@pytest.mark.parametrize("make", [stable_diffusion, sdxl])
def test_images_in_prompts_count_as_in_diffusers(make: Any, tmp_path: Path) -> None:
    pipe = make()
    pipe.set_progress_bar_config(disable=True)
    pipe.save_pretrained(tmp_path / "model")
    tokens = texts_of(Case("", "", TEXT))[:2]
    vector = RNG.normal(size=(1, DIM)).astype(np.float32)
    with torch.no_grad():
        prompts = encoded(pipe, tokens)
        prompts |= {f"negative_{name}": 0 * value for name, value in prompts.items()}
        write_adapter(tmp_path, pipe.unet)
        pipe.load_ip_adapter(
            str(tmp_path), subfolder="", weight_name=ADAPTER, image_encoder_folder=None
        )
        pipe.set_ip_adapter_scale(0.6)
        both = torch.from_numpy(np.stack([np.zeros_like(vector), vector]))
        expected = pipe(
            **prompts,
            ip_adapter_image_embeds=[both],
            latents=channels_first(NOISE),
            height=SIZE,
            width=SIZE,
            num_inference_steps=STEPS,
            guidance_scale=GUIDANCE,
            output_type="np",
        ).images
    ours = with_adapter(load(tmp_path / "model"), tmp_path / ADAPTER, None)
    prompt = encode(ours, [Rows(tokens)] * len(ours.encoders))
    images = pipelines.make_images(
        ours,
        prompt,
        without_prompt(prompt),
        NOISE,
        pipelines.Request(SIZE, SIZE, STEPS, GUIDANCE),
        image=ImagePrompt(np.repeat(vector, 2, axis=0), 0.6),
    )
    np.testing.assert_allclose(images, expected, rtol=1e-4, atol=4e-4)
    with pytest.raises(InputError, match="needs an image for it"):
        pipelines.make_images(ours, prompt, prompt, NOISE, pipelines.Request(SIZE, SIZE, STEPS))


def write_adapter(directory: Path, unet: Any) -> None:
    """A random IP-Adapter for a U-Net of diffusers."""
    width = unet.config.cross_attention_dim
    shapes = {
        "image_proj.proj.weight": (4 * width, DIM),
        "image_proj.proj.bias": (4 * width,),
        "image_proj.norm.weight": (width,),
        "image_proj.norm.bias": (width,),
    }
    crossing = [name for name in unet.attn_processors if "attn2" in name]
    for i, name in enumerate(crossing):
        layer = unet.get_submodule(name.removesuffix(".processor"))
        shapes |= {
            f"ip_adapter.{2 * i + 1}.to_{n}_ip.weight": layer.to_k.weight.shape for n in "kv"
        }
    tensors = {n: RNG.normal(size=shape).astype(np.float32) / 4 for n, shape in shapes.items()}
    save_file(tensors, directory / ADAPTER)


def test_saved_pipelines_are_those_of_diffusers(tmp_path: Path) -> None:
    pipe = refiner()
    pipe.save_pretrained(tmp_path / "theirs")
    save(tmp_path / "ours", load(tmp_path / "theirs"), tmp_path / "theirs")
    again = type(pipe).from_pretrained(tmp_path / "ours")
    assert again.scheduler.config["beta_end"] == pipe.scheduler.config["beta_end"]
    assert again.config.requires_aesthetics_score is True
    for part in ("unet", "vae", "text_encoder_2"):
        expected, got = (getattr(each, part).state_dict() for each in (pipe, again))
        assert got.keys() == expected.keys()
        assert all(torch.equal(got[name], expected[name]) for name in got)
    with pytest.raises(WeightsError, match="is not empty, and nothing is overwritten"):
        save(tmp_path / "ours", load(tmp_path / "theirs"), tmp_path / "theirs")


def test_sources_that_do_not_suit_are_refused(tmp_path: Path) -> None:
    with_mask_seen().save_pretrained(tmp_path)
    ours = load(tmp_path)
    for strength, mask, message in (
        (0.0, MASK, "strength=0.0 must be greater than 0 and at most 1"),
        (0.5, None, "made for inpainting: give it a mask"),
        (0.5, MASK[:, :8], "Both must have the same height and width"),
    ):
        with pytest.raises(InputError, match=message):
            make_source(ours, 2 * PIXELS - 1, DRAWN, strength, mask)


def test_what_is_no_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load(tmp_path)
    (tmp_path / "model_index.json").write_text('{"_class_name": "KolorsPipeline"}')
    with pytest.raises(ConfigError, match="choose one of StableDiffusionPipeline"):
        load(tmp_path)


def test_sizes_that_do_not_suit_are_refused(tmp_path: Path) -> None:
    stable_diffusion().save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert ours.image_size == (16, 16)
    key = jax.random.key(0)
    for height, message in ((15, "must be multiples of 2"), (18, "the latents are 9 x 8")):
        with pytest.raises(InputError, match=message):
            pipelines.first_noise(ours, pipelines.Request(height, 16), 1, key)
    assert pipelines.first_noise(ours, pipelines.Request(16, 20), 3, key).shape == (3, 8, 10, 4)
