"""Pipelines whose denoiser is a transformer, or stands beside a ControlNet, by the user's door."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from PIL import Image
from safetensors.numpy import save_file
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from launch.errors import DataError
from launch.prompt_text import open_t5_text
from launch.tasks.table import run_checkpoint
from models.errors import ConfigError, InputError, WeightsError
from tests.launch.test_media_tasks import request, write, write_pipeline, write_words
from tests.models.parity.media_cases import AUTOENCODER, CONTROL, FLUX, PIXART, TEXT, VISION

T5 = {
    "vocab_size": 96, "d_model": 20, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 2,
    "feed_forward_proj": "gated-gelu",
}  # fmt: skip


def write_t5_words(directory: Path, pad: str = "<pad>") -> None:
    """A tokenizer as T5's, for two words."""
    words = {pad: 0, "</s>": 1, "<unk>": 2, "a": 3, "cat": 4, "owl": 5}
    tokenizer = tokenizers.Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", words["</s>"])]
    )
    directory.mkdir(parents=True)
    tokenizer.save(str(directory / "tokenizer.json"))


def write_transformer(directory: Path, name: str) -> Path:
    """A random pipeline's directory."""
    is_flux = name == "FluxPipeline"
    transformer = "FluxTransformer2DModel" if is_flux else "PixArtTransformer2DModel"
    write(directory / "transformer", transformer, FLUX if is_flux else PIXART)
    write(directory / "vae", "AutoencoderKL", AUTOENCODER)
    if is_flux:
        write(directory / "text_encoder", "CLIPTextModel", TEXT | {"hidden_size": 24})
        write_words(directory / "tokenizer")
    last = "_2" if is_flux else ""
    write(directory / f"text_encoder{last}", "T5EncoderModel", T5)
    write_t5_words(directory / f"tokenizer{last}")
    sampler = "FlowMatchEulerDiscreteScheduler" if is_flux else "DPMSolverMultistepScheduler"
    (directory / "scheduler").mkdir()
    (directory / "scheduler" / "scheduler_config.json").write_text(
        json.dumps({"_class_name": sampler})
    )
    (directory / "model_index.json").write_text(json.dumps({"_class_name": name}))
    return directory


def paint(directory: Path, text: str, task: str | None = None, **changes: Any) -> np.ndarray:
    """The image of a prompt and what else there is."""
    file = directory.parent / f"{len(list(directory.parent.iterdir()))}.png"
    run_checkpoint(request(directory, f"{text} | {file}", steps=2, **changes), task)
    with Image.open(file) as painted:
        return np.asarray(painted)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "side"), [("FluxPipeline", 256), ("PixArtAlphaPipeline", 32)])
def test_transformers_paint(name: str, side: int, tmp_path: Path) -> None:
    directory = write_transformer(tmp_path / "model", name)
    if name == "FluxPipeline":
        image = tmp_path / "image.png"
        Image.fromarray(np.full((16, 18, 3), 200, np.uint8)).save(image)
        made = [paint(directory, f"{p} | {image}", "image-to-image") for p in ("a cat", "a owl")]
        side = 16
    else:
        made = [paint(directory, prompt) for prompt in ("a cat", "a owl")]
        np.testing.assert_array_equal(paint(directory, " A Cat "), made[0])
    assert made[0].shape[0] == side
    assert not np.array_equal(*made)


@pytest.mark.slow
def test_a_controlnet_sees_an_image(tmp_path: Path) -> None:
    directory = write_pipeline(tmp_path / "model", xl=False)
    write(tmp_path / "net", "ControlNetModel", CONTROL | {"cross_attention_dim": 32})
    write(tmp_path / "other", "ControlNetModel", CONTROL)
    edges, net = tmp_path / "edges.png", {"controlnet": tmp_path / "net"}
    Image.fromarray(np.eye(20, dtype=np.uint8) * 255).save(edges)
    plain = paint(directory, "a cat")
    ignored = paint(directory, "a cat", **net, control=edges, control_scale=0.0)
    np.testing.assert_array_equal(ignored, plain)
    assert not np.array_equal(paint(directory, "a cat", **net, control=edges), plain)
    for changes in (net, {"control": edges}):
        with pytest.raises(InputError, match="a pipeline with a ControlNet needs an image for it"):
            paint(directory, "a cat", **changes)
    with pytest.raises(ConfigError, match="they differ in context_dim"):
        paint(directory, "a cat", controlnet=tmp_path / "other", control=edges)


@pytest.mark.slow
def test_an_image_is_a_part_of_the_prompt(tmp_path: Path) -> None:
    directory = write_pipeline(tmp_path / "model", xl=False)
    image, adapter = tmp_path / "image.png", {"ip_adapter": tmp_path / "ip.safetensors"}
    Image.fromarray(np.eye(20, dtype=np.uint8) * 255).save(image)
    shapes = {"proj.weight": (4 * 32, 24), "proj.bias": (4 * 32,)}
    shapes |= dict.fromkeys(("norm.weight", "norm.bias"), (32,))
    shapes = {f"image_proj.{name}": shape for name, shape in shapes.items()}
    for i, width in enumerate((16, 16, 16, 32)):  # down, two up, middle
        shapes |= {f"ip_adapter.{2 * i + 1}.to_{kind}_ip.weight": (width, 32) for kind in "kv"}
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(size=size).astype(np.float32) for name, size in shapes.items()}
    save_file(tensors, adapter["ip_adapter"])
    with pytest.raises(DataError, match="needs an image encoder"):
        paint(directory, "a cat", **adapter, image_prompt=image)
    vision = VISION | {"projection_dim": 24}
    write(tmp_path / "image_encoder", "CLIPVisionModelWithProjection", vision)
    plain = paint(directory, "a cat")
    ignored = paint(directory, "a cat", **adapter, image_prompt=image, image_prompt_scale=0.0)
    np.testing.assert_array_equal(ignored, plain)
    assert not np.array_equal(paint(directory, "a cat", **adapter, image_prompt=image), plain)
    with pytest.raises(InputError, match="a pipeline with an IP-Adapter needs an image for it"):
        paint(directory, "a cat", **adapter)
    with pytest.raises(DataError, match="give --ip_adapter=FILE"):
        paint(directory, "a cat", image_prompt=image)
    other = tmp_path / "plus.safetensors"
    save_file({"image_proj.latents": np.ones((1, 4, 8), np.float32)}, other)
    with pytest.raises(WeightsError, match=r"another kind \(Plus, Full Face, FaceID\)"):
        paint(directory, "a cat", ip_adapter=other, image_prompt=image)


def test_prompts_for_t5(tmp_path: Path) -> None:
    write_t5_words(tmp_path / "t5")
    tokens, real = open_t5_text(tmp_path / "t5").padded(["a cat", "a cat a cat a"], 4)
    np.testing.assert_array_equal(tokens, [[3, 4, 1, 0], [3, 4, 3, 1]])
    np.testing.assert_array_equal(real, [[True] * 3 + [False], [True] * 4])
    write_t5_words(tmp_path / "other", pad="[PAD]")
    with pytest.raises(DataError, match="lacks the token <pad>, so it is not T5's"):
        open_t5_text(tmp_path / "other")
