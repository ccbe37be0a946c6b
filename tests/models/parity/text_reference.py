"""The reference side of heads on encoders of text, and of text-to-text models."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, EncoderDecoderCache

from tests.models.parity.case import Case

Arrays = dict[str, np.ndarray]
Made = tuple[Arrays, dict[str, torch.Tensor], dict[str, Any] | None]

ROWS, CHOICES, PADDING = 4, 3, 4
NEW_TOKENS = 10
IGNORED = -100  # a label that does not count, in PyTorch
NAMES = {
    "tokens": "input_ids",
    "real": "attention_mask",
    "types": "token_type_ids",
    "languages": "langs",
}


class _Layers(EncoderDecoderCache):
    """FlauBERT with norms in front asks for the cache of a layer, of which there is none."""

    def __getitem__(self, layer: int) -> "_Layers":
        return self


def padded_texts(model: Any, case: Case, shape: tuple[int, ...], padding: int = PADDING) -> Arrays:
    """Texts, every second one shorter; with token types if the model tells them apart."""
    rng = np.random.default_rng(0)
    config = model.config
    inputs = {
        "tokens": rng.integers(3, config.vocab_size, (*shape, case.length)),
        "real": np.ones((*shape, case.length), bool),
    }
    inputs["real"][1::2, ..., case.length - padding :] = False
    inputs["tokens"][~inputs["real"]] = config.pad_token_id
    has_types = "token_type_ids" in inspect.signature(model.forward).parameters
    if has_types and getattr(config, "type_vocab_size", 0):  # GPT-2's would be tokens
        inputs["types"] = rng.integers(0, config.type_vocab_size, (*shape, case.length))
    if getattr(config, "use_lang_emb", False) and config.n_langs > 1:
        inputs["languages"] = rng.integers(0, config.n_langs, (*shape, case.length))
    return inputs


def run(model: Any, inputs: Arrays, **labels: np.ndarray) -> Any:
    """The reference's outputs."""
    arguments: dict[str, Any] = {
        NAMES[name]: torch.from_numpy(value) for name, value in inputs.items()
    }
    arguments["attention_mask"] = arguments["attention_mask"].long()
    if getattr(model.config, "pre_norm", False):
        arguments["cache"] = _Layers(DynamicCache(), DynamicCache())
    return model(**arguments, **{name: torch.from_numpy(value) for name, value in labels.items()})


def at_text(output: torch.Tensor, inputs: Arrays) -> torch.Tensor:
    """The output of every token [B, T, …], zero at padding: what is there has no meaning."""
    return output * torch.from_numpy(inputs["real"][..., None])


def _feature_extraction(model: Any, case: Case) -> Made:
    """The loss is a random linear function of the features at real tokens."""
    inputs = padded_texts(model, case, (ROWS,))
    done = run(model, inputs)
    weights = np.random.default_rng(1).normal(size=done.last_hidden_state.shape)
    weights = (weights * inputs["real"][..., None]).astype(np.float32)
    outputs = {"hidden": at_text(done.last_hidden_state, inputs)}
    loss = (done.last_hidden_state * torch.from_numpy(weights)).mean()
    if getattr(done, "pooler_output", None) is not None:
        outputs["pooled"] = done.pooler_output
        loss = loss + (done.pooler_output * torch.from_numpy(weights[:, 0])).mean()
    return {**inputs, "weights": weights}, outputs | {"loss": loss}, None


def _classification(model: Any, inputs: Arrays, labels: np.ndarray) -> Made:
    done = run(model, inputs, labels=labels)
    logits = at_text(done.logits, inputs) if done.logits.ndim == 3 else done.logits
    return {**inputs, "labels": labels}, {"logits": logits, "loss": done.loss}, None


def _labels(shape: tuple[int, ...], count: int) -> np.ndarray:
    return np.random.default_rng(2).integers(0, count, shape)


def _fill_mask(model: Any, case: Case) -> Made:
    inputs = padded_texts(model, case, (ROWS,))
    labels = _labels(inputs["tokens"].shape, model.config.vocab_size)
    labels[:, ::3] = IGNORED
    labels[~inputs["real"]] = IGNORED
    return _classification(model, inputs, labels)


def _text_classification(model: Any, case: Case) -> Made:
    inputs = padded_texts(model, case, (ROWS,))
    return _classification(model, inputs, _labels((ROWS,), model.config.num_labels))


def _token_classification(model: Any, case: Case) -> Made:
    inputs = padded_texts(model, case, (ROWS,))
    labels = _labels(inputs["tokens"].shape, model.config.num_labels)
    labels[~inputs["real"]] = IGNORED
    return _classification(model, inputs, labels)


def _multiple_choice(model: Any, case: Case) -> Made:
    inputs = padded_texts(model, case, (ROWS, CHOICES))
    return _classification(model, inputs, _labels((ROWS,), CHOICES))


def _question_answering(model: Any, case: Case) -> Made:
    inputs = padded_texts(model, case, (ROWS,), padding=0)  # an answer can end anywhere
    labels = {
        name: np.random.default_rng(seed).integers(0, case.length, (ROWS,))
        for seed, name in enumerate(("start_positions", "end_positions"))
    }
    done = run(model, inputs, **labels)
    outputs = {
        "start_logits": done.start_logits,
        "end_logits": done.end_logits,
        "loss": done.loss,
    }
    return {**inputs, **labels}, outputs, None


def _text_to_text(model: Any, case: Case) -> Made:
    """Logits and loss of targets; greedy generation of new ones."""
    inputs = padded_texts(model, case, (ROWS,))
    labels = _labels((ROWS, case.length - 2), model.config.vocab_size)
    done = run(model, inputs, labels=labels)
    start = np.full((ROWS, 1), model.config.decoder_start_token_id)
    target = np.concatenate([start, labels[:, :-1]], axis=1)
    sources = {"source": inputs["tokens"], "real": inputs["real"]}
    everything = model.generate(
        torch.from_numpy(sources["source"]),
        attention_mask=torch.from_numpy(sources["real"].astype(np.int64)),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        eos_token_id=None,
    )
    generation = {"prompt": start, "inputs": sources, "tokens": everything[:, 1:].numpy()}
    return (
        {"tokens": target, **sources, "labels": labels},
        {"logits": done.logits, "loss": done.loss},
        generation,
    )


HEADS: Mapping[str, Callable[[Any, Case], Made]] = {
    "feature-extraction": _feature_extraction,
    "fill-mask": _fill_mask,
    "text-classification": _text_classification,
    "token-classification": _token_classification,
    "multiple-choice": _multiple_choice,
    "question-answering": _question_answering,
    "text2text-generation": _text_to_text,
}
