"""What tasks other than language modelling minimise. Rows with a weight of 0 do not count."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from launch.finetuning.problems import PLAIN_CLASS, OneClass, TargetLoss, sum_losses
from launch.training.objectives import PLAIN, Batch, LabelLoss, Loss
from models.hashed_random import HASHED
from models.layers.dropout import set_dropout
from models.losses import NO_WORD, TokenLosses
from models.varying import vary, varying_axes

ENCODER_INPUTS = ("tokens", "real", "types", "segments", "positions")
_LEAST = -1e5  # the logarithm of no chance
_MASKED, _REPLACED = 0.8, 0.1  # of the chosen tokens; the rest stay as they are


@dataclass(frozen=True, kw_only=True)
class Classification:
    """The loss of `labels`: of texts [B], [B, L] or of tokens [B, T]."""

    of_targets: TargetLoss = PLAIN_CLASS

    def __call__(self, model: Any, batch: Batch, keys: jax.Array | None) -> Loss:
        """The mean over `weights` [B] or [B, T]."""
        _start(model, keys)
        logits = model(**_encoder_inputs(batch))["logits"]
        return self.of_targets(logits, batch["labels"], batch["weights"])


@dataclass(frozen=True, kw_only=True)
class ImageClassification:
    """The loss of `labels` [B] or [B, L] of `pixels` [B, H, W, C].

    Models with batch norms use the statistics of the batch in training, and move the running ones.
    """

    of_targets: TargetLoss = PLAIN_CLASS
    has_statistics: bool = False

    def __call__(self, model: Any, batch: Batch, keys: jax.Array | None) -> Loss:
        """The mean over `weights` [B]."""
        _start(model, keys)
        training = {"train": keys is not None} if self.has_statistics else {}
        logits = model(batch["pixels"], **training)
        return self.of_targets(logits, batch["labels"], batch["weights"])


@dataclass(frozen=True, kw_only=True)
class AudioClassification:
    """The loss of `labels` [B] or [B, L] of `sound`: of samples [B, N], of which the first `frames`
    [B] frames are real, or of spectrograms [B, F, M]."""

    of_targets: TargetLoss = PLAIN_CLASS

    def __call__(self, model: Any, batch: Batch, keys: jax.Array | None) -> Loss:
        """The mean over `weights` [B]."""
        _start(model, keys)
        inputs = (batch[name] for name in ("sound", "frames") if name in batch)
        return self.of_targets(model(*inputs), batch["labels"], batch["weights"])


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering:
    """The mean of the cross entropies of `begins` and `ends` [B], the first and the last token of
    the answer; `exact` says how often both are the likeliest."""

    of_labels: LabelLoss = PLAIN

    def __call__(self, model: Any, batch: Batch, keys: jax.Array | None) -> Loss:
        """The mean over `weights` [B]."""
        _start(model, keys)
        outputs = model(**_encoder_inputs(batch))
        pairs = (("start_logits", "begins"), ("end_logits", "ends"))
        losses = [self.of_labels(outputs[name], batch[place]) for name, place in pairs]
        right = [jnp.argmax(outputs[name], axis=-1) == batch[place] for name, place in pairs]
        exact = jnp.logical_and(*right)
        mean = TokenLosses(*((begin + end) / 2 for begin, end in zip(*losses, strict=True)))
        return sum_losses(mean, batch["weights"], exact=exact)


@dataclass(frozen=True, kw_only=True)
class MultipleChoice:
    """Cross entropy of `labels` [B], the right choices of questions, and their `accuracy`."""

    of_labels: LabelLoss = PLAIN

    def __call__(self, model: Any, batch: Batch, keys: jax.Array | None) -> Loss:
        """The mean over `weights` [B], of an encoder's inputs [B, C, T]; `choices` [B, C] says
        which of them there are."""
        _start(model, keys)
        logits = model(**_encoder_inputs(batch))["logits"]
        logits = jnp.where(batch["choices"], logits, NO_WORD)
        return OneClass(self.of_labels)(logits, batch["labels"], batch["weights"])


@dataclass(frozen=True, kw_only=True)
class MaskedLanguageModelling:
    """Cross entropy of tokens that were chosen at random, of which most are hidden.

    Devlin et al., "BERT", 2019, 3.1: of the chosen tokens 80 % become the mask, 10 % a random
    token, and 10 % stay. Every step draws anew; evaluation always draws the same for a row.
    """

    of_labels: LabelLoss = PLAIN
    mask_token: int
    vocab_size: int
    probability: float = 0.15  # with which a token is chosen

    def __call__(self, model: Any, batch: Batch, keys: jax.Array | None) -> Loss:
        """Over a batch of an encoder's inputs and `choosable` [B, T]; `accuracy` as a metric."""
        _start(model, keys)
        tokens = batch["tokens"]
        drawn = jax.vmap(_key_of_row)(tokens) if keys is None else jax.vmap(_fold_masks)(keys)
        chosen, hidden = jax.vmap(self._hide)(drawn, tokens, batch["choosable"])
        inputs = {**_encoder_inputs(batch), "tokens": hidden}
        return OneClass(self.of_labels)(model(**inputs)["logits"], tokens, chosen)

    def _hide(
        self, key: jax.Array, tokens: jax.Array, choosable: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """(which tokens [T] of a row are chosen, the row as the model sees it)."""
        choice, kind, other = jax.random.split(key, 3)
        chosen = choosable & jax.random.bernoulli(choice, self.probability, tokens.shape)
        kinds = jax.random.uniform(kind, tokens.shape)
        others = jax.random.randint(other, tokens.shape, 0, self.vocab_size, tokens.dtype)
        hidden = jnp.where(kinds < _MASKED, self.mask_token, tokens)
        hidden = jnp.where((kinds >= _MASKED) & (kinds < _MASKED + _REPLACED), others, hidden)
        return chosen, jnp.where(chosen, hidden, tokens)


@dataclass(frozen=True, kw_only=True)
class SequenceToSequence:
    """Cross entropy of `targets` [B, T] after `tokens` [B, T], given what stands at the source:
    a text (`source`, `real`) or a spectrogram (`features`)."""

    of_labels: LabelLoss = PLAIN

    def __call__(self, model: Any, batch: Batch, keys: jax.Array | None) -> Loss:
        """The mean over `weights` [B, T]; `accuracy` as a metric."""
        _start(model, keys)
        names = ("tokens", "source", "real", "features")
        logits = model(**{name: batch[name] for name in names if name in batch})
        return OneClass(self.of_labels)(logits, batch["targets"], batch["weights"])


@dataclass(frozen=True, kw_only=True)
class Letters:
    """The chance that frames spell the letters of a transcript, in whatever way. Graves et al.,
    "Connectionist Temporal Classification", 2006."""

    blank: int  # the token of no letter

    def __call__(self, model: Any, batch: Batch, keys: jax.Array | None) -> Loss:
        """The mean over letters, of a batch of `sound` [B, N], of which the first `frames` [B] are
        sound, and `letters` [B, L], of which the first `count` [B] are said."""
        _start(model, keys)
        logits = model(batch["sound"], batch["frames"])
        count, letters = batch["count"], batch["letters"]
        silence = jnp.arange(logits.shape[1]) >= model.config.outputs(batch["frames"])[:, None]
        unsaid = jnp.arange(letters.shape[1]) >= count[:, None]
        # optax has what a loop carries vary as this does.
        least = vary(jnp.float32(_LEAST), tuple(varying_axes(logits)))
        flags = (silence.astype(jnp.float32), letters, unsaid.astype(jnp.float32))
        nats = optax.ctc_loss(logits, *flags, blank_id=self.blank, log_epsilon=least)
        counted = count.astype(jnp.float32)
        return Loss(jnp.sum(jnp.where(count > 0, nats, 0.0)), jnp.sum(counted), {})


def _start(model: Any, keys: jax.Array | None) -> None:
    if keys is not None:
        set_dropout(model, keys)


def _encoder_inputs(batch: Batch) -> Mapping[str, jax.Array]:
    return {name: batch[name] for name in ENCODER_INPUTS if name in batch}


_fold_masks = partial(jax.random.fold_in, data=0x6D61736B)  # apart from dropout


def _key_of_row(tokens: jax.Array) -> jax.Array:
    places = jnp.arange(1, tokens.shape[0] + 1, dtype=jnp.uint32)
    return jax.random.fold_in(
        jax.random.key(0, impl=HASHED), jnp.sum(tokens.astype(jnp.uint32) * places)
    )
