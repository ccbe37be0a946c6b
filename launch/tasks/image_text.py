"""An image and a question about it become text."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from launch import draws
from launch.chat_template import read_chat_template
from launch.errors import DataError
from launch.tasks.media_reader import open_model, read_pixels
from launch.tasks.task import Request, Task
from launch.tasks.text_reader import parts_of
from launch.text import FileTokenizer, needed_tokenizer
from models.generate import generate
from models.pretrained import Pretrained
from models.weights.generation import read_generation


class Marks(NamedTuple):
    """The special tokens that stand for an image in a text."""

    image: str  # written by people and chat templates
    token: str  # that stands for a token of the image
    before: str
    after: str


# As the processors of transformers write it; of Idefics3, without cutting images into tiles.
MARKS: Mapping[str, Marks] = {
    "gemma3": Marks(
        "<start_of_image>",
        "<image_soft_token>",
        "\n\n<start_of_image>",
        "<end_of_image>\n\n",
    ),
    **dict.fromkeys(
        ("idefics3", "smolvlm"),
        Marks(
            "<image>",
            "<image>",
            "<fake_token_around_image><global-img>",
            "<fake_token_around_image>",
        ),
    ),
}
"""The marks by the `model_type` of the model."""


def _run(request: Request) -> None:
    name, prompt = parts_of(request, "an image file and a prompt", count=2)[:2]
    pixels = read_pixels(request.directory, Path(name))
    tokenizer = FileTokenizer(needed_tokenizer(request.directory))
    model = open_model(request)
    wanted = read_generation(request.directory, model.fields).resolve(
        request.given, request.generation
    )
    for text in generate(
        model.graph,
        model.parameters,
        _prompt(request.directory, model, tokenizer, prompt)[None],
        inputs={"pixels": pixels[None]},
        context=model.config.max_seq_len,
        boundaries=model.config.boundaries,
        key=draws.key(request.seed),
        **wanted._asdict(),
    ):
        stream = tokenizer.stream()
        sys.stdout.write(stream.feed(text) + stream.finish() + "\n")


def _prompt(
    directory: Path, model: Pretrained, tokenizer: FileTokenizer, prompt: str
) -> np.ndarray:
    """The tokens of a conversation that shows the image and asks; without a chat template, of the
    image and the prompt alone. Raises DataError if the image is not in it exactly once."""
    marks = MARKS[model.architecture.model_type]
    template = read_chat_template(directory)
    text = marks.image + prompt
    if template is not None:
        content = [{"type": "image"}, {"type": "text", "text": prompt}]
        messages = [{"role": "user", "content": content}]
        text = template.render(messages, add_generation_prompt=True).text
    image = marks.before + marks.token * model.config.image_tokens + marks.after
    tokens = tokenizer.encode(text.replace(marks.image, image), marks=template is None)
    count = int(np.sum(tokens == model.config.image_token))
    if count != model.config.image_tokens:
        raise DataError(
            f"the prompt of {directory} has {count} image tokens, but one image has "
            f"{model.config.image_tokens}. Check that the tokenizer belongs to the model, and "
            f"that its chat template writes {marks.image} for an image."
        )
    return tokens


TASK = Task("image-text-to-text", "an image file | a question about it", _run)
