"""What tests of speech compare with is what transformers hears."""

from pathlib import Path

import pytest

from tests.launch.speech_files import REQUESTS, transcripts, write_speech
from tests.models.parity.speech_reference import heard


@pytest.mark.parametrize("name", REQUESTS)
def test_transcripts(name: str, tmp_path: Path) -> None:
    assert heard(write_speech(tmp_path), REQUESTS[name]) == transcripts(name)
