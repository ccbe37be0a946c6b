"""ResNet: from its config.json to the model. Defaults are those of transformers."""

from dataclasses import replace

from models.architecture import Architecture
from models.resnet.config import ResNetConfig
from models.resnet.model import ResNet
from models.resnet.weights import key_table
from models.settings import read_model, write_settings
from models.weights.fields import Fields, count_labels


def _backbone(fields: Fields) -> ResNetConfig:
    fields.refuse("layer_type", "basic", "bottleneck", why="choose basic or bottleneck")
    return read_model(
        ResNetConfig,
        fields,
        bottleneck=fields.text("layer_type") == "bottleneck",
        first_stage_stride=2 if fields.flag("downsample_in_first_stage") else 1,
    )


def _classifier(fields: Fields) -> ResNetConfig:
    return replace(_backbone(fields), num_labels=count_labels(fields))


_DEFAULTS = {
    **write_settings(ResNetConfig()),
    "layer_type": "bottleneck",
    "downsample_in_first_stage": False,
}
ARCHITECTURES = tuple(
    Architecture(
        name=name,
        model_type="resnet",
        family="resnet",
        task=task,
        read_config=read_config,
        defaults=_DEFAULTS,
        model=ResNet,
        keys=key_table,
    )
    for name, task, read_config in (
        ("ResNetModel", "image-feature-extraction", _backbone),
        ("ResNetForImageClassification", "image-classification", _classifier),
    )
)
