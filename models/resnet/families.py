"""ResNet: from its config.json to the model. Defaults are those of transformers."""

from dataclasses import replace

from models.architecture import Architecture
from models.resnet.config import ResNetConfig
from models.resnet.model import ResNet
from models.resnet.sharding import AXES
from models.resnet.weights import key_table
from models.weights.fields import Fields, count_labels, read_dtype


def _backbone(fields: Fields) -> ResNetConfig:
    fields.refuse("layer_type", "basic", "bottleneck", why="supported are basic and bottleneck")
    dtype = read_dtype(fields)
    return ResNetConfig(
        num_channels=fields.positive("num_channels", 3),
        stem_channels=fields.positive("embedding_size", 64),
        stage_channels=tuple(fields.list("hidden_sizes", [256, 512, 1024, 2048])),
        depths=tuple(fields.list("depths", [3, 4, 6, 3])),
        bottleneck=fields.text("layer_type", "bottleneck") == "bottleneck",
        act=fields.text("hidden_act", "relu"),
        first_stage_stride=2 if fields.flag("downsample_in_first_stage", False) else 1,
        early_stride=fields.flag("downsample_in_bottleneck", False),
        dtype=dtype,
        param_dtype=dtype,
    )


def _classifier(fields: Fields) -> ResNetConfig:
    return replace(_backbone(fields), num_labels=count_labels(fields))


ARCHITECTURES = tuple(
    Architecture(
        name=name,
        model_type="resnet",
        family="resnet",
        task=task,
        read_config=read_config,
        model=ResNet,
        axes=AXES,
        keys=key_table,
    )
    for name, task, read_config in (
        ("ResNetModel", "image-feature-extraction", _backbone),
        ("ResNetForImageClassification", "image-classification", _classifier),
    )
)
