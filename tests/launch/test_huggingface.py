"""The programs on Hugging Face directories: train, generate, run, convert."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from launch import checkpoints
from launch.assistance import Assistance
from launch.converter import convert
from launch.errors import LaunchError
from launch.generator import generate_text, load_directory, load_run
from launch.source import from_path, tokenizer_directory, vocabulary_for, with_tokenizer
from launch.tasks.table import TASKS, run_checkpoint, task_for
from launch.tasks.task import Request
from launch.text import (
    COMPANIONS,
    ByteTokenizer,
    FileTokenizer,
    copy_companions,
    find_tokenizer,
)
from launch.trainer import train
from models.beam_search import Beams
from models.constraints import Constraints, Ending
from models.errors import ModelsError
from models.pretrained import describe
from models.registry import ARCHITECTURES
from models.sampling import Sampling
from models.weights.fields import Fields
from models.weights.generation import Generation, read_generation
from tests.launch.checkpoint_files import VOCAB, byte_pairs, write_config, write_directory
from tests.launch.programs import MODEL_FLAGS, SOURCE, config, losses, run
from tests.launch.random_models import write_model
from tests.models.parity.media_cases import SPEECH, SWIN

GREEDY = Generation(Sampling(temperature=0.0), 20)
TEXTS = ["", "the while statement", "größer ≠ kleiner 🎉", "\n\t  two  spaces"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_directory(tmp_path_factory.mktemp("files") / "qwen")


@pytest.fixture(scope="module")
def trained(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained")
    source = from_path(directory, param_dtype="float32")
    assert train(source, config(run, seq_len=32, learning_rate=1e-2)) == 0
    return run


def text_of(
    writer: object,
    capsys: pytest.CaptureFixture[str],
    prompt: str = "the ",
    **options: Any,
) -> str:
    capsys.readouterr()
    generate_text(writer, prompt=prompt, otherwise=GREEDY, seed=0, **options)  # type: ignore[arg-type]
    return capsys.readouterr().out


@pytest.mark.slow
def test_training_starts_from_the_weights_and_lowers_the_loss(trained: Path) -> None:
    values = [loss for _, loss in losses(trained)]
    assert values[-1] < values[0]
    assert (trained / "tokenizer.json").is_file()


def test_random_weights_of_a_config_json(tmp_path: Path) -> None:
    file = write_config(tmp_path / "config.json")
    byte_pairs().save(str(tmp_path / "tokenizer.json"))
    source = from_path(file)
    assert source.weights is None
    assert source.model.config.dtype == "bfloat16"
    assert isinstance(source.tokenizer, FileTokenizer)


def test_a_model_of_flags_with_a_tokenizer(tmp_path: Path) -> None:
    byte_pairs().save(str(tmp_path / "tokenizer.json"))
    flags = (f"--tokenizer={tmp_path}", "--steps=1", f"--checkpoint_dir={tmp_path / 'run'}")
    done = run("train", *MODEL_FLAGS, *flags, "--nodevice_time", devices=1)
    assert done.returncode == 0, done.stderr
    assert "tokens to train on" in done.stderr
    writer = load_run(tmp_path / "run", "data=1")
    assert isinstance(writer.tokenizer, FileTokenizer)


def test_tokenizers_that_are_not_there_or_too_large(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"missing is neither a directory nor a file called tok"):
        tokenizer_directory(str(tmp_path / "missing"))
    with pytest.raises(LaunchError, match=r"holds no tokenizer\.json"):
        vocabulary_for(tmp_path)
    byte_pairs().save(str(tmp_path / "tokenizer.json"))
    assert tokenizer_directory(str(tmp_path / "tokenizer.json")) == tmp_path
    assert vocabulary_for(tmp_path) == 384
    with pytest.raises(LaunchError, match=r"needs \d+ tokens, but the model's vocabulary has 256"):
        with_tokenizer(SOURCE, tmp_path)


def test_a_trained_run_writes_text(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = load_run(trained, "data=1,model=2")
    assert writer.generation.ending == Ending(stop_tokens=(0,))
    text = text_of(writer, capsys)
    assert text.startswith("the ")
    stop = text[8:10]
    cut = text_of(writer, capsys, given={"stop_strings": [stop]})
    assert cut == text[: text.index(stop, 4)] + "\n"


def test_generation_depends_on_neither_mesh_nor_layout(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = text_of(load_directory(directory, "data=1", "float32"), capsys)
    assert text_of(load_directory(directory, "data=2,model=2", "float32"), capsys) == alone
    single = text_of(load_directory(directory, "data=1"), capsys)
    convert(directory, tmp_path / "run", "data=1")
    assert text_of(load_run(tmp_path / "run", "data=1"), capsys) == single


def test_conversion_there_and_back_gives_the_same_tensors(directory: Path, tmp_path: Path) -> None:
    there_and_back(directory, tmp_path)
    assert (tmp_path / "back" / "tokenizer.json").read_bytes() == (
        directory / "tokenizer.json"
    ).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("SwinForImageClassification", SWIN | {"num_labels": 4}),  # heads differ by stage
        ("Wav2Vec2Model", SPEECH),  # without a vocabulary
    ],
)
def test_models_of_other_tasks_are_converted(
    tmp_path: Path, name: str, fields: dict[str, Any]
) -> None:
    there_and_back(write_model(tmp_path / "model", name, fields), tmp_path)


def there_and_back(directory: Path, place: Path) -> None:
    convert(directory, place / "run", None)
    assert checkpoints.steps(place / "run") == [0]
    convert(place / "run", place / "back", None)
    before, after = (load_file(at / "model.safetensors") for at in (directory, place / "back"))
    assert set(before) == set(after)
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype
        np.testing.assert_array_equal(after[name], tensor)


def test_the_program_runs_a_directory(directory: Path) -> None:
    done = run(
        "run", f"--model={directory}", "--input=the while", "--max_new_tokens=5", "--mesh=model=2",
        "--num_beams=3", "--num_return_sequences=2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the while") == 2
    assert "weights: 100%" in done.stderr


@pytest.mark.parametrize(
    ("place", "mesh", "message"),
    [
        ("empty", None, r"cannot read .*/empty/config\.json: No such file"),
        ("no_weights", None, r"/no_weights has neither model\.safetensors"),
        ("unknown", None, r"asks for GPT9ForCausalLM, which is not supported\. Supported are "),
        ("model", "model=64", "needs 64 devices"),
    ],
)
def test_what_is_missing_is_named(
    directory: Path, tmp_path: Path, place: str, mesh: str | None, message: str
) -> None:
    places = {name: tmp_path / name for name in ("empty", "no_weights", "unknown")}
    for folder in places.values():
        folder.mkdir()
    write_config(places["no_weights"] / "config.json")
    byte_pairs().save(str(places["no_weights"] / "tokenizer.json"))
    write_config(places["unknown"] / "config.json", architectures=["GPT9ForCausalLM"])
    request = Request(
        directory=places.get(place, directory),
        input="a",
        mesh=mesh,
        dtype=None,
        generation=Generation(GREEDY, 1),
        seed=0,
    )
    with pytest.raises((LaunchError, ModelsError), match=message):
        run_checkpoint(request, None)


def test_a_task_that_the_architecture_is_not_made_for_is_refused(directory: Path) -> None:
    architecture = describe(directory).architecture
    with pytest.raises(LaunchError, match="is made for text-generation, not for fill"):
        task_for(architecture, "fill", {**TASKS, "fill": TASKS["text-generation"]})
    with pytest.raises(
        LaunchError, match="does not support the task 'text-generation'; its tasks: none"
    ):
        task_for(architecture, None, {})


@pytest.mark.parametrize("alias", ["summarization", "translation"])
def test_other_names_of_text_to_text(directory: Path, alias: str) -> None:
    t5 = ARCHITECTURES["T5ForConditionalGeneration"]
    assert task_for(t5, alias) is TASKS["text2text-generation"]
    with pytest.raises(LaunchError, match="made for text-generation, not for text2text-generation"):
        task_for(describe(directory).architecture, alias)


def test_model_and_its_dimensions_contradict_each_other(directory: Path, tmp_path: Path) -> None:
    done = run("train", f"--model={directory}", "--dim=8", f"--checkpoint_dir={tmp_path}")
    assert done.returncode == 1
    assert "so --dim cannot be given too" in done.stderr


@pytest.mark.parametrize(
    ("file", "message"),
    [("model_index.json", "has neither a config.json nor"), ("x.gguf", "holds GGUF files")],
)
def test_what_is_no_checkpoint_is_not_converted(tmp_path: Path, file: str, message: str) -> None:
    (tmp_path / file).write_text("{}")
    with pytest.raises(LaunchError, match=message):
        convert(tmp_path, tmp_path / "target", None)


def test_conversion_overwrites_nothing(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(LaunchError, match="is not empty, and nothing is overwritten"):
        convert(directory, tmp_path, None)
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_a_window_beyond_the_context_is_refused(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="--seq_len=65 is longer than the model's context of 64"):
        train(from_path(directory), config(tmp_path / "run", seq_len=65))


def test_an_empty_prompt_and_one_beyond_the_context_are_refused(directory: Path) -> None:
    writer = load_directory(directory, "data=1")
    otherwise = GREEDY._replace(max_new_tokens=1)
    for prompt, error, message in (
        ("", LaunchError, "the prompt is empty"),
        ("xy" * 65, ModelsError, r"the prompt has 130 tokens, but .* context is 64"),
    ):
        with pytest.raises(error, match=message):
            generate_text(writer, prompt=prompt, otherwise=otherwise, seed=0)


def test_assistance_leaves_the_text_as_it_is(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = load_directory(directory, "data=1")
    alone = text_of(writer, capsys)
    assert text_of(writer, capsys, assistance=Assistance(4)) == alone
    assert text_of(writer, capsys, assistance=Assistance(4, writer.model)) == alone


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["bytes", "file"])
def test_text_survives_any_pieces(tmp_path: Path, text: str, kind: str) -> None:
    byte_pairs().save(str(tmp_path / "tokenizer.json"))
    tokenizer = ByteTokenizer() if kind == "bytes" else FileTokenizer(tmp_path / "tokenizer.json")
    tokens = tokenizer.encode(text, marks=False)
    assert tokens.dtype == np.int32
    for size in (1, 3):
        stream = tokenizer.stream()
        pieces = [stream.feed(tokens[i : i + size]) for i in range(0, len(tokens), size)]
        assert "".join(pieces) + stream.finish() == text


@pytest.mark.parametrize("text", ["größer ≠ kleiner", "🎉", "≠≠≠"])
def test_a_text_may_end_within_a_character(tmp_path: Path, text: str) -> None:
    """It ends as the library's own `decode` has it."""
    made = byte_pairs()
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = FileTokenizer(tmp_path / "tokenizer.json")
    tokens = tokenizer.encode(text, marks=False).tolist()
    for end in range(1, len(tokens) + 1):
        stream = tokenizer.stream()
        assert stream.feed(tokens[:end]) + stream.finish() == made.decode(tokens[:end])


