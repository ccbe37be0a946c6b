"""The model and the data of a training run."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from launch.config import TrainConfig
from launch.data.batches import Data
from launch.data.text_data import open_text
from launch.errors import DataError, ModelError
from launch.processes import announce
from launch.source import Source
from launch.text import Tokenizer
from launch.training.objectives import LanguageModelling, Objective
from models import pretrained
from models.generate import generate
from models.parameters import Parameters
from models.pretrained import Described
from models.sampling import Sampling

# The model, the mesh, and jax.ShapeDtypeStruct with shardings by path -> the weights to begin with.
FirstWeights = Callable[[Described, Mesh, Mapping[str, Any]], Parameters]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A model and its data: everything but how it is trained, which the configuration says.

    Attributes:
      model: the model, configured as the precision recipe requires.
      data: rows to train on and to evaluate.
      row_length: positions of a text, in `unit`s.
      texts: how many texts a row holds, each of that length.
      unit: what is counted, such as "token".
      loss_unit: what the loss is in; None = nats per unit.
      objective: what is minimised.
      trained: paths of the parameters that the optimizer changes; None = all.
      first_weights: the initial weights; None = random ones.
      identity: JSON that is equal only for the same task.
      record: JSON that checkpoints keep: what the model has beyond its config.json.
      files: the directory with the model's tokenizer.json, if there is one.
      sample: returns a text by the model, from its parameters and the number of the step.
      finish: called with the parameters after the last step, and its number.
    """

    model: Described
    data: Data
    row_length: int
    texts: int = 1
    unit: str
    loss_unit: str | None = None
    objective: Objective = field(default_factory=LanguageModelling)
    trained: Collection[str] | None = None
    first_weights: FirstWeights | None = None
    identity: Mapping[str, Any]
    record: Mapping[str, Any] = field(default_factory=dict)
    files: Path | None = None
    sample: Callable[[Parameters, int], str] = lambda parameters, step: "nothing"
    finish: Callable[[Parameters, int], None] = lambda parameters, step: None


def language_job(source: Source, config: TrainConfig) -> Job:
    """A decoder that is trained on text. Raises DataError for text that does not fit it."""
    model = with_capacity(source.model, config.expert_capacity_factor)
    model = model._replace(config=config.precision.resolve().configure(model.config))
    seq_len = row_length(config.seq_len, model.config.max_seq_len)
    data = open_text(
        config.data,
        source.tokenizer,
        vocab_size=model.config.vocab_size,
        seq_len=seq_len,
        seed=config.seed,
    )
    directory = source.weights

    def load(model: Described, mesh: Mesh, targets: Mapping[str, Any]) -> Parameters:
        assert directory is not None
        announce(f"reading the weights of {directory}")
        dtypes = {"dtype": model.config.dtype, "param_dtype": model.config.param_dtype}
        return pretrained.load(directory, mesh, **dtypes).parameters

    return Job(
        model=model,
        data=data,
        row_length=seq_len,
        unit=source.tokenizer.unit,
        objective=LanguageModelling(of_labels=config.of_labels),
        first_weights=None if directory is None else load,
        identity={},
        files=source.files,
        sample=partial(write_sample, model, source.tokenizer, config),
    )


def with_capacity(model: Described, factor: float | None) -> Described:
    """The model with experts limited to this multiple of their even share of a row's tokens; None
    leaves it unchanged. Raises ModelError for a model without experts."""
    if factor is None:
        return model
    experts = getattr(model.config, "experts", None)
    if experts is None:
        raise ModelError(
            f"--expert_capacity_factor={factor:g} needs a mixture of experts, but "
            f"{model.architecture.name} with this config has no experts. Leave it out."
        )
    limited = replace(experts, capacity_factor=factor)
    return model._replace(config=replace(model.config, experts=limited))


def write_sample(
    model: Described, tokenizer: Tokenizer, config: TrainConfig, parameters: Parameters, step: int
) -> str:
    """A decoder's continuation of the prompt in the settings."""
    monitor = config.monitor
    graph, _ = model.architecture.abstract(model.config)
    prompt = tokenizer.encode(monitor.sample_prompt, marks=True)
    tokens = generate(
        graph,
        parameters,
        prompt[None],
        max_new_tokens=monitor.sample_tokens,
        context=model.config.max_seq_len,
        boundaries=model.config.boundaries,
        sampling=Sampling(temperature=0.8),
        key=jax.random.key(config.seed + step),
        restart=True,
    )
    stream = tokenizer.stream()
    return monitor.sample_prompt + stream.feed(tokens[0]) + stream.finish()


def row_length(seq_len: int | None, context: int) -> int:
    """The training sequence length, in tokens. Raises DataError if the model's context is
    shorter."""
    if seq_len is not None and seq_len > context:
        raise DataError(
            f"--seq_len={seq_len} is longer than the model's context of {context} tokens. Choose "
            "a smaller --seq_len."
        )
    return seq_len or context
