"""Spectrograms against the feature extractor of transformers."""

from pathlib import Path

import numpy as np
import pytest

from models.ast.features import log_mel, read_spectrogram
from models.errors import ConfigError, InputError

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: the reference needs the extra `parity`"
)
SOUND = np.random.default_rng(0).normal(size=6000).astype(np.float32)


# With 128 bands the lowest triangles of the reference lie between two frequencies.
@pytest.mark.filterwarnings("ignore:At least one mel filter:UserWarning")
@pytest.mark.parametrize(
    "settings",
    [{}, {"max_length": 20, "num_mel_bins": 32}, {"do_normalize": False}],
    ids=["default", "cut", "as it is"],
)
def test_spectrogram_is_that_of_the_extractor(settings: dict[str, object], tmp_path: Path) -> None:
    extractor = transformers.ASTFeatureExtractor(**settings)
    extractor.save_pretrained(tmp_path)
    expected = extractor(SOUND, sampling_rate=16_000, return_tensors="np")["input_values"][0]
    np.testing.assert_allclose(log_mel(SOUND, read_spectrogram(tmp_path)), expected, atol=1e-4)


def test_what_does_not_suit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "preprocessor_config.json"
    file.write_text('{"feature_extractor_type": "WhisperFeatureExtractor"}')
    with pytest.raises(ConfigError, match="only that of AST"):
        read_spectrogram(tmp_path)
    file.write_text("{}")
    with pytest.raises(InputError, match=r"at least 400 samples"):
        log_mel(SOUND[:399], read_spectrogram(tmp_path))
