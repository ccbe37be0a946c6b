"""The pipelines of diffusers that there are, by the model_index.json of a directory."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from models.weights.fields import Fields, read_fields

INDEX_FILE = "model_index.json"
TEXT_TO_IMAGE, IMAGE_TO_IMAGE, INPAINTING = "text-to-image", "image-to-image", "inpainting"


@dataclass(frozen=True)
class Kind:
    """The differences between the pipelines of diffusers; defaults are those of its calls.

    Attributes:
      name: of diffusers' class.
      encoders, tokenizers: folders of those of the prompt, in order.
      penultimate: the denoiser sees the encoders' states before their last block, side by side,
        and the pooled prompt of the last encoder; otherwise the states after the last norm.
      guidance: how far predictions go beyond the one without the prompt, by default.
      task: what it is made for.
      strength: by task, how much of an image is made anew, by default.
      steps: in which noise becomes an image, by default.
    """

    name: str
    encoders: tuple[str, ...]
    tokenizers: tuple[str, ...]
    penultimate: bool
    guidance: float
    strength: Mapping[str, float]
    task: str = TEXT_TO_IMAGE
    steps: int = 50


_STABLE_DIFFUSION = Kind(
    "StableDiffusionPipeline",
    ("text_encoder",),
    ("tokenizer",),
    penultimate=False,
    guidance=7.5,
    strength={IMAGE_TO_IMAGE: 0.8, INPAINTING: 1.0},
)
_XL = Kind(
    "StableDiffusionXLPipeline",
    ("text_encoder", "text_encoder_2"),
    ("tokenizer", "tokenizer_2"),
    penultimate=True,
    guidance=5.0,
    strength={IMAGE_TO_IMAGE: 0.3, INPAINTING: 0.9999},
)
_CONSISTENCY = replace(
    _STABLE_DIFFUSION, name="LatentConsistencyModelPipeline", guidance=8.5, steps=4
)

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        _STABLE_DIFFUSION,
        replace(_STABLE_DIFFUSION, name="StableDiffusionImg2ImgPipeline", task=IMAGE_TO_IMAGE),
        replace(_STABLE_DIFFUSION, name="StableDiffusionInpaintPipeline", task=INPAINTING),
        _XL,
        replace(_XL, name="StableDiffusionXLImg2ImgPipeline", task=IMAGE_TO_IMAGE),
        replace(_XL, name="StableDiffusionXLInpaintPipeline", task=INPAINTING, guidance=7.5),
        _CONSISTENCY,
        replace(_CONSISTENCY, name="LatentConsistencyModelImg2ImgPipeline", task=IMAGE_TO_IMAGE),
    )
}


def kind_of(directory: Path) -> Kind:
    """The kind of pipeline in the model_index.json of a directory, with the encoders that it has.

    Raises ConfigError if it cannot be read, its pipeline is not supported, or it has no encoder.
    """
    fields = read_fields(directory / INDEX_FILE)
    name = fields.text("_class_name")
    if name not in KINDS:
        raise fields.fail("_class_name", f"supported are {', '.join(KINDS)}")
    kind = KINDS[name]
    there = [
        (encoder, tokenizer)
        for encoder, tokenizer in zip(kind.encoders, kind.tokenizers, strict=True)
        if _is_there(fields, encoder)
    ]
    if not there:
        raise fields.fail(kind.encoders[-1], "nothing encodes a prompt")
    encoders, tokenizers = zip(*there, strict=True)
    return replace(kind, encoders=encoders, tokenizers=tokenizers)


def _is_there(fields: Fields, folder: str) -> bool:
    """Parts that a pipeline does without are [null, null]."""
    return fields.values.get(folder, folder) not in (None, [None, None])
