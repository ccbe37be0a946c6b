"""Losses of fine-tuning, and their gradients, against transformers; preferences against TRL's
formulas in PyTorch. Batches are what the tasks make of records, with all their padding."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from launch.config import TrainConfig
from launch.data.batches import held_out_batches
from launch.data.config import DataConfig
from launch.finetuning.jobs import tuning_job
from launch.finetuning.reference import add_copies, without_copies
from launch.finetuning.settings import TuningSettings
from launch.finetuning.tasks import TASKS
from launch.training.objectives import LabelLoss
from models import pretrained
from models.parameters import Parameters, merge
from tests.models.tiny import random_model
from tests.quick_compile import QUICK_COMPILE
from tests.training.task_cases import CASES, write_case

pytest.importorskip("torch", reason="the reference needs the extra `parity`")
pytest.importorskip("transformers", reason="the reference needs the extra `parity`")
import torch
import transformers
from torch.nn import functional

ROWS = 8
BETA, SMOOTHING, LAMBDA = 0.3, 0.2, 0.4
SETTINGS = {
    "dpo_beta": BETA,
    "dpo_label_smoothing": SMOOTHING,
    "orpo_lambda": LAMBDA,
    "mlm_probability": 1.0,
}
IGNORED = -100  # a label that does not count
NAMES = {"tokens": "input_ids", "real": "attention_mask", "types": "token_type_ids"}

CONSTANT = ("running_mean", "running_var", "num_batches_tracked", "encoder.embed_positions.weight")
"""What gradients do not train: statistics, and the sines of Whisper's encoder."""

Batch = Mapping[str, Any]


def tensors(batch: Batch) -> dict[str, Any]:
    """The batch in PyTorch, whole numbers in 64 bits."""
    whole = jax.tree.map(lambda x: x.astype(np.int64) if x.dtype.kind in "ib" else x, dict(batch))
    return jax.tree.map(torch.from_numpy, whole)


def labels_of(batch: Batch, name: str = "targets") -> torch.Tensor:
    return torch.where(batch["weights"] > 0, batch[name], IGNORED)


def inputs_of(batch: Batch) -> dict[str, torch.Tensor]:
    return {NAMES[name]: batch[name] for name in NAMES if name in batch}


def answers(model: Any, batch: Batch) -> torch.Tensor:
    """Packed texts: nobody attends to another text, and positions begin anew."""
    segments = batch["segments"]
    causal = torch.ones(segments.shape[1], segments.shape[1], dtype=torch.bool).tril()
    seen = (segments[:, :, None] == segments[:, None, :]) & causal
    hidden = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[:, None]
    logits = model(
        input_ids=batch["tokens"], attention_mask=hidden, position_ids=batch["positions"]
    ).logits
    return functional.cross_entropy(
        logits.flatten(0, 1), labels_of(batch).flatten(), ignore_index=IGNORED
    )


def log_probabilities(model: Any, text: Batch) -> torch.Tensor:
    """As `DPOTrainer` sums them: of the tokens of each answer."""
    logits = model(input_ids=text["tokens"]).logits
    own = torch.gather(logits.log_softmax(-1), 2, text["targets"][:, :, None])[:, :, 0]
    return (own * (text["weights"] > 0)).sum(-1)


def direct_preference(model: Any, batch: Batch) -> torch.Tensor:
    """`DPOTrainer` with the loss `sigmoid`; the reference is the model that training began with,
    whose weights are half of these."""
    with torch.no_grad():
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict({name: value / 2 for name, value in weights.items()})
        before = {name: log_probabilities(model, batch[name]) for name in ("chosen", "rejected")}
        model.load_state_dict(weights)
    chosen, rejected = (log_probabilities(model, batch[name]) for name in ("chosen", "rejected"))
    logits = (chosen - rejected) - (before["chosen"] - before["rejected"])
    losses = (
        -functional.logsigmoid(BETA * logits) * (1 - SMOOTHING)
        - functional.logsigmoid(-BETA * logits) * SMOOTHING
    )
    return losses.mean()


def odds_ratio(model: Any, batch: Batch) -> torch.Tensor:
    """`ORPOTrainer`'s odds; the likelihood is that of answers, as in the paper."""
    chosen, rejected = (
        log_probabilities(model, batch[name]) / batch[name]["weights"].sum(-1)
        for name in ("chosen", "rejected")
    )
    log_odds = (chosen - rejected) - (
        torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected))
    )
    return (-chosen - LAMBDA * functional.logsigmoid(log_odds)).mean()


