"""What transformers hears with the small model of speech.

`python -m tests.models.parity.speech_reference` writes it for tests that do without transformers.
"""

import json
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

from tests.launch.speech_files import (
    END,
    PAD,
    RATE,
    REQUESTS,
    TRANSCRIPTS,
    Request,
    write_speech,
)


def heard(directory: Path, request: Request) -> list[str]:
    """What transformers makes of each window."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        extractor = WhisperFeatureExtractor.from_pretrained(directory)
        model = WhisperForConditionalGeneration.from_pretrained(directory)
        samples = [window / 2**15 for window in request.windows]
        features = extractor(samples, sampling_rate=RATE, return_tensors="pt").input_features
        made = model.generate(
            features,
            language=request.language,
            task=request.task,
            max_new_tokens=request.most,
            return_timestamps=False,
        )
    return list(map(_text, made.tolist()))


def _text(tokens: Sequence[int]) -> str:
    length = len(tokens)  # transformers takes the end away, and fills up
    while tokens[length - 1] in (END, PAD):
        length -= 1
    return " ".join(f"w{token}" for token in tokens[:length])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = write_speech(Path(folder))
        texts = {name: heard(directory, request) for name, request in REQUESTS.items()}
    TRANSCRIPTS.write_text(json.dumps(texts, indent=1) + "\n")


if __name__ == "__main__":
    main()
