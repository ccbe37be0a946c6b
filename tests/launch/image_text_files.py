"""Directories of small language models that see images, with a tokenizer of words."""

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

from launch.images_in_text import MARKS
from tests.launch.random_models import write_model
from tests.models.parity.cases import GEMMA3, SMOLVLM

CONFIGS = {
    "Gemma3ForConditionalGeneration": GEMMA3,
    "SmolVLMForConditionalGeneration": SMOLVLM,
}
IMAGE_TOKEN, WORDS, SIDE = 90, 96, 24


def write_image_text(directory: Path, name: str, template: str | None) -> Path:
    """A random model of architecture `name`; in its chat template, @ stands for the mark of an
    image."""
    kind = name.removesuffix("ForConditionalGeneration")
    marks = MARKS[kind.lower()]
    special = [*(marks.before + marks.after).strip().replace("><", "> <").split(), marks.token]
    special = list(dict.fromkeys(word for text in special for word in text.split()))
    write_model(directory, name, CONFIGS[name])
    sizes = {"size": {"height": SIDE, "width": SIDE}}
    if kind != "Gemma3":
        sizes = {"size": {"longest_edge": SIDE}, "max_image_size": {"longest_edge": SIDE}}
    settings = {"image_processor_type": f"{kind}ImageProcessor", **sizes}
    chat = {} if template is None else {"chat_template": template.replace("@", marks.image)}
    (directory / "preprocessor_config.json").write_text(json.dumps(settings))
    (directory / "tokenizer_config.json").write_text(json.dumps(chat))
    first = ["<pad>", "<bos>", "<eos>", *(mark for mark in special if mark != marks.token)]
    words = [*first, "what", "is", "it", "answer"]
    words += [f"word{number}" for number in range(len(words), WORDS)]
    words[IMAGE_TOKEN] = marks.token
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.add_special_tokens(special)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory
