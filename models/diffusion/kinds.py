"""The pipelines of diffusers that there are, by the model_index.json of a directory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from models.records import read_records
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
    encoders: Sequence[str]
    tokenizers: Sequence[str]
    reads: str
    guidance: float
    strength: Mapping[str, float]
    task: str = TEXT_TO_IMAGE
    steps: int = 50
    denoiser: str = "unet"
    denoisers: Sequence[str] = ("UNet2DConditionModel",)
    compares: bool = True
    architectures: Mapping[str, Sequence[str]] = field(default_factory=dict)
    text_length: int | None = None
    lowers: bool = False
    is_controlled: bool = False
    keeps_part: bool = False
    needs_all: bool = False


KINDS: Mapping[str, Kind] = {
    name: Kind(name, **record["settings"])
    for name, record in read_records(Path(__file__).with_name("pipelines.json"))
}
"""The pipelines of pipelines.json by name."""


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
