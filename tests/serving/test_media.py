"""Sound and images over HTTP, by OpenAI's own client."""

import asyncio
import base64
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from openai import AsyncOpenAI, BadRequestError, OpenAI
from PIL import Image

from launch.serving.config import EngineConfig, ModelNames
from launch.serving.errors import ServingError
from launch.serving.http.images import Size
from launch.serving.kinds import open_model
from launch.serving.media.images import read_sizes
from launch.serving.model_choice import ModelChoice
from tests.launch.speech_files import LONG, RATE, REQUESTS, transcripts, write_speech
from tests.launch.test_media_tasks import write_pipeline
from tests.serving.http_server import Listening, listening
from tests.serving.page_examples import examples, run_example


def serving(directory: Path) -> Iterator[Listening]:
    engine = EngineConfig(
        num_seqs_buckets="2",
        prefill_rows_buckets="2",
        prefill_buckets="8",
        context_buckets="32",
    )
    with (
        open_model(
            ModelChoice(Path("unused"), directory, "model=1", engine, ModelNames())
        ) as backend,
        listening(backend) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_speech(tmp_path_factory.mktemp("models") / "speech")


@pytest.fixture(scope="module")
def speech_server(speech: Path) -> Iterator[Listening]:
    yield from serving(speech)


def wav(samples: np.ndarray, form: str = "WAV", rate: int = RATE) -> tuple[str, bytes]:
    stream = io.BytesIO()
    soundfile.write(stream, samples, rate, format=form)
    return f"sound.{form.lower()}", stream.getvalue()


@pytest.mark.slow
def test_speech_by_openais_client(speech_server: Listening, tmp_path: Path) -> None:
    sound = LONG  # more windows than the batch has places
    texts = transcripts("long, in German")
    request: dict[str, Any] = {"model": "speech", "language": "de"}
    with OpenAI(base_url=f"{speech_server.url}/v1", api_key="x", max_retries=0) as client:
        create = client.audio.transcriptions.create
        assert create(file=wav(sound), **request).text == " ".join(texts)
        assert create(file=wav(sound, "FLAC"), **request, response_format="text") == (
            " ".join(texts) + "\n"
        )
        verbose = create(file=wav(sound), **request, response_format="verbose_json")
        assert (verbose.language, len(verbose.segments)) == ("de", 5)
        assert verbose.duration == pytest.approx(4 + 500 / RATE)
        assert [segment.text for segment in verbose.segments] == texts
        assert [f"w{token}" for token in verbose.segments[0].tokens] == texts[0].split()
        *deltas, done = create(file=wav(sound), **request, stream=True)
        assert len(deltas) > 2
        assert "".join(event.delta for event in deltas) == done.text == " ".join(texts)
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
            {"response_format": "srt", "stream": True},
        ):
            with pytest.raises(BadRequestError) as caught:
                create(file=wav(sound), **{"model": "speech", **wrong})
            assert caught.value.param == next(iter(wrong))
        for wrong in ({"timestamp_granularities": ["word", "segment"]}, {"include": ["logprobs"]}):
            with pytest.raises(BadRequestError, match="not supported"):
                create(file=wav(sound), model="speech", **wrong)
        for data in (b"no sound", b"", wav(np.zeros(0, "<i2"))[1]):
            with pytest.raises(BadRequestError, match="sound") as caught:
                create(file=("s.wav", data), model="speech")
            assert caught.value.param == "file"


async def hear_all(url: str, files: Sequence[np.ndarray]) -> list[tuple[str, str]]:
    """Language and text of each, all asked for at once."""
    request: dict[str, Any] = {"model": "speech", "response_format": "verbose_json"}
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:
        create = client.audio.transcriptions.create
        made = await asyncio.gather(*(create(file=wav(sound), **request) for sound in files))
    return [(entry.language, entry.text) for entry in made]


def test_sounds_at_once(speech_server: Listening) -> None:
    """Each gets the language and the text that it gets alone; two are the same."""
    windows = REQUESTS["several"].windows
    heard = asyncio.run(hear_all(speech_server.url, [*windows, windows[2]]))
    languages, texts = zip(*heard[:-1], strict=True)
    assert set(languages) == {"en", "fr"}
    assert heard[-1] == heard[2]
    assert list(texts) == transcripts("several")
    in_french = transcripts("several, in French")
    assert [a == b for a, b in zip(texts, in_french, strict=True)] != [True] * len(windows)
    _, told = speech_server.ask("/metrics")
    assert 'vllm:request_success_total{finished_reason="stop"' in told


@pytest.mark.parametrize(
    ("headers", "data", "status"),
    [
        ({}, b"{}", 415),
        ({"Content-Type": "multipart/form-data"}, b"x", 400),
        ({"Content-Type": "multipart/form-data; boundary=a"}, b"--b\r\n", 400),
        ({"Content-Type": "multipart/form-data; boundary=a"}, b"--a--\r\n", 400),
    ],
    ids=["json", "no boundary", "other boundary", "empty"],
)
def test_what_is_no_form(
    speech_server: Listening, headers: dict[str, str], data: bytes, status: int
) -> None:
    got, made = speech_server.ask("/v1/audio/transcriptions", data=data, headers=headers)
    assert (got, made["error"]["type"]) == (status, "invalid_request_error")


@pytest.mark.slow
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
            refused = {"size": "512x512"}, {"n": 11}, {"output_format": "webp"}, {"stream": True}
            for wrong in (*refused, {"prompt": ""}):
                with pytest.raises(BadRequestError) as caught:
                    client.images.generate(**{**request, **wrong})
                assert caught.value.param == next(iter(wrong))


def test_sizes_of_images() -> None:
    own = Size(64, 48)
    assert read_sizes("16x8, 32x32", own, 8) == [Size(16, 8), Size(32, 32)]
    assert read_sizes(None, own, 8) == [own]
    for wrong in ("16", "16x", "0x16", "12x16"):
        with pytest.raises(ServingError, match="is not a size"):
            read_sizes(wrong, own, 8)
