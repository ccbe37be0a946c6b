"""Writes checkpoints in the background.

A checkpoint is written beside the others under a temporary name, with the checksums of its files,
and renamed once all of it is on the disk: after a kill at any moment, a step is either complete or
absent.
"""

import re
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from launch.checkpoints import retention
from launch.checkpoints.manifest import flush, write_manifest
from launch.checkpoints.reader import RECORD, steps
from launch.errors import CheckpointError

_UNFINISHED = f"*{ocp.utils.TMP_DIR_SUFFIX}*"
_LATE_WRITES_SECONDS = 5.0
"""How long writes of a failed save are waited for."""


class CheckpointWriter:
    """Saves checkpoints one at a time, and deletes those that `keep` does not retain.

    Under jax.distributed, every process creates one and calls it in the same way: each writes its
    own parts into a shared directory, and the first process writes everything else.
    """

    def __init__(self, directory: Path, keep: retention.Retention) -> None:
        self._directory = directory.absolute()
        self._keep = keep
        self._is_first = jax.process_index() == 0
        self._saving: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._items: tuple[str, ...] = ()
        self._size = 0  # bytes of the last checkpoint
        # The callback runs when all files are written, before the rename that makes them count.
        self._checkpointer = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(),
            async_options=ocp.AsyncOptions(post_finalization_callback=self._add_manifest),
        )
        if self._is_first:
            self._clear()

    def save(self, step: int, trees: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """Starts to save trees of arrays, by item name, and a JSON record.

        The arrays may be donated once this returns. Waits for the previous save first. Raises
        CheckpointError if either fails, for instance because the disk is full.
        """
        self.wait()
        if self._is_first:
            self._check_space(trees)
        self._items = (*trees, RECORD)
        args = {name: ocp.args.StandardSave(tree) for name, tree in trees.items()}
        args[RECORD] = ocp.args.JsonSave(dict(record))
        try:
            self._checkpointer.save(self._directory / str(step), ocp.args.Composite(**args))
        except (OSError, ValueError) as error:
            raise self._failure(error) from error
        self._saving = self._thread.submit(self._complete)

    def wait(self) -> None:
        """Waits until everything is saved. Raises CheckpointError if that fails."""
        saving, self._saving = self._saving, None
        if saving is None:
            return
        try:
            saving.result()
        except (OSError, ValueError) as error:
            raise self._failure(error) from error

    def check(self) -> None:
        """Raises CheckpointError if a save has failed in the meantime; never waits."""
        if self._saving is not None and self._saving.done():
            self.wait()

    def close(self) -> None:
        """Waits like `wait`; nothing can be saved afterwards."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            self._checkpointer.close()

    def _complete(self) -> None:
        self._checkpointer.wait_until_finished()
        if self._is_first:
            flush(self._directory)
            retention.delete(self._directory, self._keep.surplus(steps(self._directory)))

    def _add_manifest(self) -> None:
        # Only one save is under way at a time, and leftovers were removed at the start.
        for unfinished in self._directory.glob(_UNFINISHED):
            write_manifest(unfinished, self._items)
            self._size = sum(file.stat().st_size for file in unfinished.rglob("*"))

    def _clear(self) -> None:
        """Removes what a killed process left in the middle of writing or deleting."""
        for leftover in self._leftovers():
            shutil.rmtree(leftover)

    def _clear_after_failure(self) -> None:
        """Removes what a failed save left: its other writes end a little later than it does. What
        is still there then goes when the run is started again."""
        end = time.monotonic() + _LATE_WRITES_SECONDS
        while (leftovers := self._leftovers()) and time.monotonic() < end:
            for leftover in leftovers:
                shutil.rmtree(leftover, ignore_errors=True)
            time.sleep(0.05)

    def _leftovers(self) -> list[Path]:
        patterns = (_UNFINISHED, f"*{retention.GOING}")
        return [path for pattern in patterns for path in self._directory.glob(pattern)]

    def _check_space(self, trees: Mapping[str, Any]) -> None:
        arrays = sum(array.nbytes for array in jax.tree.leaves(dict(trees)))
        needed = max(arrays, self._size)
        free = shutil.disk_usage(self._directory).free
        if free < needed:
            raise self._failure(
                OSError(f"it needs {needed:,} bytes, but only {free:,} are free on the disk")
            )

    def _failure(self, error: Exception) -> CheckpointError:
        if self._is_first:
            self._clear_after_failure()
        return CheckpointError(
            f"cannot save a checkpoint in {self._directory}: {_reason(error)}. Earlier checkpoints "
            "are untouched. Free some space or give another --checkpoint_dir, then start again."
        )


def _reason(error: Exception) -> str:
    """What the operating system said, without the names of temporary files around it."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return re.sub(r".*: (\w[^:]*) \[os_error_code='\d+'\].*", r"\1", text, flags=re.DOTALL)
