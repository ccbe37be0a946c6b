"""Texts of image models as tokens, against transformers."""

from pathlib import Path

import numpy as np
import pytest

from launch.clip_text import open_clip_text
from tests.launch.test_media_tasks import write_words

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: it needs the extra `parity`"
)

TEXTS = ["a cat", "A  CAT!", "it's 12 cats, isn't it?", "", "zebra\n\tcat"]


@pytest.mark.parametrize("length", [8, 40])
def test_tokens_are_those_of_transformers(length: int, tmp_path: Path) -> None:
    write_words(tmp_path)
    theirs = transformers.CLIPTokenizer.from_pretrained(tmp_path)
    got = open_clip_text(tmp_path).rows(TEXTS, length)
    expected = theirs(TEXTS, padding="max_length", max_length=length, truncation=True)
    np.testing.assert_array_equal(got, expected["input_ids"])
