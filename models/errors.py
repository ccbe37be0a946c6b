"""Errors that the user can act on: messages give what was asked, what was there and what to do."""


class ModelsError(ValueError):
    """Anything below."""


class ConfigError(ModelsError):
    """The settings of a model do not fit together, or ask for something that is not supported."""


class WeightsError(ModelsError):
    """The files or tensors of a checkpoint cannot be used."""


class ShardingError(ModelsError):
    """A parameter cannot be split over the mesh as the tables say."""


class GenerationError(ModelsError):
    """The prompt, or the length of the text to generate, does not suit the model."""


class InputError(ModelsError):
    """An image, a sound or a text does not suit the model."""
