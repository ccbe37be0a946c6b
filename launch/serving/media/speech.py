"""A model of speech, from its files on."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from launch.errors import ModelError
from launch.loading import load_with_progress
from launch.meshes import make_mesh, parse_mesh
from launch.program import say
from launch.progress import progress
from launch.serving.backend import Backend
from launch.serving.batcher import Batcher
from launch.serving.config import sizes
from launch.serving.desk import BatchDesk
from launch.serving.http.transcriptions import SpeechModel
from launch.serving.model_choice import ModelChoice
from launch.serving.scheduler.buckets import powers
from launch.speech import Heard, Manner, Window
from launch.transcriber import Transcriber

FACTOR = 4  # between numbers of rows


class SpeechWork:
    """The work of a Batcher: windows become texts."""

    def __init__(self, transcriber: Transcriber, rows: Sequence[int]) -> None:
        self._transcriber, self._rows = transcriber, rows

    def group(self, waiting: Sequence[Window]) -> Sequence[int]:
        """The first window, and the next ones that are to be heard in the same manner; what is
        drawn depends on the batch, so such a window is heard alone."""
        manner = waiting[0].manner
        if manner.temperature > 0:
            return [0]
        alike = [place for place, window in enumerate(waiting) if window.manner == manner]
        return alike[: self._rows[-1]]

    def compute(self, items: Sequence[Window]) -> Sequence[Heard]:
        """The text of each window."""
        rows = next(rows for rows in self._rows if rows >= len(items))
        features = np.stack([window.features for window in items])
        padded = np.pad(features, ((0, rows - len(items)), (0, 0), (0, 0)))
        return self._transcriber.hear(padded, items[0].manner)[: len(items)]


@contextmanager
def speech_model(choice: ModelChoice) -> Iterator[Backend]:
    """Texts of sound, with everything compiled."""
    model = choice.model
    if model is None:
        raise ModelError("a model of speech is served from its directory: give --model")
    mesh = make_mesh(parse_mesh(choice.mesh))
    say(f"{model} on mesh {dict(mesh.shape)}")
    transcriber = Transcriber.open(model, lambda: load_with_progress(model, mesh))
    given = choice.engine.num_seqs_buckets
    rows = (
        sizes("num_seqs_buckets", given) if given else powers(1, choice.engine.max_num_seqs, FACTOR)
    )
    work = SpeechWork(transcriber, rows)
    silence = next(iter(transcriber.listener.windows(np.zeros(1))))
    with progress("programs", total=len(rows)) as bar:
        for count in rows:
            work.compute([Window(silence, Manner())] * count)
            bar.update()
    with Batcher[Window, Heard](work, max_waiting=choice.engine.max_num_waiting) as batcher:
        recipe = SpeechModel(
            name=choice.name,
            files=model,
            context=transcriber.listener.context,
            created=int(time.time()),
        )
        yield Backend(recipe, BatchDesk(batcher))
