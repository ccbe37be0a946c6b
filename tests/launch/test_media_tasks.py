"""The tasks of images and sound, on directories as a user has them."""

import json
import wave
from itertools import groupby
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file
from scipy.special import expit, softmax
from tokenizers import Tokenizer

from launch.errors import LaunchError
from launch.prompt_text import BEGIN, END, open_clip_text
from launch.sound import read_sound
from launch.tasks.series import read_series
from launch.tasks.table import run_checkpoint, task_for
from launch.tasks.task import Request
from models import pretrained
from models.ast import features as kaldi
from models.errors import ModelsError
from models.images import open_image, pixels_of, read_preprocessing
from models.parameters import merge
from models.sampling import Sampling
from models.weights.generation import Generation
from tests.conftest import RunPython
from tests.launch.image_text_files import write_image_text
from tests.launch.random_models import write_model
from tests.launch.speech_files import RATE, REQUESTS, WINDOWS, transcripts, write_speech
from tests.models.parity.media_cases import (
    AST,
    AUTOENCODER,
    BOTH,
    DPT,
    PATCHTST,
    SDXL,
    SPEECH,
    STABLE,
    TEXT,
    UNET,
    VISION,
    WAVLM,
    XVECTOR,
    YOLOS,
)

GREEDY = Generation(Sampling(temperature=0.0), 6)
LABELS = {"0": "cat", "1": "dog", "2": "owl"}
PIXELS = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)

VIT_SETTINGS = {"image_processor_type": "ViTImageProcessor", "size": {"height": 24, "width": 24}}
CLIP_SETTINGS = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 24},
    "crop_size": {"height": 24, "width": 24},
}


def write(directory: Path, name: str, base: dict[str, Any], **files: Any) -> Path:
    """A random model's directory, with JSON files beside it."""
    write_model(directory, name, base)
    for stem, values in files.items():
        (directory / f"{stem}.json").write_text(json.dumps(values))
    return directory


def write_words(directory: Path, **settings: str) -> None:
    """CLIP's tokenizer for lower-case letters, in its older files."""
    words = [
        "!",
        *ascii_lowercase,
        *(f"{letter}</w>" for letter in ascii_lowercase),
        "ca",
        "cat</w>",
    ]
    vocabulary = {word: i for i, word in enumerate(words)} | {BEGIN: 94, END: 95}
    directory.mkdir(exist_ok=True, parents=True)
    (directory / "vocab.json").write_text(json.dumps(vocabulary))
    (directory / "merges.txt").write_text("#version: 0.2\nc a\nca t</w>\n")
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def request(directory: Path, text: str, **changes: Any) -> Request:
    mesh = "data=1,model=2"
    return Request(directory, text, mesh, None, GREEDY, 0, **changes)


