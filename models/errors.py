"""Errors that the user can act on: messages say what was asked, what was found and what to do."""


class ModelsError(ValueError):
    """Base class of the errors below."""


class ConfigError(ModelsError):
    """The settings of a model do not fit together, or ask for something that is not supported."""


class ArchitectureError(ConfigError, LookupError):
    """A file asks for an architecture that the registry does not have."""


class WeightsError(ModelsError):
    """The files or tensors of a checkpoint cannot be used."""


class ShardingError(ModelsError):
    """A parameter cannot be split over the mesh according to the sharding rules."""


class GenerationError(ModelsError):
    """The prompt or the length of the text to generate does not fit the model."""


class KernelError(ModelsError):
    """A kernel cannot do what a model asks of it."""


class InputError(ModelsError):
    """An image, a sound or a text does not fit the model."""
