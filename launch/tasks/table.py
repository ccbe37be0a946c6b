"""Every task by its name."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from launch.errors import ModelError
from launch.tasks import (
    image_places,
    image_text,
    media_understanding,
    painting,
    sentences,
    series,
    sounds,
    text_generation,
    text_to_text,
    text_understanding,
)
from launch.tasks.task import Request, Task
from models.diffusion.kinds import IMAGE_TO_IMAGE, INDEX_FILE, INPAINTING, TEXT_TO_IMAGE, kind_of
from models.pretrained import describe
from models.sentences.config import is_sentence_directory

TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        text_generation.TASK,
        text_to_text.TASK,
        *text_understanding.TASKS,
        *media_understanding.TASKS,
        *image_places.TASKS,
        *sounds.TASKS,
        series.TASK,
        sentences.TASK,
        image_text.TASK,
        *painting.TASKS,
    )
}

_FEATURES = ("feature-extraction", "image-feature-extraction", "audio-feature-extraction")
ALIASES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("summarization", "translation"), (text_to_text.TASK.name,)),
    "embed": (sentences.NAME,),
    "automatic-speech-recognition": ("automatic-speech-recognition", "ctc-speech-recognition"),
    "feature-extraction": _FEATURES,
    "semantic-segmentation": ("image-segmentation",),
    "inpaint": (INPAINTING,),
}
"""Names of transformers, optimum and diffusers -> the tasks that they may mean."""

ALSO: Mapping[str, tuple[str, ...]] = {
    TEXT_TO_IMAGE: (IMAGE_TO_IMAGE, INPAINTING),
    IMAGE_TO_IMAGE: (INPAINTING,),
}
"""Task of a pipeline -> others that the same models do."""


OF_PIPELINES: Mapping[str, str] = {
    "loras": "--lora",
    "controlnet": "--controlnet",
    "control": "--control",
    "ip_adapter": "--ip_adapter",
    "image_prompt": "--image_prompt",
    "steps": "--steps",
    "guidance": "--guidance",
    "strength": "--strength",
}
"""Fields of a request that only pipelines understand -> their flags."""


def run_checkpoint(request: Request, task: str | None) -> None:
    """Runs the task, or the one that the checkpoint's architecture is made for.

    Raises LaunchError or ModelsError, which name what is missing, if it cannot.
    """
    made = made_for(request.directory, task)
    chosen = task_for(made, task)
    request = replace(request, task=chosen.name)
    given = [flag for name, flag in OF_PIPELINES.items() if getattr(request, name)]
    if given and chosen not in painting.TASKS:
        raise ModelError(
            f"{', '.join(given)}: for pipelines that paint images, but {request.directory} is for "
            f"{chosen.name}. PEFT's adapters of language models: launch.serve --lora_modules."
        )
    chosen.run(request)


class Made(Protocol):
    """The kind of a checkpoint and the task it is made for: an Architecture or a pipeline."""

    @property
    def name(self) -> str: ...

    @property
    def task(self) -> str: ...


def made_for(directory: Path, task: str | None = None) -> Made:
    """The kind of the checkpoint in a directory; where its family has one for the task, that."""
    if (directory / INDEX_FILE).is_file():
        return kind_of(directory)
    if is_sentence_directory(directory):
        return sentences.SentenceDirectory()
    return describe(directory, tasks=_tasks_of(task)).architecture


def task_for(architecture: Made, requested: str | None, tasks: Mapping[str, Task] = TASKS) -> Task:
    """The requested task, or the one that the architecture is made for.

    Raises ModelError if there is no such task, or if the architecture is made for another.
    """
    able = (architecture.task, *ALSO.get(architecture.task, ()))
    meant = _tasks_of(requested or architecture.task)
    name = next((name for name in meant if name in able), meant[0])
    if name not in tasks:
        raise ModelError(
            f"{architecture.name} does not support the task {name!r}; its tasks: "
            f"{', '.join(sorted(tasks)) or 'none'}"
        )
    if name not in able:
        raise ModelError(
            f"{architecture.name} is made for {architecture.task}, not for {name}. Leave --task "
            "out, or give a checkpoint with another head."
        )
    return tasks[name]


def _tasks_of(task: str | None) -> tuple[str, ...]:
    """The tasks that a name may mean."""
    return () if task is None else ALIASES.get(task, (task,))