def classification(model: Any, batch: Batch) -> torch.Tensor:
    """Classes where labels are whole numbers; several at once, or numbers, as the config says."""
    labels = batch["labels"]
    if not labels.is_floating_point():
        labels = labels_of(batch, "labels")
    return model(**inputs_of(batch), labels=labels).loss


def multiple_choice(model: Any, batch: Batch) -> torch.Tensor:
    """Questions with fewer choices have one that is not to be chosen."""
    scores = model(**inputs_of(batch)).logits
    scores = torch.where(batch["choices"] > 0, scores, -1e30)
    return functional.cross_entropy(scores, batch["labels"])


def question_answering(model: Any, batch: Batch) -> torch.Tensor:
    places = {"start_positions": batch["begins"], "end_positions": batch["ends"]}
    return model(**inputs_of(batch), **places).loss


def hidden_words(model: Any, batch: Batch) -> torch.Tensor:
    """`hidden` is what the model was shown: BERT's labels are the tokens that were chosen."""
    labels = torch.where(batch["choosable"] > 0, batch["tokens"], IGNORED)
    return model(**inputs_of({**batch, "tokens": batch["hidden"]}), labels=labels).loss


def translation(model: Any, batch: Batch) -> torch.Tensor:
    done = model(
        input_ids=batch["source"],
        attention_mask=batch["real"],
        decoder_input_ids=batch["tokens"],
        labels=labels_of(batch),
    )
    return done.loss


def images(model: Any, batch: Batch) -> torch.Tensor:
    pixels = batch["pixels"].permute(0, 3, 1, 2)
    return model.eval()(pixel_values=pixels, labels=batch["labels"]).loss


def speech(model: Any, batch: Batch) -> torch.Tensor:
    done = model(
        input_features=batch["features"].transpose(1, 2),
        decoder_input_ids=batch["tokens"],
        labels=labels_of(batch),
    )
    return done.loss


def _real_samples(model: Any, batch: Batch) -> torch.Tensor:
    """[B, N]: of samples transformers takes as many as the frames need."""
    samples = batch["frames"]
    config = model.config
    for window, stride in zip(config.conv_kernel[::-1], config.conv_stride[::-1], strict=True):
        samples = (samples - 1) * stride + window
    return torch.arange(batch["sound"].shape[1]) < samples[:, None]


def letters(model: Any, batch: Batch) -> torch.Tensor:
    """The mean over letters."""
    said = torch.arange(batch["letters"].shape[1]) < batch["count"][:, None]
    labels = torch.where(said, batch["letters"], IGNORED)
    done = model(
        input_values=batch["sound"],
        attention_mask=_real_samples(model, batch).long(),
        labels=labels,
    )
    return done.loss / batch["count"].sum()


def sounds(model: Any, batch: Batch) -> torch.Tensor:
    """Of waveforms transformers is told which samples are real."""
    inputs = {"input_values": batch["sound"]}
    if "frames" in batch:
        inputs["attention_mask"] = _real_samples(model, batch).long()
    return model(**inputs, labels=batch["labels"]).loss


REFERENCES: Mapping[str, Callable[[Any, Batch], torch.Tensor]] = {
    "sft": answers,
    "dpo": direct_preference,
    "orpo": odds_ratio,
    "text-classification": classification,
    "token-classification": classification,
    "multiple-choice": multiple_choice,
    "question-answering": question_answering,
    "fill-mask": hidden_words,
    "text-to-text": translation,
    "image-classification": images,
    "audio-classification": sounds,
    "speech-recognition": speech,
    "ctc-speech-recognition": letters,
}


def smoothed(share: float) -> Callable[..., torch.Tensor]:
    """PyTorch's cross entropy with smoothed labels, whoever calls it."""
    plain = functional.cross_entropy

    def loss(*args: Any, **settings: Any) -> torch.Tensor:
        return plain(*args, **settings | {"label_smoothing": share})

    return loss


class Shown:
    """A model that remembers which tokens it was shown."""

    def __init__(self, model: Any) -> None:
        self.model, self.tokens = model, None

    def __call__(self, **inputs: jax.Array) -> Any:
        self.tokens = inputs["tokens"]
        return self.model(**inputs)


def test_every_task_has_a_reference() -> None:
    assert set(REFERENCES) == set(TASKS)


