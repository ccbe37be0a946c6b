"""All supported architectures, by their Hugging Face names."""

from collections.abc import Mapping

from models.architecture import Architecture
from models.bart import families as barts
from models.clip import families as clips
from models.convnext import families as convnexts
from models.decoder import families as decoders
from models.diffusion import families as diffusions
from models.encoder import families as encoders
from models.errors import ConfigError
from models.modernbert import families as modernberts
from models.resnet import families as resnets
from models.t5 import families as t5s
from models.vit import families as vits
from models.weights.fields import Fields
from models.whisper import families as whispers

ARCHITECTURES: Mapping[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        *decoders.ARCHITECTURES,
        *encoders.ARCHITECTURES,
        *modernberts.ARCHITECTURES,
        *t5s.ARCHITECTURES,
        *barts.ARCHITECTURES,
        *vits.ARCHITECTURES,
        *resnets.ARCHITECTURES,
        *convnexts.ARCHITECTURES,
        *clips.ARCHITECTURES,
        *whispers.ARCHITECTURES,
        *diffusions.ARCHITECTURES,
    )
}


def architecture_of(fields: Fields) -> Architecture:
    """The row for a config.json: by the first of `architectures` or by `_class_name`, else by
    `model_type`.

    Raises ConfigError, which lists what there is, if it is not supported.
    """
    names = fields.list("architectures", [])
    if "_class_name" in fields:  # of diffusers
        names = [fields.text("_class_name")]
    if names and names[0] in ARCHITECTURES:
        return ARCHITECTURES[names[0]]
    by_type = [
        row for row in ARCHITECTURES.values() if row.model_type == fields.values.get("model_type")
    ]
    if not names and by_type:
        return by_type[0]
    asked = names[0] if names else f"model_type {fields.values.get('model_type')!r}"
    raise ConfigError(
        f"{fields.where} asks for {asked}, which is not supported. There are: "
        f"{', '.join(sorted(ARCHITECTURES))}."
    )