def test_tokenizers_must_suit_the_model(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"holds no tokenizer\.json.*needs 256 tokens"):
        find_tokenizer(tmp_path, 100)
    assert isinstance(find_tokenizer(tmp_path, 256), ByteTokenizer)
    byte_pairs().save(str(tmp_path / "tokenizer.json"))
    assert 256 < find_tokenizer(tmp_path, VOCAB).size <= VOCAB
    with pytest.raises(LaunchError, match=r"needs \d+ tokens, but the model's vocabulary has 256"):
        find_tokenizer(tmp_path, 256)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(LaunchError, match="cannot be used as a tokenizer"):
        find_tokenizer(tmp_path, VOCAB)


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json", "merges.txt", "vocab.txt"])
def test_files_of_other_tokenizers_are_not_read_as_bytes(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(LaunchError, match=rf"holds the tokenizer files {name} .*save_pretrained"):
        find_tokenizer(tmp_path, 256)


def test_a_vocabulary_with_merges_is_a_tokenizer(tmp_path: Path) -> None:
    whole = byte_pairs()
    whole.model.save(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2TokenizerFast"}')
    tokenizer = find_tokenizer(tmp_path, VOCAB)
    for text in TEXTS:
        assert tokenizer.encode(text, marks=False).tolist() == whole.encode(text).ids


def test_rows_that_have_ended_are_filled_with_a_stop_token(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert read_generation(tmp_path, Fields({}, "the test")).ending == Ending((7, 9), pad_token=7)
    padded = Fields({"pad_token_id": 3}, "the test")
    assert read_generation(tmp_path, padded).ending == Ending((7, 9), pad_token=3)


SUMMARIES = {  # as of facebook/bart-large-cnn
    "bos_token_id": 0,
    "decoder_start_token_id": 2,
    "early_stopping": True,
    "eos_token_id": 2,
    "forced_bos_token_id": 0,
    "forced_eos_token_id": 2,
    "length_penalty": 2.0,
    "max_length": 142,
    "min_length": 56,
    "no_repeat_ngram_size": 3,
    "num_beams": 4,
    "pad_token_id": 1,
}
DRAWS = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1}


@pytest.mark.parametrize(
    ("file", "given", "start", "expected"),
    [
        ({}, {}, 0, GREEDY),
        (
            SUMMARIES,
            {},
            1,
            Generation(
                Sampling(temperature=0),
                141,
                Ending((2,), 1),
                Constraints(1.0, 3, 55, 0, (2,)),
                Beams(4, 2.0, early_stopping=True),
            ),
        ),
        (
            SUMMARIES,
            {"num_beams": 1, "max_new_tokens": 5, "no_repeat_ngram_size": 0},
            1,
            Generation(
                Sampling(temperature=0), 5, Ending((2,), 1), Constraints(1.0, 0, 55, 0, (2,))
            ),
        ),
        (DRAWS, {}, 0, Generation(Sampling(0.6, 50, 0.9), 20, Ending(), Constraints(1.1))),
        (
            DRAWS,
            {"temperature": 0.0},
            0,
            Generation(Sampling(0.0, 50, 0.9), 20, Ending(), Constraints(1.1)),
        ),
        ({"temperature": 0.6}, {}, 0, GREEDY),
    ],
    ids=["nothing", "summaries", "flags", "draws", "greedy-flag", "no-draws"],
)
def test_flags_win_over_the_file_and_it_over_the_program(
    tmp_path: Path, file: dict[str, Any], given: dict[str, Any], start: int, expected: Generation
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(file))
    fields = read_generation(tmp_path, Fields({}, "the test"))
    assert fields.resolve(given, GREEDY, start=start) == expected


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ({"penalty_alpha": 0.6}, "penalty_alpha=0.6: this is not supported"),
        ({"num_beam_groups": 2, "num_beams": 4}, "num_beam_groups=2: this is not supported"),
        ({"bad_words_ids": [[5, 6]]}, "bad_words_ids=.*: this is not supported"),
        ({"do_sample": True, "typical_p": 0.6}, "typical_p=0.6: this is not supported"),
        ({"do_sample": True, "temperature": float("nan")}, "temperature=nan"),
        ({"suppress_tokens": [10**12]}, "suppress_tokens=.*: it must be a token ID or a list"),
        ({"forced_eos_token_id": 1.5}, "forced_eos_token_id=1.5: it must be a token ID or a list"),
        ({"max_new_tokens": 10**30}, "max_new_tokens=10+: it must be a number from 1 to"),
        ({"num_beams": 2, "length_penalty": float("nan")}, "length_penalty=nan: it must be a"),
    ],
)
def test_files_that_ask_for_other_ways_to_choose_tokens_are_refused(
    tmp_path: Path, file: dict[str, Any], message: str
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(file))
    fields = read_generation(tmp_path, Fields({}, "the test"))
    with pytest.raises(ModelsError, match=message):
        fields.resolve({}, GREEDY)


