"""CvT: from its config.json to the model. Defaults are those of transformers."""

from functools import partial

from models.architecture import Architecture
from models.cvt.config import DEPTHWISE, CvtConfig
from models.cvt.model import Cvt
from models.cvt.weights import key_table
from models.settings import read_model, write_settings
from models.weights.fields import Fields, count_labels


def _read(fields: Fields, *, is_classifier: bool) -> CvtConfig:
    if set(fields.texts("qkv_projection_method")) != {DEPTHWISE}:
        raise fields.fail("qkv_projection_method", f"only {DEPTHWISE} is supported, in every stage")
    return read_model(CvtConfig, fields, num_labels=count_labels(fields) if is_classifier else None)


ARCHITECTURES = tuple(
    Architecture(
        name="CvtForImageClassification" if is_classifier else "CvtModel",
        model_type="cvt",
        family="cvt",
        task="image-classification" if is_classifier else "image-feature-extraction",
        read_config=partial(_read, is_classifier=is_classifier),
        defaults={**write_settings(CvtConfig()), "qkv_projection_method": [DEPTHWISE] * 3},
        model=Cvt,
        keys=key_table,
    )
    for is_classifier in (False, True)
)