def output(directory: Path, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    run_checkpoint(request(directory, text), None)
    return capsys.readouterr().out


@pytest.fixture
def image(tmp_path: Path) -> Path:
    Image.fromarray(PIXELS).save(tmp_path / "image.png")
    return tmp_path / "image.png"


@jax.jit(static_argnums=(0, 1))
def call(graph: Any, method: str, parameters: Any, *inputs: Any) -> Any:
    return getattr(merge(graph, parameters), method)(*inputs)


def test_image_classification(
    tmp_path: Path, image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = VISION | {"id2label": LABELS}
    files = {"preprocessor_config": VIT_SETTINGS}
    directory = write(tmp_path / "model", "ViTForImageClassification", config, **files)
    lines = [line.split("\t") for line in output(directory, str(image), capsys).splitlines()]
    model = pretrained.load(directory)
    pixels = pixels_of(open_image(image), read_preprocessing(directory))[None]
    chances = softmax(call(model.graph, "__call__", model.parameters, pixels)[0])
    order = np.argsort(-chances)
    assert [name for name, _ in lines] == [LABELS[str(i)] for i in order]
    np.testing.assert_allclose([float(p) for _, p in lines], chances[order], atol=6e-5)


def test_image_features(tmp_path: Path, image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"preprocessor_config": VIT_SETTINGS}
    directory = write(tmp_path / "model", "ViTModel", VISION, **files)
    vectors = json.loads(output(directory, str(image), capsys))
    model = pretrained.load(directory)
    pixels = pixels_of(open_image(image), read_preprocessing(directory))[None]
    expected = call(model.graph, "features", model.parameters, pixels)
    np.testing.assert_allclose(vectors["hidden"], expected.hidden[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(vectors["pooled"], expected.pooled[0], rtol=1e-4, atol=1e-5)


TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}@{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endfor %} answer"
)


@pytest.mark.parametrize("template", [None, TEMPLATE], ids=["plain", "template"])
def test_image_text_to_text(
    tmp_path: Path, image: Path, capsys: pytest.CaptureFixture[str], template: str | None
) -> None:
    name = "Gemma3ForConditionalGeneration"
    directory = write_image_text(tmp_path / "model", name, template)
    text = output(directory, f"{image} | what is it", capsys)
    model = pretrained.load(directory)
    pixels = pixels_of(open_image(image), read_preprocessing(directory))[None, None]
    tokens = [3, 90, 90, 90, 90, 4, 5, 6, 7, *([] if template is None else [8])]
    begin = len(tokens)
    for _ in range(6):
        padded = np.array([tokens + [0] * (begin + 6 - len(tokens))])
        logits = call(model.graph, "__call__", model.parameters, padded, pixels)
        tokens.append(int(np.argmax(logits[0, len(tokens) - 1])))
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    assert text.split() == tokenizer.decode(tokens[begin:]).split()


def test_segmentation(tmp_path: Path, image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"preprocessor_config": VIT_SETTINGS}
    config = DPT | {"id2label": LABELS}
    directory = write(tmp_path / "model", "DPTForSemanticSegmentation", config, **files)
    target = tmp_path / "classes.png"
    lines = output(directory, f"{image} | {target}", capsys).splitlines()
    model = pretrained.load(directory)
    pixels = pixels_of(open_image(image), read_preprocessing(directory))[None]
    logits = call(model.graph, "__call__", model.parameters, pixels)
    larger = jax.image.resize(logits, (1, *PIXELS.shape[:2], len(LABELS)), "linear")
    expected = np.asarray(larger)[0].argmax(axis=-1)
    assert np.mean(np.asarray(Image.open(target)) == expected) > 0.999  # some are nearly equal
    shares = {name: float(share) for name, share in (line.split("\t") for line in lines)}
    for number, name in LABELS.items():
        assert shares.get(name, 0) == pytest.approx(np.mean(expected == int(number)), abs=2e-3)
    with pytest.raises(LaunchError, match="Give a new file whose name ends"):
        run_checkpoint(request(directory, f"{image} | {target}"), None)


def test_depth(tmp_path: Path, image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = VIT_SETTINGS | {"image_processor_type": "DPTImageProcessor"}
    files = {"preprocessor_config": settings}
    directory = write(tmp_path / "model", "DPTForDepthEstimation", DPT, **files)
    target = tmp_path / "depths.png"
    lines = output(directory, f"{image} | {target}", capsys).splitlines()
    numbers = {name: float(number) for name, number in (line.split("\t") for line in lines)}
    model = pretrained.load(directory)
    pixels = pixels_of(open_image(image), read_preprocessing(directory))[None]
    depths = np.asarray(call(model.graph, "__call__", model.parameters, pixels)[0])
    assert numbers["smallest"] <= numbers["mean"] <= numbers["largest"]
    assert numbers["mean"] == pytest.approx(depths.mean(), rel=0.02, abs=1e-3)
    shades = np.asarray(Image.open(target))
    assert shades.shape == PIXELS.shape[:2]
    assert shades.max() == 255


def test_object_detection(tmp_path: Path, image: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = VIT_SETTINGS | {"image_processor_type": "YolosImageProcessor"}
    config = YOLOS | {"id2label": {"0": "cat"}}
    files = {"preprocessor_config": settings}
    directory = write(tmp_path / "model", "YolosForObjectDetection", config, **files)
    lines = [line.split("\t") for line in output(directory, str(image), capsys).splitlines()]
    model = pretrained.load(directory)
    pixels = pixels_of(open_image(image), read_preprocessing(directory))[None]
    logits, boxes = (
        np.asarray(part)[0] for part in call(model.graph, "__call__", model.parameters, pixels)
    )
    chances = softmax(logits, axis=-1)[:, 0]
    shown = [i for i in np.argsort(-chances) if chances[i] > 0.5]
    assert [line[0] for line in lines] == ["cat"] * len(shown)
    height, width = PIXELS.shape[:2]
    for line, i in zip(lines, shown, strict=True):
        x, y, w, h = boxes[i] * [width, height, width, height]
        expected = [chances[i], x - w / 2, y - h / 2, x + w / 2, y + h / 2]
        np.testing.assert_allclose([float(number) for number in line[1:]], expected, atol=1e-3)


def test_zero_shot_classification(
    tmp_path: Path, image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"preprocessor_config": CLIP_SETTINGS}
    directory = write(tmp_path / "model", "CLIPModel", BOTH, **files)
    write_words(directory)
    lines = [
        line.split("\t")
        for line in output(directory, f"{image} | a cat | An owl", capsys).splitlines()
    ]
    model = pretrained.load(directory)
    pixels = pixels_of(open_image(image), read_preprocessing(directory))[None]
    tokens = open_clip_text(directory).rows(["a cat", "an owl"], 16)
    chances = softmax(call(model.graph, "__call__", model.parameters, tokens, pixels)[0])
    shares = {text: float(p) for text, p in lines}
    assert len(lines) == 2
    np.testing.assert_allclose([shares["a cat"], shares["An owl"]], chances, atol=6e-5)
    with pytest.raises(LaunchError, match="an image file and texts"):
        run_checkpoint(request(directory, str(image)), None)


def write_sound(file: Path, samples: np.ndarray, rate: int = RATE, width: int = 2) -> None:
    """A WAV file of samples [N, channels], numbers as the file holds them."""
    with wave.open(str(file), "wb") as sound:
        sound.setnchannels(samples.shape[1])
        sound.setsampwidth(width)
        sound.setframerate(rate)
        sound.writeframes(samples.tobytes())


@pytest.mark.slow
def test_speech_recognition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More windows than are heard at once; the mesh splits the model."""
    directory = write_speech(tmp_path / "model")
    write_sound(tmp_path / "sound.wav", WINDOWS.reshape(-1, 1))
    lines = output(directory, str(tmp_path / "sound.wav"), capsys).splitlines()
    assert REQUESTS["by a command"].most == GREEDY.max_new_tokens
    assert lines == transcripts("by a command")
    assert len(set(lines)) > 4


def test_audio_classification(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"num_mel_bins": 8, "max_length": 11, "sampling_rate": RATE}
    files = {"preprocessor_config": settings}
    config = AST | {"id2label": LABELS}
    directory = write(tmp_path / "model", "ASTForAudioClassification", config, **files)
    samples = np.random.default_rng(0).integers(-9000, 9000, (RATE, 1)).astype("<i2")
    write_sound(tmp_path / "sound.wav", samples)
    lines = output(directory, str(tmp_path / "sound.wav"), capsys).splitlines()
    chances = {name: float(chance) for name, chance in (line.split("\t") for line in lines)}
    model = pretrained.load(directory)
    features = kaldi.log_mel(samples[:, 0] / 2**15, kaldi.read_spectrogram(directory))
    expected = softmax(call(model.graph, "__call__", model.parameters, features[None])[0])
    got = [chances[name] for name in LABELS.values()]
    np.testing.assert_allclose(got, expected, atol=6e-5)


SPOKEN = np.random.default_rng(0).integers(-9000, 9000, (200, 1)).astype("<i2")


def speech(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str], **changes: Any
) -> tuple[str, Any]:
    """What a task writes of a sound, and what its model makes of the sound."""
    files = {"preprocessor_config": {"sampling_rate": 16_000, "do_normalize": True}}
    config = SPEECH | {"id2label": LABELS} | changes
    directory = write(tmp_path / "model", name, config, **files)
    letters = {letter: i for i, letter in enumerate(["<pad>", "|", *ascii_lowercase[:10]])}
    (directory / "vocab.json").write_text(json.dumps(letters))
    write_sound(tmp_path / "sound.wav", SPOKEN, 16_000)
    text = output(directory, str(tmp_path / "sound.wav"), capsys)
    model = pretrained.load(directory)
    samples = SPOKEN[:, 0] / 2**15
    normed = ((samples - samples.mean()) / samples.std()).astype(np.float32)
    method = "features" if name.endswith("Model") else "__call__"
    return text, call(model.graph, method, model.parameters, normed[None])


def test_letters_of_speech(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, logits = speech(tmp_path, "WavLMForCTC", capsys, **WAVLM, **STABLE, num_hidden_layers=2)
    letters = ["", " ", *ascii_lowercase[:10]]
    tokens = [token for token, _ in groupby(np.argmax(logits[0], axis=-1).tolist())]
    assert len(set(tokens)) > 2
    assert text == "".join(letters[token] for token in tokens).strip() + "\n"


HEADING = "north,south,east\n"


def test_forecast(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = write(tmp_path / "model", "PatchTSTForPrediction", PATCHTST)
    known = np.random.default_rng(0).normal(5, 2, (30, 3)).round(3)
    rows = [",".join(map(str, row)) for row in known.tolist()]
    (tmp_path / "series.csv").write_text(HEADING + "\n".join(rows) + "\n")
    text = output(directory, str(tmp_path / "series.csv"), capsys)
    got = np.array([line.split("\t") for line in text.splitlines()], np.float64)
    model = pretrained.load(directory)
    last = known[None, -21:].astype(np.float32)
    expected = call(model.graph, "__call__", model.parameters, last)[0]
    assert got.shape == (5, 3)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=6e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3\n" * 20, "20 rows of numbers, but the model needs 21"),
        ("1,2,3\n" * 20 + "1,2\n" + "1,2,3\n", "row 21 of .* must be 3"),
        (HEADING + "1,2,3\n" * 20 + "1,nan,3\n", "row 21 of .* finite numbers"),
        ("", "0 rows"),
    ],
    ids=["short", "narrow", "not a number", "empty"],
)
def test_series_that_do_not_suit_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "series.csv").write_text(text)
    with pytest.raises(LaunchError, match=message):
        read_series(tmp_path / "series.csv", 21, 3)


def test_either_name_of_speech_recognition(tmp_path: Path) -> None:
    architecture = pretrained.describe(write(tmp_path, "Wav2Vec2ForCTC", SPEECH)).architecture
    for name in (None, "automatic-speech-recognition", "ctc-speech-recognition"):
        assert task_for(architecture, name).name == "ctc-speech-recognition"


def test_classes_of_speech(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, logits = speech(tmp_path, "HubertForSequenceClassification", capsys)
    chances = dict(line.split("\t") for line in text.splitlines())
    got = [float(chances[name]) for name in LABELS.values()]
    np.testing.assert_allclose(got, softmax(logits[0]), atol=6e-5)


def test_classes_of_frames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, logits = speech(tmp_path, "WavLMForAudioFrameClassification", capsys)
    head, *lines = [line.split("\t") for line in text.splitlines()]
    assert head == ["second", *LABELS.values()]
    rows = np.array(lines, np.float64)
    np.testing.assert_allclose(rows[:, 0], np.arange(len(rows)) * 6 / 16_000, atol=6e-5)
    np.testing.assert_allclose(rows[:, 1:], expit(logits[0]), atol=6e-5)


@pytest.mark.parametrize(
    ("name", "field"), [("WavLMForXVector", "embedding"), ("UniSpeechModel", "hidden")]
)
def test_vectors_of_speech(
    name: str, field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, features = speech(tmp_path, name, capsys, **(XVECTOR | {"num_labels": 3}))
    expected = getattr(features, field)[0]
    np.testing.assert_allclose(json.loads(text)[field], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("width", "dtype", "silence", "loudest"),
    [(1, "u1", 128, 255), (2, "<i2", 0, 2**15 - 1), (4, "<i4", 0, 2**31 - 1)],
)
def test_samples_lie_between_minus_one_and_one(
    width: int, dtype: str, silence: int, loudest: int, tmp_path: Path
) -> None:
    write_sound(tmp_path / "s.wav", np.array([[silence], [loudest]], dtype), width=width)
    got = read_sound(tmp_path / "s.wav", RATE)
    np.testing.assert_allclose(got, [0, 1 - 2.0 ** (1 - 8 * width)], atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: f.write_bytes(b"no sound"), "cannot be read as sound"),
        (lambda f: None, "cannot be read as sound"),
        (lambda f: write_sound(f, np.zeros((0, 1), "<i2")), "holds no sound"),
        (lambda f: write_sound(f, np.zeros((9, 1), "<i2")), "more than 8 samples of sound"),
    ],
)
def test_sounds_that_do_not_suit_are_refused(make: Any, message: str, tmp_path: Path) -> None:
    make(tmp_path / "s.wav")
    with pytest.raises(LaunchError, match=message):
        read_sound(tmp_path / "s.wav", RATE, most=8)


def test_other_rates_are_resampled(tmp_path: Path) -> None:
    times = np.arange(RATE // 2) / (RATE // 2)
    wave = np.round(9000 * np.sin(2 * np.pi * 50 * times))[:, None].astype("<i2")
    write_sound(tmp_path / "s.wav", wave, RATE // 2)
    got = read_sound(tmp_path / "s.wav", RATE)
    expected = 9000 / 2**15 * np.sin(2 * np.pi * 50 * np.arange(RATE) / RATE)
    assert got.shape == (RATE,)
    np.testing.assert_allclose(got[100:-100], expected[100:-100], atol=1e-3)


SCHEDULER = {
    "_class_name": "PNDMScheduler",
    "skip_prk_steps": True,
    "beta_schedule": "scaled_linear",
}


def write_pipeline(directory: Path, *, xl: bool) -> Path:
    """A random pipeline's directory."""
    name = "StableDiffusionXLPipeline" if xl else "StableDiffusionPipeline"
    unet = UNET | (SDXL | {"cross_attention_dim": 64} if xl else {"cross_attention_dim": 32})
    write(directory / "unet", "UNet2DConditionModel", unet)
    write(directory / "vae", "AutoencoderKL", AUTOENCODER)
    write(directory / "text_encoder", "CLIPTextModel", TEXT)
    write_words(directory / "tokenizer")
    if xl:
        projected = TEXT | {"projection_dim": 24}
        write(directory / "text_encoder_2", "CLIPTextModelWithProjection", projected)
        write_words(directory / "tokenizer_2", pad_token="!")
    (directory / "scheduler").mkdir()
    (directory / "scheduler" / "scheduler_config.json").write_text(json.dumps(SCHEDULER))
    (directory / "model_index.json").write_text(json.dumps({"_class_name": name}))
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("xl", [False, True])
def test_text_to_image(tmp_path: Path, xl: bool) -> None:
    directory = write_pipeline(tmp_path / "model", xl=xl)

    def paint(name: str, prompt: str, negative: str = "", **changes: Any) -> np.ndarray:
        text = f"{prompt} | {tmp_path / name}" + (f" | {negative}" if negative else "")
        run_checkpoint(request(directory, text, steps=2, **changes), None)
        with Image.open(tmp_path / name) as painted:
            assert (painted.mode, painted.size) == ("RGB", (16, 16))
            return np.asarray(painted)

    cat = paint("cat.png", "a cat")
    np.testing.assert_array_equal(paint("again.png", "a cat"), cat)
    assert not np.array_equal(paint("owl.png", "an owl"), cat)
    assert not np.array_equal(paint("not.png", "a cat", "an owl"), cat)
    unguided = paint("free.png", "a cat", guidance=1.0)
    np.testing.assert_array_equal(paint("free2.png", "a cat", "an owl", guidance=1.0), unguided)
    with pytest.raises(LaunchError, match=r"Give a new file whose name ends in \.png"):
        paint("cat.png", "a cat")


def white(file: Path, width: int, height: int, left: int = 0) -> Path:
    """A white image, black up to `left`."""
    pixels = np.full((height, width, 3), 255, np.uint8)
    pixels[:, :left] = 0
    Image.fromarray(pixels).save(file)
    return file


@pytest.mark.slow
def test_images_become_others(tmp_path: Path, image: Path, run_python: RunPython) -> None:
    directory = write_pipeline(tmp_path / "model", xl=False)
    mask = white(tmp_path / "mask.png", 40, 30, left=12)

    def paint(task: str, *parts: Any, model: Path = directory, **changes: Any) -> np.ndarray:
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.png"
        text = " | ".join(map(str, ["a cat", *parts, file]))
        run_checkpoint(request(model, text, steps=4, guidance=1.0, **changes), task)
        with Image.open(file) as painted:
            return np.asarray(painted)

    near, far = (paint("image-to-image", image, strength=value) for value in (0.25, 1.0))
    assert near.shape == (28, 40, 3)
    assert not np.array_equal(near, far)
    np.testing.assert_array_equal(paint("image-to-image", image, strength=0.25), near)
    assert not np.array_equal(paint("inpainting", image, mask, strength=1.0), far)
    lora = tmp_path / "lora.safetensors"
    down, up = np.ones((2, 4), np.float32), np.ones((16, 2), np.float32)
    down, up = np.tile(down[..., None, None], (3, 3)), up[..., None, None]
    save_file(
        {"lora_unet_conv_in.lora_down.weight": down, "lora_unet_conv_in.lora_up.weight": up}, lora
    )
    changed, same = (
        paint("image-to-image", image, strength=0.25, loras=[f"{lora}:{scale}"])
        for scale in (0.5, 0)
    )
    assert not np.array_equal(changed, near)
    np.testing.assert_array_equal(same, near)
    fused = tmp_path / "fused"
    flags = [f"--model={directory}", f"--lora={lora}:0.5", f"--target={fused}"]
    run = "runpy.run_module('launch.fuse', run_name='__main__', alter_sys=True)"
    run_python(f"import runpy, sys; sys.argv[1:] = {flags}; {run}")
    again = paint("image-to-image", image, strength=0.25, model=fused)
    np.testing.assert_array_equal(again, changed)
    with pytest.raises(LaunchError, match=r"--lora=.*:a: 'a' is not a number; write FILE or"):
        paint("image-to-image", image, loras=[f"{lora}:a"])
    with pytest.raises(ModelsError, match="num_steps=4 leaves no steps to run"):
        paint("image-to-image", image, strength=0.2)
    with pytest.raises(LaunchError, match="24 x 3 pixels, but this model needs at least 4 x 4"):
        paint("image-to-image", white(tmp_path / "flat.png", 24, 3))


@pytest.mark.parametrize(
    ("task", "parts", "message"),
    [
        ("image-to-image", "a cat | {new}", "is not a prompt, an image file and the PNG file"),
        ("inpainting", "a cat | {image} | {new}", "its mask file and the PNG file to write"),
        ("inpainting", "a cat | {image} | {mask} | {new}", "has 8 x 6 pixels, but .* 40 x 30"),
        ("image-to-image", "a cat | {image} | {image}", "cannot be written"),
        ("image-to-image", "a cat | {none} | {new}", "cannot be read as an image"),
        ("text-to-text", "a cat | {new}", "does not support the task 'text-to-text'"),
        ("fill-mask", "a cat | {new}", "is made for text-to-image, not for fill-mask"),
    ],
)
def test_what_cannot_be_painted_is_refused(
    task: str, parts: str, message: str, tmp_path: Path, image: Path
) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    mask = white(tmp_path / "mask.png", 8, 6)
    files = {"image": image, "mask": mask, "new": tmp_path / "new.png", "none": tmp_path / "n.png"}
    with pytest.raises((LaunchError, ModelsError), match=message):
        run_checkpoint(request(tmp_path, parts.format_map(files)), task)
    assert not (tmp_path / "new.png").exists()


@pytest.mark.parametrize("pad", [END, "!"])
def test_short_texts_are_filled_with_the_padding_token(pad: str, tmp_path: Path) -> None:
    write_words(tmp_path, pad_token=pad)
    clip = open_clip_text(tmp_path)
    [tokens] = clip.rows(["cat"], 5)
    number = clip.tokenizer.token_to_id(pad)
    assert tokens.tolist() == [94, clip.tokenizer.token_to_id("cat</w>"), 95, number, number]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda d: (d / "vocab.json").unlink(),
            r"the tokenizer files merges\.txt \(CLIPTokenizer\)",
        ),
        (lambda d: (d / "merges.txt").unlink(), r"the tokenizer files vocab\.json \(CLIPTokeniz"),
        (lambda d: (d / "vocab.json").write_text('{"a": 0}'), "the tokenizer of .* cannot be used"),
        (lambda d: (d / "tokenizer_config.json").write_text('{"pad_token": "P"}'), "lacks the to"),
    ],
)
def test_damaged_tokenizers_are_refused(damage: Any, message: str, tmp_path: Path) -> None:
    write_words(tmp_path)
    damage(tmp_path)
    with pytest.raises(LaunchError, match=message):
        open_clip_text(tmp_path)
