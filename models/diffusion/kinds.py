"""The pipelines of diffusers that there are, by the model_index.json of a directory."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from models.weights.fields import Fields, read_fields

INDEX_FILE = "model_index.json"
T5, CLIP = "T5EncoderModel", ("CLIPTextModel", "CLIPTextModelWithProjection")
LAST, PENULTIMATE, POOLED_AND_TEXT, MASKED_TEXT = "last", "penultimate", "pooled+text", "text"
TEXT_TO_IMAGE, IMAGE_TO_IMAGE, INPAINTING = "text-to-image", "image-to-image", "inpainting"


@dataclass(frozen=True)
class Kind:
    """The differences between the pipelines of diffusers; defaults are those of its calls.

    Attributes:
      name: of diffusers' class.
      encoders, tokenizers: folders of those of the prompt, in order.
      reads: how the encoders' states become the denoiser's prompt, a key of
        models.diffusion.prompts.READERS.
      guidance: how far predictions go beyond the one without the prompt, by default.
      task: what it is made for.
      strength: by task, how much of an image is made anew, by default.
      steps: in which noise becomes an image, by default.
      denoiser, denoisers: its folder, and the architectures it may be of.
      compares: predictions are compared with those without the prompt, as guidance says.
      architectures: by folder, those that an encoder may be of, if not CLIP's.
      text_length: tokens of a prompt for T5.
      lowers: prompts are read in lower case, without blanks around them.
      is_controlled: a ControlNet, which sees an image, stands beside the denoiser.
      keeps_part: a part of a step that the strength leaves is done rather than left out.
      needs_all: it does without no encoder.
    """

    name: str
    encoders: tuple[str, ...]
    tokenizers: tuple[str, ...]
    reads: str
    guidance: float
    strength: Mapping[str, float]
    task: str = TEXT_TO_IMAGE
    steps: int = 50
    denoiser: str = "unet"
    denoisers: tuple[str, ...] = ("UNet2DConditionModel",)
    compares: bool = True
    architectures: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    text_length: int | None = None
    lowers: bool = False
    is_controlled: bool = False
    keeps_part: bool = False
    needs_all: bool = False


_STABLE_DIFFUSION = Kind(
    "StableDiffusionPipeline",
    ("text_encoder",),
    ("tokenizer",),
    reads=LAST,
    guidance=7.5,
    strength={IMAGE_TO_IMAGE: 0.8, INPAINTING: 1.0},
)
_XL = Kind(
    "StableDiffusionXLPipeline",
    ("text_encoder", "text_encoder_2"),
    ("tokenizer", "tokenizer_2"),
    reads=PENULTIMATE,
    guidance=5.0,
    strength={IMAGE_TO_IMAGE: 0.3, INPAINTING: 0.9999},
)
_CONSISTENCY = replace(
    _STABLE_DIFFUSION, name="LatentConsistencyModelPipeline", guidance=8.5, steps=4
)
_FLUX = Kind(
    "FluxPipeline",
    ("text_encoder", "text_encoder_2"),
    ("tokenizer", "tokenizer_2"),
    reads=POOLED_AND_TEXT,
    guidance=3.5,
    strength={IMAGE_TO_IMAGE: 0.6, INPAINTING: 0.6},
    steps=28,
    denoiser="transformer",
    denoisers=("FluxTransformer2DModel",),
    compares=False,
    architectures={"text_encoder_2": (T5,)},
    text_length=512,
    keeps_part=True,
    needs_all=True,
)
_PIXART = Kind(
    "PixArtAlphaPipeline",
    ("text_encoder",),
    ("tokenizer",),
    reads=MASKED_TEXT,
    guidance=4.5,
    strength={IMAGE_TO_IMAGE: 0.8, INPAINTING: 1.0},
    steps=20,
    denoiser="transformer",
    denoisers=("PixArtTransformer2DModel",),
    architectures={"text_encoder": (T5,)},
    text_length=120,
    lowers=True,
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
        replace(_STABLE_DIFFUSION, name="StableDiffusionControlNetPipeline", is_controlled=True),
        replace(_XL, name="StableDiffusionXLControlNetPipeline", is_controlled=True),
        _FLUX,
        replace(_FLUX, name="FluxImg2ImgPipeline", task=IMAGE_TO_IMAGE, guidance=7.0),
        replace(_FLUX, name="FluxInpaintPipeline", task=INPAINTING, guidance=7.0),
        _PIXART,
        replace(_PIXART, name="PixArtSigmaPipeline", text_length=300),
    )
}


def kind_of(directory: Path) -> Kind:
    """The kind of pipeline in the model_index.json of a directory, with the encoders that it has.

    Raises ConfigError if it cannot be read, its pipeline is not supported, or it has no encoder.
    """
    fields = read_fields(directory / INDEX_FILE)
    name = fields.text("_class_name")
    if name not in KINDS:
        raise fields.fail("_class_name", f"choose one of {', '.join(KINDS)}")
    kind = KINDS[name]
    there = [
        (encoder, tokenizer)
        for encoder, tokenizer in zip(kind.encoders, kind.tokenizers, strict=True)
        if _is_there(fields, encoder)
    ]
    if not there or (kind.needs_all and len(there) < len(kind.encoders)):
        raise fields.fail(kind.encoders[-1], "a text encoder is missing")
    encoders, tokenizers = zip(*there, strict=True)
    return replace(kind, encoders=encoders, tokenizers=tokenizers)


def _is_there(fields: Fields, folder: str) -> bool:
    """Parts that a pipeline does without are [null, null]."""
    return fields.values.get(folder, folder) not in (None, [None, None])
