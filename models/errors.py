"""Faults the user can act on. The message says what was asked, what was found and what to do."""


class ModelsError(ValueError):
    """Anything below."""


class ConfigError(ModelsError):
    """The settings of a model do not fit together, or ask for something that is not supported."""


class WeightsError(ModelsError):
    """The files or tensors of a checkpoint cannot be used."""


class ShardingError(ModelsError):
    """A parameter cannot be split over the mesh as the tables say."""


class GenerationError(ModelsError):
    """The prompt or the length of a generation does not suit the model."""


class InputError(ModelsError):
    """An image, a sound or a text does not suit the model."""
