"""Preprocessing of images against the image processors of transformers."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from models.errors import ConfigError, InputError
from models.images import open_image, pixels_of, read_preprocessing

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: the reference needs the extra `parity`"
)

CLIP_SIZES = {"size": {"shortest_edge": 30}, "crop_size": {"height": 24, "width": 20}}
PROCESSORS = [
    ("ViTImageProcessorPil", {}),
    ("ViTImageProcessorPil", {"size": {"height": 20, "width": 31}, "resample": 3}),
    ("ViTImageProcessorPil", {"do_normalize": False, "rescale_factor": 0.5}),
    ("DeiTImageProcessorPil", {}),
    ("DeiTImageProcessorPil", {"do_resize": False, "crop_size": {"height": 33, "width": 80}}),
    ("BeitImageProcessorPil", {}),
    ("BeitImageProcessorPil", {"do_center_crop": True, "size": {"height": 30, "width": 40}}),
    ("BitImageProcessorPil", {"size": {"shortest_edge": 40}}),
    ("CLIPImageProcessorPil", {}),
    ("CLIPImageProcessorPil", CLIP_SIZES),
    ("ConvNextImageProcessorPil", {}),
    ("MobileNetV2ImageProcessorPil", {}),
    ("DPTImageProcessorPil", {"size": {"height": 32, "width": 48}}),
    ("YolosImageProcessorPil", {"size": {"shortest_edge": 40, "longest_edge": 50}}),
    ("DPTImageProcessorPil", {"size": {"height": 32, "width": 48}, "ensure_multiple_of": 16}),
    ("YolosImageProcessorPil", {"size": 32, "max_size": 50}),
    ("MobileViTImageProcessorPil", {"crop_size": {"height": 30, "width": 34}}),
    ("LevitImageProcessorPil", {}),
    ("ConvNextImageProcessorPil", {"size": {"shortest_edge": 32}, "crop_pct": 0.875}),
    ("SiglipImageProcessorPil", {}),
    ("EfficientNetImageProcessorPil", {}),
    ("EfficientNetImageProcessorPil", {"include_top": False, "size": {"height": 30, "width": 41}}),
    ("Gemma3ImageProcessorPil", {}),
    (
        "Idefics3ImageProcessorPil",
        {"do_image_splitting": False, "size": {"longest_edge": 90}},
    ),
]


@pytest.mark.parametrize("shape", [(57, 40), (40, 57), (64, 64)])
@pytest.mark.parametrize(("name", "settings"), PROCESSORS)
def test_pixels_are_those_of_the_processor(
    name: str, settings: dict[str, object], shape: tuple[int, int], tmp_path: Path
) -> None:
    processor = getattr(transformers, name)(**settings)
    processor.save_pretrained(tmp_path)
    numbers = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    Image.fromarray(numbers).save(tmp_path / "image.png")
    image = open_image(tmp_path / "image.png")
    expected = processor(image, return_tensors="np")["pixel_values"][0]
    got = pixels_of(image, read_preprocessing(tmp_path))
    expected = np.moveaxis(expected.reshape(expected.shape[-3:]), 0, -1)  # Idefics3: some images
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("model_type", "old_name"),
    [("vit", "ViT"), ("swin", "ViT"), ("beit", "Beit"), ("cvt", "ConvNext"), ("deit", "DeiT")],
)
@pytest.mark.parametrize("is_named", [True, False])
def test_older_files(model_type: str, old_name: str, is_named: bool, tmp_path: Path) -> None:
    values = {"size": 30, "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.4] * 3}
    named = {"feature_extractor_type": f"{old_name}FeatureExtractor"} if is_named else {}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(values | named))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (57, 40, 3), np.uint8))
    processor = getattr(transformers, f"{old_name}ImageProcessorPil").from_pretrained(tmp_path)
    expected = processor(image, return_tensors="np")["pixel_values"][0]
    got = pixels_of(image, read_preprocessing(tmp_path))
    np.testing.assert_allclose(got, np.moveaxis(expected, 0, -1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"image_processor_type": "SamImageProcessor"}',
            "this processor is not supported; choose one of ViT",
        ),
        ('{"image_processor_type": "ViTImageProcessor", "resample": 9}', "not a Pillow filter"),
        ('{"image_processor_type": "ViTImageProcessor", "size": {}}', "no field 'height'"),
        (
            '{"image_processor_type": "DPTImageProcessor", "ensure_multiple_of": 36}',
            "is not a multiple of it",
        ),
        ("{}", "has no field 'feature_extractor_type'"),
    ],
)
def test_bad_settings_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_preprocessing(tmp_path)


def test_a_file_that_is_no_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "image.png").write_text("no image")
    with pytest.raises(InputError, match="cannot be read as an image"):
        open_image(tmp_path / "image.png")
