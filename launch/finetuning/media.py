"""Rows of images and sounds as models take them, and the files beside a model that say how."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from launch.data.records import Record
from launch.finetuning.media_examples import check_sizes, image_row, preprocessing_for
from launch.finetuning.sounds import sound_row, with_room_for
from launch.finetuning.spelling import Spelling
from launch.finetuning.task_data import Finish
from launch.sound_inputs import KaldiSpectrogram, SoundInput, Waveform, sound_input
from models.images import Preprocessing
from models.pretrained import Described
from models.weights.fields import PREPROCESSOR_FILE

LETTERS = "ctc-speech-recognition"

Values = Mapping[str, Any]


class Media(NamedTuple):
    """How a model takes images and sounds; None for what it does not take."""

    images: Preprocessing | None
    sound: SoundInput | None
    spelling: Spelling | None

    @property
    def frames(self) -> int | None:
        """Frames of a row of sound, where rows are as long as the longest sound."""
        return self.sound.frames if isinstance(self.sound, Waveform) else None

    @property
    def finish(self) -> Finish | None:
        """The function that turns an example into a row when it is needed; None for texts alone."""
        images, sound = self.images, self.sound
        if images is not None:
            return lambda row: image_row(row, images)
        return None if sound is None else lambda row: sound_row(row, sound)

    def write_preprocessor(self, directory: Path) -> None:
        """Writes preprocessor_config.json into a directory, unless it has one."""
        values = None if self.sound is None else _of_sounds(self.sound)
        values = values if self.images is None else _of_images(self.images)
        file = directory / PREPROCESSOR_FILE
        if values is not None and not file.exists():
            file.write_text(json.dumps(values, indent=2) + "\n")


def media_of(
    base: Described,
    files: Path,
    records: Sequence[Sequence[Record]],
    *,
    seconds: float,
    skips: bool,
) -> Media:
    """Reads from the files beside a model how it takes images and sounds.

    Rows have room for every sound of the records that lasts no longer than `seconds`.

    Raises ConfigError for files that cannot be used, DataError for a model of too few letters and
    for images of several sizes, RecordError for records that cannot be used, unless `skips`.
    """
    if base.architecture.task == "image-classification":
        preprocessing = preprocessing_for(files, base.config)
        check_sizes(records, preprocessing, skips=skips)
        return Media(preprocessing, None, None)
    sound, spelling = sound_input(base, files), None
    if sound is not None:
        sound = with_room_for(sound, records, seconds, skips=skips)
    if base.architecture.task == LETTERS:
        assert isinstance(sound, Waveform)
        spelling = Spelling.of(files, base.config.vocab_size)
        spelling = spelling.with_room_for(records, sound, skips=skips)
    return Media(None, sound, spelling)


def _of_images(preprocessing: Preprocessing) -> Values:
    """The file's values for images that are resized, rescaled and normalised at most."""
    size = preprocessing.size or (1, 1)
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": preprocessing.size is not None,
        "size": {"height": size[0], "width": size[1]},
        "resample": int(preprocessing.resample),
        "do_rescale": preprocessing.scale is not None,
        "rescale_factor": preprocessing.scale,
        "do_normalize": preprocessing.mean is not None,
        "image_mean": preprocessing.mean,
        "image_std": preprocessing.std,
    }


def _of_sounds(sound: SoundInput) -> Values | None:
    """The file's values for waveforms and for AST's spectrograms; None for others."""
    shared = {"sampling_rate": sound.sampling_rate, "feature_size": 1, "padding_value": 0.0}
    if isinstance(sound, Waveform):
        return {
            "feature_extractor_type": "Wav2Vec2FeatureExtractor",
            "do_normalize": sound.samples.normalized,
            **shared,
        }
    if isinstance(sound, KaldiSpectrogram):
        settings = sound.settings
        return {
            "feature_extractor_type": "ASTFeatureExtractor",
            "num_mel_bins": settings.num_mels,
            "max_length": settings.num_frames,
            "do_normalize": settings.normalized,
            "mean": settings.mean,
            "std": settings.std,
            **shared,
        }
    return None
