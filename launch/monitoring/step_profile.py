"""A profile of a few steps of a run."""

from contextlib import ExitStack
from pathlib import Path

from launch.emulation import profile
from launch.errors import OutputError
from launch.program import say


class StepProfile:
    """Records the given steps into a folder; call `before` and `after` around each step."""

    def __init__(self, steps: range, folder: Path) -> None:
        self._steps = steps
        self._folder = folder
        self._recording = ExitStack()
        self._is_recording = False

    def before(self, step: int) -> None:
        """Begins with the first of the steps that is taken."""
        if step in self._steps and not self._is_recording:
            self._recording.enter_context(profile(self._folder))
            self._is_recording = True

    def after(self, step: int) -> None:
        """Ends with the last of the steps, and writes the folder."""
        if self._is_recording and step == self._steps[-1]:
            self.close()

    def close(self) -> None:
        """Ends the recording, if one is under way, whatever steps are left."""
        if self._is_recording:
            self._is_recording = False
            try:
                self._recording.close()
            except OutputError as error:
                say(f"WARNING: {error}")
            else:
                say(f"the profile of the steps is in {self._folder}")
