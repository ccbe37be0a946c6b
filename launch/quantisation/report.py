"""What narrow weights cost: errors of layers and logits, and perplexity."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from launch.data.batches import Batch
from models.layers.linear import Linear
from models.losses import cross_entropy
from models.parameters import merge
from models.pretrained import Pretrained


@dataclass(frozen=True)
class Layer:
    """Relative errors (Frobenius norms) of one linear map."""

    weights: float
    outputs: float  # on the same inputs


@dataclass(frozen=True)
class Accuracy:
    """A quantised model beside its reference."""

    reference_perplexity: float
    perplexity: float
    logits_error: float  # relative error (Frobenius norm)
    kl_divergence: float  # of the quantised from the reference distribution, nats per token
    same_token: float  # share of positions with the same likeliest token
    tokens: int
    reference_bytes: int  # of all weights
    weight_bytes: int
    layers: Mapping[str, Layer]
    left: Mapping[str, str]  # layers that stayed as they were, and why

    @property
    def perplexity_change(self) -> float:
        """The change of perplexity relative to the reference."""
        return self.perplexity / self.reference_perplexity - 1

    def text(self) -> str:
        """The report for a person."""
        lines = [
            f"perplexity {self.perplexity:.4f}, reference {self.reference_perplexity:.4f} "
            f"({self.perplexity_change:+.3%}) over {self.tokens} tokens",
            f"logits: relative error {self.logits_error:.2e}, KL {self.kl_divergence:.2e} nats, "
            f"same most likely token {self.same_token:.2%}",
            f"weights: {self.weight_bytes:,} bytes, reference {self.reference_bytes:,}",
        ]
        worst = sorted(self.layers, key=lambda name: self.layers[name].outputs, reverse=True)[:5]
        lines += [
            f"  {name}: weights {self.layers[name].weights:.2e}, "
            f"outputs {self.layers[name].outputs:.2e}"
            for name in worst
        ]
        lines += [f"  not quantised: {name} ({why})" for name, why in self.left.items()]
        return "\n".join(lines)

    def save(self, file: Path) -> None:
        """Writes the report as JSON."""
        values = {**asdict(self), "perplexity_change": self.perplexity_change}
        file.write_text(json.dumps(values, indent=1) + "\n")


class _Sums(NamedTuple):
    """Over the tokens of a batch."""

    reference_nats: Any
    nats: Any
    weight: Any
    squared_error: Any
    squared: Any
    divergence: Any
    same: Any


def measure(
    reference: Pretrained,
    quantised: Pretrained,
    batches: Sequence[Batch],
    left: Mapping[str, str],
) -> Accuracy:
    """Both models on batches with tokens, targets and weights [B, T]; errors of layers on the
    first batch."""
    graphs, parameters = (
        (reference.graph, quantised.graph),
        (reference.parameters, quantised.parameters),
    )
    sums = [jax.device_get(_compare_batch(graphs, parameters, batch)) for batch in batches]
    total = _Sums(*(sum(float(part) for part in column) for column in zip(*sums, strict=True)))
    layers = jax.device_get(_layers(graphs, parameters, batches[0]["tokens"]))
    return Accuracy(
        reference_perplexity=math.exp(total.reference_nats / total.weight),
        perplexity=math.exp(total.nats / total.weight),
        logits_error=math.sqrt(total.squared_error / total.squared),
        kl_divergence=total.divergence / total.weight,
        same_token=total.same / total.weight,
        tokens=int(total.weight),
        reference_bytes=_nbytes(reference),
        weight_bytes=_nbytes(quantised),
        layers={path: Layer(*map(float, errors)) for path, errors in layers.items()},
        left=left,
    )


def _nbytes(model: Pretrained) -> int:
    return sum(array.nbytes for array in model.parameters.values())


@partial(jax.jit, static_argnums=0)
def _compare_batch(graphs: tuple[Any, Any], parameters: tuple[Any, Any], batch: Batch) -> _Sums:
    first, second = (
        merge(graph, weights)(batch["tokens"])
        for graph, weights in zip(graphs, parameters, strict=True)
    )
    weights = batch["weights"]
    counted = weights[..., None]
    logs = [jax.nn.log_softmax(logits) for logits in (first, second)]
    divergence = jnp.sum(jnp.exp(logs[0]) * (logs[0] - logs[1]), axis=-1)
    same = jnp.argmax(first, axis=-1) == jnp.argmax(second, axis=-1)
    return _Sums(
        jnp.sum(weights * cross_entropy(first, batch["targets"])),
        jnp.sum(weights * cross_entropy(second, batch["targets"])),
        jnp.sum(weights),
        jnp.sum(counted * jnp.square(first - second)),
        jnp.sum(counted * jnp.square(first)),
        jnp.sum(weights * divergence),
        jnp.sum(weights * same),
    )


@partial(jax.jit, static_argnums=0)
def _layers(
    graphs: tuple[Any, Any], parameters: tuple[Any, Any], tokens: jax.Array
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Errors of weights and outputs of every narrow linear map, on the reference's inputs."""
    model, narrow = (
        merge(graph, weights) for graph, weights in zip(graphs, parameters, strict=True)
    )
    counterparts = {
        path: part for path, part in nnx.iter_modules(narrow) if isinstance(part, Linear)
    }
    errors: dict[str, tuple[jax.Array, jax.Array]] = {}
    for path, module in nnx.iter_modules(model):
        if isinstance(module, Linear) and counterparts[path].kernel_narrow is not None:
            name = ".".join(map(str, path))
            module.matmul = _Comparison(name, counterparts[path], errors)
    model(tokens)
    return errors


@dataclass(frozen=True)
class _Comparison:
    """A `Matmul` that lets another linear map do the same."""

    path: str
    other: Linear
    errors: dict[str, tuple[jax.Array, jax.Array]]
    history_length = 0

    def __call__(self, x: jax.Array, kernel: jax.Array, axes: int, history: None) -> jax.Array:
        y = jnp.tensordot(x, kernel, axes=axes)
        narrow = self.other.kernel_narrow
        assert narrow is not None
        stored = None if self.other.kernel is None else self.other.kernel[...]
        self.errors[self.path] = (
            _relative(narrow.wide(stored, jnp.float32), kernel),
            _relative(narrow.multiply(x, stored), y),
        )
        return y


def _relative(x: jax.Array, reference: jax.Array) -> jax.Array:
    x, reference = x.astype(jnp.float32), reference.astype(jnp.float32)
    return jnp.linalg.norm((x - reference).ravel()) / jnp.linalg.norm(reference.ravel())
