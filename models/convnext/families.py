"""ConvNeXt and ConvNeXt V2: from config.json to the model. Defaults are those of transformers."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from models.architecture import Architecture
from models.convnext.config import ConvNextConfig
from models.convnext.model import ConvNext
from models.convnext.weights import key_table
from models.settings import read_model, write_settings
from models.weights.fields import Fields, count_labels


def _backbone(fields: Fields, is_second: bool, **changes: Any) -> ConvNextConfig:
    stages = fields.positive("num_stages")
    config = read_model(
        ConvNextConfig,
        fields,
        layer_scale=not is_second and fields.number("layer_scale_init_value") > 0,
        response_norm=is_second,
        **changes,
    )
    if stages != len(config.depths):
        raise fields.fail("num_stages", f"depths has {len(config.depths)} stages")
    return config


def _classifier(fields: Fields, is_second: bool) -> ConvNextConfig:
    return _backbone(fields, is_second, num_labels=count_labels(fields))


_DEFAULTS: Mapping[str, Any] = {**write_settings(ConvNextConfig()), "num_stages": 4}


def _architecture(classes: str, task: str, is_second: bool) -> Architecture:
    model_type = classes.lower()
    has_labels = task == "image-classification"
    return Architecture(
        name=classes + ("ForImageClassification" if has_labels else "Model"),
        model_type=model_type,
        family="convnext",
        task=task,
        read_config=partial(_classifier if has_labels else _backbone, is_second=is_second),
        defaults=_DEFAULTS if is_second else {**_DEFAULTS, "layer_scale_init_value": 1e-6},
        model=ConvNext,
        keys=partial(key_table, model_type),
    )


ARCHITECTURES = tuple(
    _architecture(classes, task, is_second)
    for classes, is_second in (("ConvNext", False), ("ConvNextV2", True))
    for task in ("image-feature-extraction", "image-classification")
)
