"""Faults the user can act on. The message says what was asked, what was found and what to do."""


class LaunchError(Exception):
    """Anything below: a program prints its message alone and exits with code 1."""


class DataError(LaunchError):
    """The text cannot be read or does not suit the run."""


class MeshError(LaunchError):
    """The mesh does not fit the devices, the model or the batch."""


class ModelError(LaunchError):
    """The model's dimensions do not fit together."""


class SettingsError(LaunchError):
    """A setting of the run has no such value, or two of them contradict each other."""


class CheckpointError(LaunchError):
    """No usable checkpoint, or one that belongs to another run."""


class ProcessError(LaunchError):
    """The processes of a job do not come together, or the first one has ended."""


class DivergenceError(LaunchError):
    """The loss is not a finite number any more."""


class OutputError(LaunchError):
    """A file of the run cannot be written."""
