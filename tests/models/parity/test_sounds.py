"""What models take of sounds, and the letters that they find, against transformers."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from models import pretrained
from models.ast.features import log_mel, read_spectrogram
from models.errors import ConfigError, InputError, WeightsError
from models.parameters import merge
from models.wav2vec2.letters import read_letters
from models.wav2vec2.samples import normalised, read_samples

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: the reference needs the extra `parity`"
)
torch = pytest.importorskip("torch", reason="torch is not installed")
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


def test_settings_lie_among_those_of_other_processors(tmp_path: Path) -> None:
    """Transformers 5 writes what a processor consists of into one file."""
    (tmp_path / "vocab.json").write_text(json.dumps({"<pad>": 0, "<unk>": 1, "|": 2, "A": 3}))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json"), pad_token="<pad>")
    extractor = transformers.Wav2Vec2FeatureExtractor(do_normalize=True)
    saved = tmp_path / "saved"
    transformers.Wav2Vec2Processor(extractor, tokenizer).save_pretrained(saved)
    assert not (saved / "preprocessor_config.json").exists()
    expected = extractor(SOUND, sampling_rate=16_000, return_tensors="np")["input_values"][0]
    np.testing.assert_allclose(normalised(SOUND, read_samples(saved)), expected, atol=1e-5)


def test_what_does_not_suit_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "preprocessor_config.json"
    file.write_text('{"feature_extractor_type": "WhisperFeatureExtractor"}')
    with pytest.raises(ConfigError, match="only ASTFeatureExtractor is supported"):
        read_spectrogram(tmp_path)
    file.write_text("{}")
    with pytest.raises(InputError, match=r"at least 400 samples"):
        log_mel(SOUND[:399], read_spectrogram(tmp_path))


@pytest.mark.parametrize("settings", [{}, {"do_normalize": False}], ids=["default", "as they are"])
def test_samples_are_those_of_the_extractor(settings: dict[str, object], tmp_path: Path) -> None:
    extractor = transformers.Wav2Vec2FeatureExtractor(**settings)
    extractor.save_pretrained(tmp_path)
    sound = 3 * SOUND + 1
    expected = extractor(sound, sampling_rate=16_000, return_tensors="np")["input_values"][0]
    np.testing.assert_allclose(normalised(sound, read_samples(tmp_path)), expected, atol=1e-5)


LETTERS = ["<pad>", "<s>", "</s>", "<unk>", "|", "a", "b", "c", "'"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"do_lower_case": True, "replace_word_delimiter_char": "_"},
        {"pad_token": "a", "word_delimiter_token": "b"},
        {"target_lang": "eng"},
    ],
    ids=["default", "lower case", "other marks", "languages"],
)
def test_letters_are_those_of_the_tokenizer(settings: dict[str, object], tmp_path: Path) -> None:
    letters = {letter: i for i, letter in enumerate([*LETTERS, "A", "B", "C"])}
    vocabulary = {"eng": letters, "deu": {}} if "target_lang" in settings else letters
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(tmp_path / "vocab.json", **settings)
    tokenizer.save_pretrained(tmp_path)
    ours = read_letters(tmp_path)
    rng = np.random.default_rng(0)
    for _ in range(20):
        tokens = np.repeat(rng.integers(0, len(letters) + 1, 12), rng.integers(1, 4, 12)).tolist()
        assert ours.text(tokens) == tokenizer.decode(tokens, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("vocab.json", '{"a": 0, "b": 0}', "must give every character its own ID"),
        ("vocab.json", '{"eng": {"a": 0}}', "several languages"),
        ("vocab.json", "[]", "must be a JSON object"),
        ("tokenizer_config.json", '{"target_lang": "eng"}', "no field 'eng'"),
    ],
)
def test_letters_that_do_not_suit_are_refused(
    file: str, text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / file).write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_letters(tmp_path)


@pytest.mark.parametrize("lower", [False, True])
def test_texts_are_spelled_as_the_tokenizer_does(lower: bool, tmp_path: Path) -> None:
    letters = {letter: number for number, letter in enumerate(["<pad>", "<unk>", "|", *"ABCab"])}
    (tmp_path / "vocab.json").write_text(json.dumps(letters))
    settings = {"do_lower_case": lower}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json"), **settings)
    for text in ("ab ba", "A?C", " b  a"):
        assert read_letters(tmp_path).encode(text) == tokenizer(text).input_ids


MMS = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "conv_dim": [8],
    "conv_kernel": [5],
    "conv_stride": [3],
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
    "do_stable_layer_norm": True,
    "adapter_attn_dim": 6,
    "vocab_size": 7,
}


@pytest.mark.parametrize("ending", ["safetensors", "bin"])
def test_the_language_of_the_tokenizer_chooses_the_adapter(ending: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.Wav2Vec2Config(**MMS)
    transformers.Wav2Vec2ForCTC(config).save_pretrained(tmp_path)
    config.vocab_size = 5
    weights = transformers.Wav2Vec2ForCTC(config)._get_adapters()
    tensors = {name: torch.randn_like(weight) for name, weight in weights.items()}
    file = tmp_path / f"adapter.deu.{ending}"
    if ending == "bin":
        torch.save(tensors, file)
    else:
        save_file({name: tensor.numpy() for name, tensor in tensors.items()}, file)
    (tmp_path / "tokenizer_config.json").write_text('{"target_lang": "deu"}')
    reference = transformers.Wav2Vec2ForCTC.from_pretrained(
        tmp_path, target_lang="deu", ignore_mismatched_sizes=True
    )
    sound = np.random.default_rng(0).normal(size=(2, 60)).astype(np.float32)
    with torch.no_grad():
        expected = reference.eval()(torch.from_numpy(sound)).logits.numpy()
    model = pretrained.load(tmp_path)
    logits = jax.jit(merge(model.graph, model.parameters))(sound)
    assert logits.shape[-1] == 5
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)


def test_a_language_without_an_adapter_is_refused(tmp_path: Path) -> None:
    transformers.Wav2Vec2ForCTC(transformers.Wav2Vec2Config(**MMS)).save_pretrained(tmp_path)
    (tmp_path / "adapter.deu.safetensors").touch()
    (tmp_path / "tokenizer_config.json").write_text('{"target_lang": "fra"}')
    with pytest.raises(WeightsError, match=r"adapters for deu only\. Download adapter\.fra"):
        pretrained.load(tmp_path)
