"""Every task by its name."""

from collections.abc import Mapping

from launch.errors import ModelError
from launch.tasks import text_generation, text_to_text, text_understanding
from launch.tasks.task import Request, Task
from models.architecture import Architecture
from models.pretrained import describe

TASKS: Mapping[str, Task] = {
    task.name: task for task in (text_generation.TASK, text_to_text.TASK, *text_understanding.TASKS)
}


def run_checkpoint(request: Request, task: str | None) -> None:
    """Does the task, or what the checkpoint's architecture is made for.

    Raises LaunchError or ModelsError, which name what is missing, if it cannot.
    """
    task_for(describe(request.directory).architecture, task).run(request)


def task_for(
    architecture: Architecture, asked: str | None, tasks: Mapping[str, Task] = TASKS
) -> Task:
    """The task that was asked for, or the one the architecture is made for.

    Raises ModelError if there is no such task, or the architecture is made for another.
    """
    name = asked or architecture.task
    if name not in tasks:
        raise ModelError(
            f"{architecture.name} is supported, but the task {name!r} is not; there are "
            f"{', '.join(sorted(tasks)) or 'none'}"
        )
    if name != architecture.task:
        raise ModelError(
            f"{architecture.name} is made for {architecture.task}, not for {name}. Leave --task "
            "out, or give a checkpoint with another head."
        )
    return tasks[name]
