"""Images of prompts against the pipelines of diffusers whose denoiser is a transformer."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.diffusion import pipeline as pipelines
from models.diffusion.parts import load, save
from models.diffusion.prompts import Rows, encode
from models.diffusion.sources import Source, make_source
from models.errors import ConfigError
from tests.models.parity.case import Case
from tests.models.parity.media_cases import AUTOENCODER, FLUX, PIXART, TEXT

diffusers = pytest.importorskip(
    "diffusers", reason="diffusers is not installed: the reference needs the extra `parity`"
)
import torch  # noqa: E402 (the reference is made of it)

from tests.models.parity.media_reference import channels_first, texts_of  # noqa: E402
from tests.models.parity.reference import make_model  # noqa: E402

SIZE, STEPS, LENGTH = 16, 3, 6
T5 = {
    "vocab_size": 96, "d_model": 20, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 2,
    "feed_forward_proj": "gated-gelu",
}  # fmt: skip
RNG = np.random.default_rng(0)
TOKENS = RNG.integers(3, 96, (2, LENGTH))
REAL = np.arange(LENGTH) < np.array([[LENGTH], [3]])
WORDS = texts_of(Case("", "", TEXT))[:2]
PIXELS = RNG.uniform(size=(2, SIZE, SIZE, 3)).astype(np.float32)
MASK = (RNG.uniform(size=(2, SIZE, SIZE)) > 0.5).astype(np.float32)
DEV = {"use_dynamic_shifting": True, "max_shift": 1.3, "base_image_seq_len": 8, "shift": 3.0}


def flux(name: str = "FluxPipeline", *, dev: bool = True) -> Any:
    return getattr(diffusers, name)(
        vae=make_model(Case("AutoencoderKL", "", AUTOENCODER | {"shift_factor": 0.1})),
        text_encoder=make_model(Case("CLIPTextModel", "", TEXT | {"hidden_size": 24})),
        text_encoder_2=make_model(Case("T5EncoderModel", "", T5)),
        tokenizer=None,
        tokenizer_2=None,
        transformer=make_model(Case("FluxTransformer2DModel", "", FLUX | {"guidance_embeds": dev})),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(**(DEV if dev else {})),
    )


def schnell() -> Any:
    return flux(dev=False)


def flux_img2img() -> Any:
    return flux("FluxImg2ImgPipeline")


def flux_inpainting() -> Any:
    return flux("FluxInpaintPipeline")


def pixart(name: str = "PixArtAlphaPipeline", **changes: Any) -> Any:
    return getattr(diffusers, name)(
        vae=make_model(Case("AutoencoderKL", "", AUTOENCODER)),
        text_encoder=make_model(Case("T5EncoderModel", "", T5)),
        tokenizer=None,
        transformer=make_model(Case("PixArtTransformer2DModel", "", PIXART | changes)),
        scheduler=diffusers.DPMSolverMultistepScheduler(),
    )


def pixart_sigma() -> Any:
    return pixart("PixArtSigmaPipeline")


def asked_of(pipe: Any, noise: np.ndarray) -> tuple[dict[str, Any], list[Rows]]:
    """The arguments of a call of diffusers, and the rows that give the same prompt."""
    text = torch.from_numpy(TOKENS)
    if hasattr(pipe, "text_encoder_2"):
        words = pipe.text_encoder(torch.from_numpy(WORDS)).pooler_output
        packed = channels_first(noise).view(2, 4, 4, 2, 4, 2).permute(0, 2, 4, 1, 3, 5)
        asked = {
            "prompt_embeds": pipe.text_encoder_2(text).last_hidden_state,
            "pooled_prompt_embeds": words,
            "latents": packed.reshape(2, 16, 16),
        }
        return asked, [Rows(WORDS), Rows(TOKENS)]
    mask = torch.from_numpy(REAL.astype(np.int64))
    hidden = pipe.text_encoder(text, attention_mask=mask).last_hidden_state
    asked = {
        "prompt_embeds": hidden,
        "prompt_attention_mask": mask,
        "negative_prompt_embeds": hidden.flip(0),
        "negative_prompt_attention_mask": mask.flip(0),
        "negative_prompt": None,
        "use_resolution_binning": False,
        "latents": channels_first(noise),
    }
    return asked, [Rows(TOKENS, REAL)]


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
@pytest.mark.parametrize(
    ("make", "strength"),
    [
        (flux, None),
        (schnell, None),
        (flux_img2img, 0.7),
        (flux_inpainting, 0.7),
        (pixart, None),
        (pixart_sigma, None),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_images_are_those_of_diffusers(
    make: Any, strength: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = make()
    pipe.set_progress_bar_config(disable=True)
    pipe.save_pretrained(tmp_path)
    noise, drawn = RNG.normal(size=(2, 2, SIZE // 2, SIZE // 2, 4)).astype(np.float32)
    with torch.no_grad():
        asked, rows = asked_of(pipe, noise)
        settings = {"num_inference_steps": STEPS, "guidance_scale": 4.0, "output_type": "np"}
        if strength is not None:
            del asked["latents"]
            draw(pipe, noise, drawn, monkeypatch)
            asked |= {"image": channels_first(PIXELS), "strength": strength}
            if "Inpaint" in type(pipe).__name__:
                asked["mask_image"] = torch.from_numpy(MASK)[:, None]
        expected = pipe(**asked, **settings, height=SIZE, width=SIZE).images
    ours = load(tmp_path)
    source: Source | None = None
    if strength is not None:
        mask = MASK if "mask_image" in asked else None
        source = make_source(ours, 2 * PIXELS - 1, drawn, strength, mask)
    prompt = encode(ours, rows)
    hidden = asked["prompt_embeds"]
    np.testing.assert_allclose(prompt.context, hidden, rtol=1e-4, atol=1e-4)
    negative = prompt
    if "negative_prompt_embeds" in asked:
        negative = prompt._replace(
            context=np.asarray(prompt.context)[::-1], seen=np.asarray(prompt.seen)[::-1]
        )
    images = pipelines.make_images(
        ours, prompt, negative, noise, pipelines.Request(SIZE, SIZE, STEPS, 4.0), source=source
    )
    assert images.shape == expected.shape
    np.testing.assert_allclose(images, expected, rtol=1e-4, atol=4e-4)


def draw(pipe: Any, noise: np.ndarray, drawn: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pipeline of diffusers draws: its noise, and latents of an image."""
    for module, values in (
        (type(pipe).__module__, noise),
        ("diffusers.models.autoencoders.vae", drawn),
    ):
        array = channels_first(values)
        monkeypatch.setattr(f"{module}.randn_tensor", lambda *_, array=array, **__: array)


def test_saved_pipelines_are_those_of_diffusers(tmp_path: Path) -> None:
    pipe = flux()
    pipe.save_pretrained(tmp_path / "theirs")
    save(tmp_path / "ours", load(tmp_path / "theirs"), tmp_path / "theirs")
    again = type(pipe).from_pretrained(tmp_path / "ours", tokenizer=None, tokenizer_2=None)
    for part in ("transformer", "vae", "text_encoder", "text_encoder_2"):
        expected, got = (getattr(one, part).state_dict() for one in (pipe, again))
        assert got.keys() == expected.keys()
        assert all(torch.equal(got[name], expected[name]) for name in got)


def test_pipelines_with_other_parts_are_refused(tmp_path: Path) -> None:
    pipe = flux()
    pipe.save_pretrained(tmp_path)
    pipe.text_encoder.save_pretrained(tmp_path / "text_encoder_2")
    with pytest.raises(ConfigError, match="holds a CLIPTextModel, but it must hold T5EncoderModel"):
        load(tmp_path)
