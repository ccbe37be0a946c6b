"""An image and a question about it become text."""

import sys
from pathlib import Path

import numpy as np

from launch import draws
from launch.chat_template import read_chat_template
from launch.images_in_text import ImageReading
from launch.tasks.media_reader import open_model
from launch.tasks.task import Request, Task
from launch.tasks.text_reader import parts_of
from launch.text import FileTokenizer, needed_tokenizer
from models.generate import generate
from models.images import open_image
from models.weights.generation import read_generation


def _run(request: Request) -> None:
    name, prompt = parts_of(request, "an image file and a prompt", count=2)[:2]
    image = open_image(Path(name))
    tokenizer = FileTokenizer(needed_tokenizer(request.directory))
    model = open_model(request)
    reading = ImageReading.of(request.directory, model.architecture.model_type, model.config)
    wanted = read_generation(request.directory, model.fields).resolve(
        request.given, request.generation
    )
    for text in generate(
        model.graph,
        model.parameters,
        _prompt(reading, tokenizer, prompt)[None],
        inputs={"pixels": reading.pixels(image)[None, None]},
        context=model.config.max_seq_len,
        boundaries=model.config.boundaries,
        key=draws.key(request.seed),
        **wanted._asdict(),
    ):
        stream = tokenizer.stream()
        sys.stdout.write(stream.feed(text) + stream.finish() + "\n")


def _prompt(reading: ImageReading, tokenizer: FileTokenizer, prompt: str) -> np.ndarray:
    """The tokens of a conversation that shows the image and asks; without a chat template, of the
    image and the prompt alone. Raises DataError if the image is not in it exactly once."""
    template = read_chat_template(reading.directory)
    text = reading.marks.image + prompt
    if template is not None:
        content = [{"type": "image"}, {"type": "text", "text": prompt}]
        messages = [{"role": "user", "content": content}]
        text = template.render(messages, add_generation_prompt=True).text
    return reading.encode(tokenizer, text, 1, marks=template is None)


TASK = Task("image-text-to-text", "an image file | a question about it", _run)
