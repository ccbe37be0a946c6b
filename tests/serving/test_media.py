"""Sound and images over HTTP, by OpenAI's own client."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from openai import BadRequestError, OpenAI
from PIL import Image
from tokenizers import Tokenizer, models

from launch.serving.config import EngineConfig, ModelNames
from launch.serving.errors import ServingError
from launch.serving.http.images import Size
from launch.serving.kinds import open_model
from launch.serving.media.images import read_sizes
from launch.serving.model_choice import ModelChoice
from models import pretrained
from models.whisper.features import log_mel, read_spectrogram
from models.whisper.instructions import read_instructions
from models.whisper.transcription import transcribe
from tests.launch.test_media_tasks import RATE, write, write_pipeline
from tests.models.parity.media_cases import WHISPER
from tests.serving.http_server import Listening, listening
from tests.serving.page_examples import examples, run_example

INSTRUCTIONS = {
    "decoder_start_token_id": 91,
    "eos_token_id": 90,
    "suppress_tokens": [3, 4],
    "begin_suppress_tokens": [90],
    "lang_to_id": {"<|en|>": 80, "<|de|>": 81},
    "task_to_id": {"transcribe": 82, "translate": 83},
}
SPECTROGRAM = {
    "feature_size": 8,
    "sampling_rate": RATE,
    "hop_length": 160,
    "n_fft": 400,
    "chunk_length": 1,
}


def serving(directory: Path) -> Iterator[Listening]:
    engine = EngineConfig(num_seqs_buckets="2")
    with (
        open_model(
            ModelChoice(Path("unused"), directory, "model=1", engine, ModelNames())
        ) as backend,
        listening(backend) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write(
        tmp_path_factory.mktemp("models") / "speech",
        "WhisperForConditionalGeneration",
        {**WHISPER, "encoder_layers": 1, "decoder_layers": 1},
        preprocessor_config=SPECTROGRAM,
        generation_config=INSTRUCTIONS,
    )
    words = {f"w{i}": i for i in range(96)}
    Tokenizer(models.WordLevel(words, "w0")).save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(scope="module")
def speech_server(speech: Path) -> Iterator[Listening]:
    yield from serving(speech)


def wav(samples: np.ndarray, form: str = "WAV", rate: int = RATE) -> tuple[str, bytes]:
    stream = io.BytesIO()
    soundfile.write(stream, samples, rate, format=form)
    return f"sound.{form.lower()}", stream.getvalue()


def test_speech_by_openais_client(speech: Path, speech_server: Listening, tmp_path: Path) -> None:
    sound = np.random.default_rng(0).integers(-9000, 9000, RATE + 500).astype("<i2")
    settings, instructions = read_spectrogram(speech), read_instructions(speech)
    model = pretrained.load(speech)
    samples = sound.astype(np.float64) / 2**15
    features = np.stack([log_mel(window, settings) for window in (samples[:RATE], samples[RATE:])])
    expected = transcribe(
        model.graph, model.parameters, features, instructions, model.config, language="de"
    )
    texts = [" ".join(f"w{token}" for token in row if token != 90) for row in expected.tolist()]
    request: dict[str, Any] = {"model": "speech", "language": "de"}
    with OpenAI(base_url=f"{speech_server.url}/v1", api_key="x", max_retries=0) as client:
        create = client.audio.transcriptions.create
        assert create(file=wav(sound), **request).text == " ".join(texts)
        assert create(file=wav(sound, "FLAC"), **request, response_format="text") == (
            " ".join(texts) + "\n"
        )
        verbose = create(file=wav(sound), **request, response_format="verbose_json")
        assert (verbose.language, len(verbose.segments)) == ("de", 2)
        assert verbose.duration == pytest.approx(1 + 500 / RATE)
        assert [segment.text for segment in verbose.segments] == texts
        detected = create(file=wav(sound), model="speech", response_format="verbose_json")
        assert detected.language in ("en", "de")
        drawn = {"temperature": 0.7, "extra_body": {"seed": 3}}
        first, again = (create(file=wav(sound), **request, **drawn).text for _ in range(2))
        assert first == again != " ".join(texts)
        vtt = create(file=wav(sound), **request, response_format="vtt")
        assert vtt.startswith(f"WEBVTT\n\n00:00:00.000 --> 00:00:01.000\n{texts[0]}\n")
        name, data = wav(sound)
        (tmp_path / name).write_bytes(data)
        for line in examples("speech"):
            assert '"text":"w' in run_example(line, speech_server, tmp_path)
        for wrong in (
            {"language": "tlh"},
            {"response_format": "xml"},
            {"temperature": 2},
            {"prompt": "x"},
        ):
            with pytest.raises(BadRequestError) as caught:
                create(file=wav(sound), **{"model": "speech", **wrong})
            assert caught.value.param == next(iter(wrong))
        for data in (b"no sound", b"", wav(np.zeros(0, "<i2"))[1]):
            with pytest.raises(BadRequestError, match="sound") as caught:
                create(file=("s.wav", data), model="speech")
            assert caught.value.param == "file"


@pytest.mark.parametrize(
    ("headers", "data"),
    [
        ({}, b"{}"),
        ({"Content-Type": "multipart/form-data"}, b"x"),
        ({"Content-Type": "multipart/form-data; boundary=a"}, b"--b\r\n"),
        ({"Content-Type": "multipart/form-data; boundary=a"}, b"--a--\r\n"),
    ],
    ids=["json", "no boundary", "other boundary", "empty"],
)
def test_what_is_no_form(speech_server: Listening, headers: dict[str, str], data: bytes) -> None:
    status, made = speech_server.ask("/v1/audio/transcriptions", data=data, headers=headers)
    assert (status, made["error"]["type"]) == (400, "invalid_request_error")


def test_images_by_openais_client(tmp_path: Path) -> None:
    directory = write_pipeline(tmp_path / "painter", xl=False)

    def pixels(image: Any) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(image.b64_json))))

    for server in serving(directory):
        with OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
            request = {"model": "painter", "prompt": "a cat", "response_format": "b64_json"}
            more: dict[str, Any] = {"num_inference_steps": 2, "seed": 5}
            two = client.images.generate(**request, n=2, size="16x16", extra_body=more).data
            assert pixels(two[0]).shape == (16, 16, 3)
            alone = client.images.generate(**request, extra_body={**more, "seed": 6}).data
            np.testing.assert_array_equal(pixels(two[1]), pixels(alone[0]))
            assert not np.array_equal(pixels(two[0]), pixels(two[1]))
            for line in examples("images"):
                assert run_example(line, server, tmp_path).count("b64_json") == 2
            for wrong in ({"size": "512x512"}, {"n": 11}, {"prompt": ""}):
                with pytest.raises(BadRequestError) as caught:
                    client.images.generate(**{**request, **wrong})
                assert caught.value.param == next(iter(wrong))


def test_sizes_of_images() -> None:
    assert read_sizes("16x8, 32x32", 64, 8) == [Size(16, 8), Size(32, 32)]
    assert read_sizes(None, 64, 8) == [Size(64, 64)]
    for wrong in ("16", "16x", "0x16", "12x16"):
        with pytest.raises(ServingError, match="is not a size"):
            read_sizes(wrong, 64, 8)
