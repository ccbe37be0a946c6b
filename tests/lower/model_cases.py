"""Models on engines: forward passes and training steps, on one core and on a mesh of eight.

Each case is lowered with addresses and semaphores, then emulated in program order and in dataflow
orders. Values are compared with XLA:CPU; other orders must give the very bits, without a race.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.parameters import Parameters, axis_names_of, merge, split
from models.recurrent.model import CELLS, Forecaster, ForecasterConfig
from models.sharding import parameter_shardings
from neuronjax.emulate.core import Order
from neuronjax.engine_compiler import lower_program
from neuronjax.host.client import HostClient
from neuronjax.program.program import Program, Target
from neuronjax.program.verify import verify
from tests.lower.differential import (
    CHIP,
    SUM,
    Tolerance,
    assert_close,
    emulated,
    host_operations,
    on_cpu,
    orders,
    sent,
)
from tests.lower.ranks import per_core, shards
from tests.models.parity.cases import GEMMA3, SMOLVLM
from tests.models.parity.media_cases import (
    AST,
    CVT,
    DPT,
    LEVIT,
    MOBILENET,
    MOBILEVIT,
    PATCHTST,
    RESNET,
    SPEECH,
    STABLE,
    SWIN,
    VISION,
    WAVLM,
    XVECTOR,
    YOLOS,
)
from tests.models.parity.text_cases import T5
from tests.models.test_decoder_families import CASES
from tests.models.test_encoders import FAMILIES
from tests.models.test_media import MODELS as MEDIA_MODELS
from tests.models.test_media import build as build_media
from tests.models.tiny import random_model

RNG = np.random.default_rng(0)
TOKENS = RNG.integers(3, 96, (4, 16)).astype(np.int32)
IMAGES = RNG.normal(size=(4, 24, 24, 3)).astype(np.float32)
MESH = {"data": 4, "model": 2}
LARGE = RNG.normal(size=(4, 48, 48, 3)).astype(np.float32)
SERIES = RNG.normal(size=(4, 21, 3)).astype(np.float32)
SAMPLES = RNG.normal(size=(4, 50)).astype(np.float32)
SOUNDS = RNG.normal(size=(4, 11, 8)).astype(np.float32)
# A training step divides by the root of second moments near zero, so gradients' last digits show.
STEP = Tolerance(relative=1e-3)


@dataclass(frozen=True)
class Model:
    """A function of (parameters, inputs), its arguments, and the axes of the parameters."""

    function: Callable[..., Any]
    parameters: Parameters
    inputs: tuple[np.ndarray, ...]
    axes: Any
    tolerance: Tolerance = SUM


def _of(pretrained: Any, call: Callable[..., Any], inputs: tuple[np.ndarray, ...]) -> Model:
    def function(parameters: Parameters, *given: jax.Array) -> Any:
        return call(merge(pretrained.graph, parameters), *given)

    return Model(function, pretrained.parameters, inputs, pretrained.axis_names())


def _decoder(name: str) -> Any:
    case = CASES[name]
    return random_model({**case.config, "architectures": [case.architecture]})


def decoder() -> Model:
    """Logits of a Llama."""
    return _of(_decoder("LlamaForCausalLM 3, tied, biases"), lambda m, t: m(t), (TOKENS,))


def mixture() -> Model:
    """Logits of a gpt-oss: routing, dispatch, experts, windows, sinks."""
    return _of(_decoder("GptOssForCausalLM"), lambda m, t: m(t), (TOKENS,))


def llama4() -> Model:
    """Logits of a Llama 4: chunks, temperature, gated inputs and a shared expert."""
    return _of(_decoder("Llama4ForCausalLM"), lambda m, t: m(t), (TOKENS,))


def training_step() -> Model:
    """Loss, gradients and one step of AdamW of a Llama."""
    model = _decoder("LlamaForCausalLM 3, tied, biases")
    optimizer = optax.adamw(1e-3)

    def loss(parameters: Parameters, tokens: jax.Array) -> jax.Array:
        logits = merge(model.graph, parameters)(tokens[:, :-1]).astype(jnp.float32)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1)
        return -chosen.mean()

    def step(parameters: Parameters, tokens: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, tokens)
        updates, _ = optimizer.update(gradients, optimizer.init(parameters), parameters)
        return value, optax.apply_updates(parameters, updates), gradients

    return Model(step, model.parameters, (TOKENS,), model.axis_names(), STEP)


def encoder() -> Model:
    """Logits of a BERT that fills masks."""
    values = {**FAMILIES["Bert"], "architectures": ["BertForMaskedLM"]}
    return _of(random_model(values), lambda m, t: m(tokens=t)["logits"], (TOKENS,))


def encoder_decoder() -> Model:
    """Logits of a T5 that reads one text and writes another."""
    model = random_model({**T5, "architectures": ["T5ForConditionalGeneration"]})
    texts = (TOKENS, TOKENS[:, ::-1].copy())
    return _of(model, lambda m, t, s: m(t, source=s), texts)


def _with_images(name: str, config: dict[str, Any]) -> Model:
    """Logits of texts with an image in each."""
    model = random_model({**config, "architectures": [name]})
    tokens = TOKENS.copy() % model.config.image_token
    tokens[:, 3 : 3 + model.config.image_tokens] = model.config.image_token
    return _of(model, lambda m, t, i: m(t, i), (tokens, IMAGES[:, None]))


def _media(name: str, config: dict[str, Any], inputs: np.ndarray = IMAGES) -> Model:
    _, graph, parameters = build_media(name, config)

    def function(parameters: Parameters, images: jax.Array) -> Any:
        return merge(graph, parameters)(images)

    return Model(function, parameters, (inputs,), axis_names_of(graph, parameters))


def _denoiser(name: str) -> Model:
    """As the tests of its laws call it."""
    case = MEDIA_MODELS[name]
    _, graph, parameters = build_media(name, case.config)

    def function(parameters: Parameters, *inputs: jax.Array) -> Any:
        return case.call(merge(graph, parameters), *inputs)

    return Model(function, parameters, case.inputs, axis_names_of(graph, parameters))


def _recurrent(cell: str) -> Model:
    config = ForecasterConfig(cell, num_channels=3, dim=16, num_layers=2, horizon=2)
    graph, parameters = split(Forecaster(config, rngs=nnx.Rngs(0)))

    def function(parameters: Parameters, series: jax.Array) -> Any:
        return merge(graph, parameters)(series)

    return Model(function, parameters, (SERIES,), axis_names_of(graph, parameters))


MODELS: dict[str, Callable[[], Model]] = {
    "decoder": decoder,
    "decoder training step": training_step,
    "encoder": encoder,
    "ResNet": lambda: _media("ResNetForImageClassification", RESNET),
    "ViT": lambda: _media("ViTForImageClassification", VISION),
    "Swin": lambda: _media("SwinForImageClassification", SWIN),
    "mixture of experts": mixture,
    "Llama 4": llama4,
}
"""Name -> model, of those that every run of the tests lowers."""

MORE: dict[str, Callable[[], Model]] = {
    "T5": encoder_decoder,
    "MobileNetV2": lambda: _media("MobileNetV2ForSemanticSegmentation", MOBILENET),
    "CvT": lambda: _media("CvtForImageClassification", CVT),
    "LeViT": lambda: _media("LevitForImageClassification", LEVIT, LARGE),
    "DPT": lambda: _media("DPTForDepthEstimation", DPT),
    "YOLOS": lambda: _media("YolosForObjectDetection", YOLOS),
    "MobileViT": lambda: _media("MobileViTForSemanticSegmentation", MOBILEVIT),
    "AST": lambda: _media("ASTForAudioClassification", AST, SOUNDS),
    "Wav2Vec2": lambda: _media("Wav2Vec2ForCTC", SPEECH, SAMPLES),
    "HuBERT": lambda: _media("HubertForSequenceClassification", SPEECH | STABLE, SAMPLES),
    "WavLM": lambda: _media("WavLMForXVector", SPEECH | WAVLM | XVECTOR, SAMPLES),
    "PatchTST": lambda: _media("PatchTSTForPrediction", PATCHTST, SERIES),
    **{name.upper(): functools.partial(_recurrent, name) for name in CELLS},
    "Flux": lambda: _denoiser("FluxTransformer2DModel"),
    "PixArt": lambda: _denoiser("PixArtTransformer2DModel"),
    "ControlNet": lambda: _denoiser("ControlNetModel"),
    "U-Net": lambda: _denoiser("UNet2DConditionModel"),
    "Gemma 3": lambda: _with_images("Gemma3ForConditionalGeneration", GEMMA3),
    "SmolVLM": lambda: _with_images("SmolVLMForConditionalGeneration", SMOLVLM),
}
"""More, for `python -m tests.conformance.engine_models`."""


@dataclass(frozen=True)
class Built:
    """A model as a program, with the arguments of every rank and what each should get."""

    program: Program
    code: bytes
    arguments: list[list[np.ndarray]]
    expected: list[list[np.ndarray]]
    tolerance: Tolerance

    def run(self, order: Order | None = None) -> list[list[np.ndarray]]:
        """The results of every rank."""
        return emulated(self.program, self.code, self.arguments, order=order)

    @functools.cached_property
    def in_program_order(self) -> list[list[np.ndarray]]:
        """The results of every rank, of a run that is made once."""
        return self.run()

    def check(self, found: list[list[np.ndarray]]) -> None:
        """Asserts that results are those of the host.

        Errors of sums are as large as what is added, which the result of all ranks shows. A rank
        may have a single number of it, which can be small by chance.
        """
        largest = [
            max(float(np.abs(part[np.isfinite(part)]).max(initial=0)) for part in parts)
            for parts in zip(*self.expected, strict=True)
        ]
        for ours, theirs in zip(found, self.expected, strict=True):
            for got, want, most in zip(ours, theirs, largest, strict=True):
                assert_close(got, want, self.tolerance, most)


@functools.cache
def on_one_core(name: str, lnc: int = 1) -> Built:
    """A model on one logical core of so many physical ones."""
    model = {**MODELS, **MORE}[name]()
    arguments = (model.parameters, *model.inputs)
    code = sent(jax.jit(model.function, keep_unused=True).trace(*arguments))
    arrays = [np.asarray(each) for each in jax.tree.leaves(arguments)]
    program = lower_program(code, Target(CHIP, lnc), 1)
    return Built(program, code, [arrays], [on_cpu(code, arrays)], model.tolerance)


def on_eight_cores(name: str, devices: Sequence[jax.Device], host: HostClient) -> Built:
    """A model whose batch is split over four rows of cores, its parameters over two columns."""
    model = {**MODELS, **MORE}[name]()
    mesh = Mesh(np.array(devices).reshape(*MESH.values()), tuple(MESH))
    placed = jax.device_put(
        model.parameters, parameter_shardings(mesh, model.parameters, model.axes)
    )
    rows = NamedSharding(mesh, PartitionSpec("data"))
    inputs = jax.device_put(model.inputs, rows)
    jitted = jax.jit(model.function, keep_unused=True)
    lowered = jitted.lower(placed, *inputs)
    expected = shards(jax.tree.leaves(jitted(placed, *inputs)), devices)
    code = per_core(lowered, host)
    given = shards(jax.tree.leaves((placed, *inputs)), devices)
    return Built(lower_program(code, Target(CHIP), 8), code, given, expected, model.tolerance)


def check(built: Built, seeds: int) -> dict[str, Any]:
    """Asserts everything that is said above; numbers for a report."""
    left = host_operations(built.program)
    assert left == [], f"left to the host: {left}"
    findings = verify(built.program)
    assert findings == (), findings[0]
    first = built.in_program_order
    built.check(first)
    for order in orders(seeds):
        again = built.run(order)
        for ours, theirs in zip(again, first, strict=True):
            for got, want in zip(ours, theirs, strict=True):
                assert got.tobytes() == want.tobytes(), order
    return {
        "ranks": built.program.ranks,
        "orders": seeds + 1,
        "functions": len(built.program.functions),
    }