def test_tokens_below_zero_stand_for_none(tmp_path: Path) -> None:
    file = {"eos_token_id": [7, -1], "pad_token_id": -1, "forced_bos_token_id": -1}
    (tmp_path / "generation_config.json").write_text(json.dumps(file))
    fields = read_generation(tmp_path, Fields({}, "the test"))
    assert fields.ending == Ending((7,), 7)
    assert fields.resolve({}, GREEDY, start=1).constraints == Constraints()


def test_files_that_name_what_has_no_effect_are_not_refused(tmp_path: Path) -> None:
    neutral = {"penalty_alpha": 0.0, "num_beam_groups": 1, "typical_p": 1.0, "bad_words_ids": None}
    (tmp_path / "generation_config.json").write_text(json.dumps({**neutral, "eta_cutoff": 0.5}))
    fields = read_generation(tmp_path, Fields({}, "the test"))
    assert fields.resolve({}, GREEDY) == GREEDY


def test_what_belongs_to_a_model_is_copied_and_nothing_is_overwritten(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    for name in COMPANIONS:
        (source / name).write_text(name)
    (target / "tokenizer.json").write_text("precious")
    copy_companions(source, target)
    texts = {file.name: file.read_text() for file in target.iterdir()}
    assert texts == {**{name: name for name in COMPANIONS}, "tokenizer.json": "precious"}


def test_the_default_mesh_fits(directory: Path) -> None:
    model = load_directory(directory, None).model
    assert all(len(p.sharding.device_set) == jax.device_count() for p in model.parameters.values())
