"""The reference side of heads on images and sound."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import transformers

from tests.models.parity.case import Case
from tests.models.parity.denoising_reference import denoising, image_control

Arrays = dict[str, np.ndarray]
Made = tuple[Arrays, dict[str, torch.Tensor], dict[str, Any] | None]

ROWS = 4
RESNET_SIZE = 24  # of images that may have any size
SAMPLES = 50  # of a sound
NEW_TOKENS = 10


def pixels_of(case: Case) -> np.ndarray:
    """Images [B, H, W, C] of the size that the model takes."""
    config = case.config.get("vision_config", case.config)
    size = config.get("image_size", RESNET_SIZE)
    height, width = (size, size) if isinstance(size, int) else size
    return np.random.default_rng(0).normal(size=(ROWS, height, width, 3)).astype(np.float32)


def texts_of(case: Case) -> np.ndarray:
    """Texts [B, T] that end at different places, where the end token pads them."""
    config = case.config.get("text_config", case.config)
    begin, end = config["bos_token_id"], config["bos_token_id"] + 1
    tokens = np.random.default_rng(1).integers(3, begin, (ROWS, case.length))
    tokens[:, 0] = begin
    for row, length in enumerate((5, 11, 7, 9)):
        tokens[row, length:] = end
    return tokens


def channels_first(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(array, -1, 1)))


def squares(*outputs: torch.Tensor) -> torch.Tensor:
    """A loss for outputs that have none of their own."""
    return sum((output.square().mean() for output in outputs), torch.zeros(()))


def _image_classification(model: Any, case: Case) -> Made:
    pixels = pixels_of(case)
    logits = model(channels_first(pixels)).logits
    labels = np.arange(ROWS)
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels))
    return {"pixels": pixels, "labels": labels}, {"logits": logits, "loss": loss}, None


def _image_features(model: Any, case: Case) -> Made:
    pixels = pixels_of(case)
    done = model(channels_first(pixels))
    hidden = done.last_hidden_state
    names = ("image_embeds", "cls_token_value", "pooler_output")
    pooled = next(done[name] for name in names if name in done).flatten(1)
    if hidden.ndim == 4:
        hidden = hidden.movedim(1, -1)
    outputs = {"hidden": hidden, "pooled": pooled, "loss": squares(hidden, pooled)}
    return {"pixels": pixels}, outputs, None


def _image_segmentation(model: Any, case: Case) -> Made:
    pixels = pixels_of(case)
    logits = model(channels_first(pixels)).logits.movedim(1, -1)
    return {"pixels": pixels}, {"logits": logits, "loss": squares(logits)}, None


def _depth_estimation(model: Any, case: Case) -> Made:
    pixels = pixels_of(case)
    depths = model(channels_first(pixels)).predicted_depth
    return {"pixels": pixels}, {"depths": depths, "loss": squares(depths)}, None


def _object_detection(model: Any, case: Case) -> Made:
    """Of images that are larger than the positions are made for."""
    height, width = case.config["image_size"]
    shape = (ROWS, 2 * height, width + case.config["patch_size"], 3)
    pixels = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    done = model(channels_first(pixels))
    outputs = {"logits": done.logits, "boxes": done.pred_boxes}
    return {"pixels": pixels}, outputs | {"loss": squares(*outputs.values())}, None


def _sounds_of(case: Case) -> np.ndarray:
    """Spectrograms [B, F, M], or samples [B, N]."""
    has_bands = "num_mel_bins" in case.config
    size = (case.config["max_length"], case.config["num_mel_bins"]) if has_bands else (SAMPLES,)
    shape = (ROWS, *size)
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _audio_classification(model: Any, case: Case) -> Made:
    sounds, labels = _sounds_of(case), np.arange(ROWS)
    logits = model(torch.from_numpy(sounds)).logits
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels))
    return {"pixels": sounds, "labels": labels}, {"logits": logits, "loss": loss}, None


def _audio_features(model: Any, case: Case) -> Made:
    sounds = _sounds_of(case)
    done = model(torch.from_numpy(sounds))
    outputs = {"hidden": done.last_hidden_state}
    if "pooler_output" in done:
        outputs["pooled"] = done.pooler_output
    return {"pixels": sounds}, outputs | {"loss": squares(*outputs.values())}, None


def _sound_logits(model: Any, case: Case) -> Made:
    sounds = _sounds_of(case)
    logits = model(torch.from_numpy(sounds)).logits
    return {"pixels": sounds}, {"logits": logits, "loss": squares(logits)}, None


def _xvector(model: Any, case: Case) -> Made:
    sounds, labels = _sounds_of(case), np.arange(ROWS)
    done = model(torch.from_numpy(sounds), labels=torch.from_numpy(labels))
    outputs = {"embedding": done.embeddings, "logits": done.logits, "loss": done.loss}
    return {"pixels": sounds, "labels": labels}, outputs, None


def _forecasting(model: Any, case: Case) -> Made:
    shape = (ROWS, case.config["context_length"], case.config["num_input_channels"])
    values = np.random.default_rng(0).normal(1, 3, shape).astype(np.float32)
    forecast = model(torch.from_numpy(values)).prediction_outputs
    return {"values": values}, {"forecast": forecast, "loss": squares(forecast)}, None


def _zero_shot(model: Any, case: Case) -> Made:
    tokens, pixels = texts_of(case), pixels_of(case)
    done = model(torch.from_numpy(tokens), channels_first(pixels), return_loss=True)
    outputs = {"logits": done.logits_per_image, "loss": done.loss}
    return {"tokens": tokens, "pixels": pixels}, outputs, None


def _image_text_to_text(model: Any, case: Case) -> Made:
    """Texts with two images each; greedy generation after prompts of two lengths."""
    rng, config = np.random.default_rng(0), model.config
    pixels = np.stack([pixels_of(case), pixels_of(case)[::-1]], axis=1)
    sides = case.config["vision_config"]["image_size"] // case.config["vision_config"]["patch_size"]
    has_types = hasattr(config, "mm_tokens_per_image")  # and images that see themselves whole
    count = config.mm_tokens_per_image if has_types else sides**2 // config.scale_factor**2
    tokens = rng.integers(3, config.image_token_id, (ROWS, 2 * count + case.length))
    for first in (3, count + 5):
        tokens[:, first : first + count] = config.image_token_id

    def inputs(rows: int, texts: np.ndarray) -> dict[str, torch.Tensor]:
        images = torch.from_numpy(np.ascontiguousarray(np.moveaxis(pixels[:rows], -1, 2)))
        given = {"pixel_values": images.flatten(0, 1) if has_types else images}
        if has_types:
            given["token_type_ids"] = torch.from_numpy((texts == config.image_token_id).astype(int))
        return given | {"input_ids": torch.from_numpy(texts)}

    done = model(**inputs(ROWS, tokens), labels=torch.from_numpy(tokens))
    prompt, real = tokens[:2].copy(), np.ones_like(tokens[:2], bool)
    prompt[1, :2], real[1, :2] = 0, False
    made = model.generate(
        **inputs(2, prompt),
        attention_mask=torch.from_numpy(real.astype(int)),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    generation = {
        "prompt": prompt,
        "real": real,
        "inputs": {"pixels": pixels[:2]},
        "tokens": made[:, prompt.shape[1] :].numpy(),
    }
    outputs = {"logits": done.logits, "loss": done.loss}
    return {"tokens": tokens, "pixels": pixels}, outputs, generation


def _prompt_encoding(model: Any, case: Case) -> Made:
    tokens = texts_of(case)
    done = model(torch.from_numpy(tokens), output_hidden_states=True)
    pooled = done.text_embeds if "text_embeds" in done else done.pooler_output
    outputs = {
        "hidden": done.last_hidden_state,
        "penultimate": done.hidden_states[-2],
        "pooled": pooled,
    }
    return {"tokens": tokens}, outputs | {"loss": squares(*outputs.values())}, None


def _speech_recognition(model: Any, case: Case) -> Made:
    """Logits and loss of whole texts; greedy generation from the start token alone."""
    rng = np.random.default_rng(0)
    config = model.config
    shape = (ROWS, 2 * config.max_source_positions, config.num_mel_bins)
    features = rng.normal(size=shape).astype(np.float32)
    tokens = rng.integers(0, config.pad_token_id, (ROWS, case.length))
    done = model(
        channels_first(features),
        decoder_input_ids=torch.from_numpy(tokens[:, :-1]),
        labels=torch.from_numpy(tokens[:, 1:]),
    )
    start = config.decoder_start_token_id
    made = model.generate(
        channels_first(features),
        generation_config=transformers.GenerationConfig(
            decoder_start_token_id=start,
            eos_token_id=None,
            pad_token_id=config.pad_token_id,
            max_new_tokens=NEW_TOKENS,
        ),
    )
    generation = {
        "prompt": np.full((ROWS, 1), start),
        "inputs": {"features": features},
        "tokens": made[:, -NEW_TOKENS:].numpy(),
    }
    inputs = {"features": features, "tokens": tokens}
    return inputs, {"logits": done.logits, "loss": done.loss}, generation


def _image_autoencoding(model: Any, case: Case) -> Made:
    """Both halves apart: the latents that are decoded are not those of the image."""
    rng = np.random.default_rng(0)
    size, latent = model.config.sample_size, model.config.latent_channels
    pixels = rng.uniform(-1, 1, (ROWS, size, size, 3)).astype(np.float32)
    latents = rng.normal(size=(ROWS, size // 2, size // 2, latent)).astype(np.float32)
    encoded = model.encode(channels_first(pixels)).latent_dist
    outputs = {
        "mean": encoded.mean.movedim(1, -1),
        "logvariance": encoded.logvar.movedim(1, -1),
        "decoded": model.decode(channels_first(latents)).sample.movedim(1, -1),
    }
    inputs = {"pixels": pixels, "latents": latents}
    return inputs, outputs | {"loss": squares(*outputs.values())}, None


HEADS: Mapping[str, Callable[[Any, Case], Made]] = {
    "image-classification": _image_classification,
    "image-feature-extraction": _image_features,
    "image-segmentation": _image_segmentation,
    "depth-estimation": _depth_estimation,
    "object-detection": _object_detection,
    "audio-classification": _audio_classification,
    "audio-feature-extraction": _audio_features,
    "ctc-speech-recognition": _sound_logits,
    "audio-frame-classification": _sound_logits,
    "audio-xvector": _xvector,
    "time-series-forecasting": _forecasting,
    "zero-shot-image-classification": _zero_shot,
    "image-text-to-text": _image_text_to_text,
    "prompt-encoding": _prompt_encoding,
    "automatic-speech-recognition": _speech_recognition,
    "denoising": denoising,
    "image-control": image_control,
    "image-autoencoding": _image_autoencoding,
}
