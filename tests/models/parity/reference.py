"""The reference side: a tiny random model of transformers, saved, run and differentiated."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import diffusers
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from tests.models.parity import media_reference, text_reference
from tests.models.parity.case import Case

NEW_TOKENS = 10
CONSTANT = "embed_positions.weight"  # a table of sines, which no file changes, in …
OF_SINES = ("roformer", "marian")
STDDEV = 0.15  # far larger than in training, so that every part of a model matters


class Reference(NamedTuple):
    """What ours must equal.

    Attributes:
      directory: of the checkpoint.
      gradients: directory of a checkpoint that holds the loss's gradients under the names that the
        model has in memory, which can differ from those of its files.
      inputs: arguments of the head, by name.
      outputs: arrays that the head computes of them, by name; and `loss`.
      generation: arguments and result of greedy generation, for heads that generate: prompt and
        tokens, and real or inputs where `generate` needs them.
    """

    directory: Path
    gradients: Path
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    generation: Mapping[str, Any] | None


def make_reference(case: Case, task: str, directory: Path) -> Reference:
    """Saves a random model of the case in `directory` and records what it computes."""
    model = make_model(case)
    model.save_pretrained(directory / "model")
    inputs, outputs, generation = HEADS[task](model, case)
    outputs["loss"].backward()
    gradients = {
        name: value.grad if value.grad is not None else torch.zeros_like(value)
        for name, value in model.named_parameters(remove_duplicate=False)
    }
    gradients |= {name: torch.zeros_like(value) for name, value in statistics(model).items()}
    (directory / "gradients").mkdir()
    save_file(
        {name: gradient.contiguous().clone() for name, gradient in gradients.items()},
        directory / "gradients" / "model.safetensors",
    )
    return Reference(
        directory / "model",
        directory / "gradients",
        inputs,
        {name: value.detach().numpy() for name, value in outputs.items()},
        generation,
    )


def make_model(case: Case) -> Any:
    """The model with random weights, FP32."""
    architecture = getattr(transformers, case.architecture, None)
    config_class = getattr(transformers, f"{case.architecture.split('For')[0]}Config", None)
    if architecture is None and config_class is not None:  # which another class runs
        model = transformers.AutoModelForCausalLM.from_config(config_class(**case.config))
    elif architecture is None:
        model = getattr(diffusers, case.architecture)(**case.config)
    else:
        model = architecture(architecture.config_class(**case.config))
    model = model.float().eval()
    if case.untied:
        output = model.get_output_embeddings()
        output.weight = torch.nn.Parameter(output.weight.clone())
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.padding_idx = None  # else the padding token's vector would never learn
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.fill_(1)  # MobileViT begins near zero
        for name, parameter in model.named_parameters():
            if name.endswith(CONSTANT) and model.config.model_type in OF_SINES:
                continue
            stddev = max(STDDEV, _keeping(parameter.shape))
            noise = stddev * torch.randn(parameter.shape, generator=generator)
            # Vectors are mostly scales around one or zero, whichever the model starts from.
            parameter.copy_(noise + (parameter if parameter.ndim == 1 else 0))
        for statistic in statistics(model).values():
            statistic.add_(torch.rand(statistic.shape, generator=generator))  # variances stay > 0
    return model


def _keeping(shape: torch.Size) -> float:
    """The deviation of a convolution's weights [out, in, *window] with which a deep network still
    sees its input: each norm with random statistics takes a part of what an activation leaves."""
    return 1.6 / math.sqrt(math.prod(shape[1:])) if len(shape) == 4 else 0.0


def statistics(model: Any) -> dict[str, torch.Tensor]:
    """Running statistics of batch norms and of routers, and biases of BART's logits, which no
    gradient reaches."""
    names = ("running_mean", "running_var", "e_score_correction_bias", "final_logits_bias")
    return {name: value for name, value in model.named_buffers() if name.endswith(names)}


Head = Callable[
    [Any, Case],
    tuple[dict[str, np.ndarray], dict[str, torch.Tensor], dict[str, Any] | None],
]


def _text_generation(
    model: Any, case: Case
) -> tuple[dict[str, np.ndarray], dict[str, torch.Tensor], dict[str, np.ndarray] | None]:
    """Logits and next-token loss of whole texts; greedy generation after prompts of two lengths."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(3, case.config["vocab_size"], (4, case.length))
    done = model(torch.from_numpy(tokens), labels=torch.from_numpy(tokens))
    prompt = rng.integers(3, case.config["vocab_size"], (2, case.length))
    real = np.ones_like(prompt, bool)
    real[1, :3] = False
    prompt[~real] = 0
    everything = model.generate(
        torch.from_numpy(prompt),
        attention_mask=torch.from_numpy(real.astype(np.int64)),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    generation = {
        "prompt": prompt,
        "real": real,
        "tokens": everything[:, prompt.shape[1] :].numpy(),
    }
    return {"tokens": tokens}, {"logits": done.logits, "loss": done.loss}, generation


HEADS: Mapping[str, Head] = {
    "text-generation": _text_generation,
    **text_reference.HEADS,
    **media_reference.HEADS,
}
