"""What users ask for: `--speculative_config` is JSON with vLLM's names."""

import json
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path

from launch.serving.errors import ServingError

METHODS = ("ngram", "draft_model", "medusa", "eagle")
WITH_MODEL = METHODS[1:]
"""Methods that need a directory of a model, or of heads."""
MOST_GUESSES = 16


@dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """Raises ServingError for what does not go together."""

    num_speculative_tokens: int
    method: str = "draft_model"
    model: str | None = None  # directory of the draft model, or of the heads
    prompt_lookup_max: int = 4  # tokens of the end of a text that are looked up
    prompt_lookup_min: int = 2

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise _fault(f"method={self.method!r} is unknown; choose one of {', '.join(METHODS)}")
        if not 1 <= self.num_speculative_tokens <= MOST_GUESSES:
            raise _fault(f"num_speculative_tokens must be 1 to {MOST_GUESSES}")
        if not 1 <= self.prompt_lookup_min <= self.prompt_lookup_max:
            raise _fault("prompt_lookup_min must be positive, and at most prompt_lookup_max")

    @property
    def directory(self) -> Path:
        """The directory of the model."""
        assert self.model is not None
        return Path(self.model)


def read_speculative_config(
    text: str | None, with_model: Collection[str] = WITH_MODEL
) -> SpeculativeConfig | None:
    """None for nothing. `with_model`: the methods that need a model. Raises ServingError for
    anything that is no such JSON."""
    if text is None:
        return None
    try:
        values = json.loads(text)
    except ValueError as error:
        raise _fault(f"not JSON: {error}") from error
    types = {entry.name: entry.type for entry in fields(SpeculativeConfig)}
    if not isinstance(values, dict) or "num_speculative_tokens" not in values:
        raise _fault(f"write an object with num_speculative_tokens and some of {', '.join(types)}")
    for name, value in values.items():
        kind = int if name not in ("method", "model") else str
        if name not in types or type(value) is not kind:
            raise _fault(f"{name}={value!r}: the fields are {', '.join(types)}")
    config = SpeculativeConfig(**values)
    if (config.model is not None) != (config.method in with_model):
        raise _fault(
            f"method={config.method!r}, model={config.model!r}: model is for "
            f"{', '.join(with_model)}, which need it"
        )
    return config


def _fault(why: str) -> ServingError:
    return ServingError(f"--speculative_config: {why}")