@pytest.mark.parametrize(
    ("name", "smoothing"),
    [
        *((name, 0.0) for name in CASES if "with adapters" not in name),
        ("question-answering", 0.2),
        ("text-to-text", 0.2),
    ],
)
def test_loss_and_gradients(
    name: str, smoothing: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if smoothing:
        monkeypatch.setattr(functional, "cross_entropy", smoothed(smoothing))
    case = CASES[name]
    source, base = tmp_path / "source", tmp_path / "base"
    data = DataConfig(data=write_case(case, source), held_out_fraction=0.0)
    settings = TuningSettings(**{**case.settings, **SETTINGS})
    of_labels = LabelLoss(label_smoothing_factor=smoothing)
    config = TrainConfig(checkpoint_dir=tmp_path, data=data, of_labels=of_labels)
    job = tuning_job(case.task, source, settings, config)
    rows = list(islice(job.data.rows, ROWS - 1))
    (batch,) = held_out_batches(rows, ROWS)  # the last row is empty and does not count

    model = random_model(job.model.fields.values)
    pretrained.save(base, model)
    weights = model.parameters
    if TASKS[case.task].reference:
        halves = {path: value / 2 for path, value in weights.items()}
        weights = {**add_copies(halves), **weights}
    loss, gradients, shown = ours(job, weights, batch)

    reference = getattr(transformers, model.architecture.name).from_pretrained(base)
    kept = jax.tree.map(lambda array: array[: ROWS - 1], dict(batch))
    kept = kept if shown is None else {**kept, "hidden": np.asarray(shown)[: ROWS - 1]}
    expected = REFERENCES[case.task](reference, tensors(kept))
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
    expected.backward()
    pretrained.save(tmp_path / "gradients", model._replace(parameters=gradients))
    found = load_file(tmp_path / "gradients" / "model.safetensors")
    wanted = gradients_of(reference, tmp_path / "expected")
    assert found.keys() <= wanted.keys()
    compared = {key for key in found if not key.endswith(CONSTANT)}
    largest = max(float(np.abs(wanted[key]).max()) for key in compared)
    for key in compared:
        if key.endswith("word_embeddings.weight"):  # PyTorch's padding_idx keeps padding as it is
            found[key][reference.config.pad_token_id] = 0
            wanted[key][reference.config.pad_token_id] = 0
        atol = share_rounded(loss, batch) * largest
        np.testing.assert_allclose(found[key], wanted[key], rtol=0, atol=atol, err_msg=key)


def share_rounded(loss: float, batch: Batch) -> float:
    """What rounding to float32 may change of the largest gradient.

    A CTC loss adds the chances of paths as logarithms, which grow to the nats of a whole sequence
    and are rounded at that size.
    """
    letters = int(batch["count"].max()) if "count" in batch else 0
    return 2e-5 + letters * loss * float(np.finfo(np.float32).eps)


def test_z_loss_and_smoothed_labels() -> None:
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(7, 33)).astype(np.float32), rng.integers(0, 33, 7)
    found = LabelLoss(label_smoothing_factor=0.1, z_loss_coef=0.01)(logits, labels)
    ours, targets = torch.from_numpy(logits), torch.from_numpy(labels)
    nats = functional.cross_entropy(ours, targets, reduction="none")
    loss = functional.cross_entropy(ours, targets, reduction="none", label_smoothing=0.1)
    np.testing.assert_allclose(found.nats, nats, rtol=1e-5)
    np.testing.assert_allclose(found.loss, loss + 0.01 * ours.logsumexp(-1) ** 2, rtol=1e-5)


def gradients_of(model: Any, directory: Path) -> dict[str, np.ndarray]:
    """The gradients of a model by the names that its weights have in files."""
    for parameter in model.parameters():
        gradient = parameter.grad
        parameter.data = torch.zeros_like(parameter) if gradient is None else gradient
    model.save_pretrained(directory)
    return load_file(directory / "model.safetensors")


def ours(job: Any, weights: Parameters, batch: Batch) -> tuple[float, Parameters, Any]:
    """The mean loss, its gradients by path, and tokens as they were shown, where some are not."""
    graph, _ = job.model.architecture.abstract(job.model.config)

    @partial(jax.jit, compiler_options=QUICK_COMPILE)
    @partial(jax.value_and_grad, has_aux=True)
    def run(weights: Parameters, batch: Batch) -> Any:
        model: Any = merge(graph, weights)
        model = Shown(model) if "choosable" in batch else model
        loss = job.objective(model, batch, None)
        return loss.total / loss.weight, getattr(model, "tokens", None)

    (loss, shown), gradients = run(weights, batch)
    return float(loss), without_copies(gradients), shown
