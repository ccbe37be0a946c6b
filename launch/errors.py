"""Errors that the user can act on. The message says what was asked, what was found and what to
do."""


class LaunchError(Exception):
    """Base class of the errors below: a program prints only the message and exits with code 1."""


class DataError(LaunchError):
    """The text cannot be read or does not fit the run."""


class MeshError(LaunchError):
    """The mesh does not fit the devices, the model or the batch."""


class ModelError(LaunchError):
    """The model's dimensions do not fit together."""


class SettingsError(LaunchError):
    """A setting has an invalid value, or two settings contradict each other."""


class CheckpointError(LaunchError):
    """There is no usable checkpoint, or it belongs to another run."""


class ProcessError(LaunchError):
    """The processes of a job cannot connect, or the first one has ended."""


class DivergenceError(LaunchError):
    """The loss is no longer finite."""


class OutputError(LaunchError):
    """A file of the run cannot be written."""
