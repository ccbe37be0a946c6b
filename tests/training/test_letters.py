"""Learning letters from sounds: the loss, what rows hold, and what is refused."""

import itertools
import json
import wave
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from launch.config import TrainConfig
from launch.data.config import DataConfig
from launch.data.records import Record
from launch.errors import LaunchError
from launch.finetuning.jobs import tuning_job
from launch.finetuning.objectives import Letters
from launch.finetuning.settings import TuningSettings
from launch.finetuning.sounds import length_of_sound, samples_of_sound, sound_of
from launch.finetuning.tasks import LETTERS
from launch.job import Job
from models.errors import ModelsError
from models.wav2vec2.config import SpeechConfig
from tests.training.task_cases import CASES, write_case

RATE = 16_000


def nats_by_hand(logits: np.ndarray, letters: list[int], blank: int) -> float:
    """-log of the chance of all ways to spell the letters, in FP64."""
    chances = np.exp(logits.astype(np.float64))
    chances /= chances.sum(-1, keepdims=True)
    total = 0.0
    for path in itertools.product(range(logits.shape[1]), repeat=len(logits)):
        spelled = [letter for letter, _ in itertools.groupby(path) if letter != blank]
        if spelled == letters:
            total += np.prod(chances[np.arange(len(path)), path])
    return -np.log(total)


def test_loss_is_that_of_all_ways_to_spell() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 5, 4)).astype(np.float32)
    rows = [(5, [2, 2]), (4, [1, 3, 1]), (0, [])]  # frames and letters; the last does not count
    batch = {
        "sound": logits,
        "frames": np.array([frames for frames, _ in rows], np.int32),
        "letters": np.array([[2, 2, 0], [1, 3, 1], [0, 0, 0]], np.int32),
        "count": np.array([len(letters) for _, letters in rows], np.int32),
    }

    class Heard:
        config = SpeechConfig()

        def __call__(self, sound: Any, frames: Any) -> Any:
            return jnp.asarray(sound)

    loss = Letters(blank=0)(Heard(), batch, None)
    expected = [
        nats_by_hand(logits[row, :frames], letters, 0)
        for row, (frames, letters) in enumerate(rows[:2])
    ]
    np.testing.assert_allclose(loss.total, sum(expected), rtol=1e-5)
    assert loss.weight == 5


@pytest.mark.parametrize("samples", [4, 5, 399, 400, 401, 16_000])
def test_frames_of_a_sound(samples: int) -> None:
    """Windows that fit in, one layer after the other."""
    config = SpeechConfig(conv_channels=(4, 4), conv_windows=(5, 3), conv_strides=(3, 2))
    length = samples
    for window, stride in ((5, 3), (3, 2)):
        length = len([start for start in range(0, length, stride) if start + window <= length])
    assert config.frames(samples) == length


def write_wave(file: Path, samples: int) -> None:
    write_samples(file, (8000 * np.sin(np.arange(samples) * 0.3)).astype("<i2"))


def write_samples(file: Path, sound: np.ndarray) -> None:
    """Writes int16 samples [N]."""
    with wave.open(str(file), "wb") as stream:
        stream.setparams((1, 2, RATE, len(sound), "NONE", ""))
        stream.writeframes(sound.tobytes())


def job(path: Path, data: Path, **settings: Any) -> Job:
    config = TrainConfig(
        checkpoint_dir=path / "run",
        data=DataConfig(data=str(data), held_out_fraction=0.0),
        batch_size=2,
    )
    return tuning_job(LETTERS, path / "model", TuningSettings(**settings), config)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of sounds with their transcripts."""
    write_case(CASES[LETTERS], tmp_path / "model")
    folder = tmp_path / "sounds"
    folder.mkdir()
    for name, samples, text in (("a", 700, "cat\n"), ("b", 500, "a dog"), ("c", 9000, "long")):
        write_wave(folder / f"{name}.wav", samples)
        (folder / f"{name}.txt").write_text(text)
    return folder


def test_a_folder_of_sounds_with_transcripts(folder: Path) -> None:
    found = job(folder.parent, folder, max_duration_in_seconds=0.1)
    assert found.data.counts.dropped == 1
    rows = sorted((found.data.rows[i] for i in range(2)), key=lambda row: int(row["count"]))
    assert [row["sound"].shape for row in rows] == [(700,), (700,)]
    letters = [row["letters"][: row["count"]].tolist() for row in rows]
    assert letters == [[5, 3, 22], [3, 2, 6, 17, 9]]  # a is 3, a space is 2
    sound = 8000 * np.sin(np.arange(500) * 0.3)
    normed = (sound - sound.mean()) / sound.std()
    np.testing.assert_allclose(rows[1]["sound"][:500], normed, atol=1e-3)
    assert not rows[1]["sound"][500:].any()
    assert rows[1]["frames"] == 82  # ((500 - 5) // 3 + 1 - 3) // 2 + 1


def test_records_name_files_beside_them(folder: Path) -> None:
    file = folder / "metadata.jsonl"
    records = [{"file_name": "a.wav", "sentence": "cat"}, {"file_name": "b.wav", "sentence": "dog"}]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert job(folder.parent, file).data.size == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("sounds/d.wav", b"no sound", r"d.wav: .*d.wav cannot be read as sound"),
        ("sounds/a.txt", b"\xff", r"a.wav: expected its transcript in a.txt beside it"),
        ("model/vocab.json", b'{"a": 0}', r"vocab.json has no token for 'c', 't', nor for '<unk>'"),
        ("model/vocab.json", b'{"a": 0, "<unk>": 1}', r"vocab.json has no '<pad>', which frames"),
        (
            "model/vocab.json",
            b'{"<pad>": 0, "<unk>": 40}',
            r"tokens up to 40, .* vocabulary has 32",
        ),
    ],
)
def test_what_cannot_be_learnt_is_refused(
    folder: Path, name: str, content: bytes, message: str
) -> None:
    if name.endswith(".wav"):
        (folder / "d.txt").write_text("dog")
    (folder.parent / name).write_bytes(content)
    with pytest.raises((LaunchError, ModelsError), match=message):
        job(folder.parent, folder)


def test_sounds_are_stored_in_many_ways(folder: Path) -> None:
    file = folder / "b.wav"
    samples = np.frombuffer(file.read_bytes()[-1000:], "<i2") / 2**15
    forms: list[Any] = [
        str(file),
        {"bytes": file.read_bytes(), "path": "b.wav"},
        {"bytes": None, "path": str(file)},
        {"array": samples.tolist(), "sampling_rate": RATE},
    ]
    for form in forms:
        record = Record({"audio": form, "text": "a dog"}, "here")
        assert length_of_sound(record, RATE) == 500
        np.testing.assert_allclose(samples_of_sound(sound_of(record), RATE), samples)


def test_no_run_starts_with_a_sound_that_cannot_be_read(folder: Path) -> None:
    whisper = CASES["speech-recognition"]
    write_case(whisper, folder.parent / "whisper")
    (folder / "c.wav").write_bytes(b"no sound")
    config = TrainConfig(checkpoint_dir=folder / "run", data=DataConfig(data=str(folder)))
    with pytest.raises(LaunchError, match=r"c.wav: .*c.wav cannot be read as sound: .* Convert it"):
        tuning_job(whisper.task, folder.parent / "whisper", TuningSettings(), config)
