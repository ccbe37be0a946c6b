"""Text generation: continues a text."""

from launch.generator import generate_text, load_directory
from launch.tasks.task import Request, Task


def _run(request: Request) -> None:
    generate_text(
        load_directory(
            request.directory,
            request.mesh,
            request.dtype,
            pad=True,
            scan_layers=request.scan_layers,
        ),
        prompt=request.input,
        otherwise=request.generation,
        given=request.given,
        seed=request.seed,
    )


TASK = Task("text-generation", "the text to continue", _run)
