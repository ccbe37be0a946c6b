"""Every parallelism and combinations: one device's losses and gradient norms, and nothing but the
collectives that belong to it."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest

from launch.errors import LaunchError
from launch.source import byte_level
from launch.training.objectives import LabelLoss, LanguageModelling, next_tokens, text_batch
from launch.training.parallelism import Parallelism
from launch.training.platform import compiler_options
from launch.training.router_losses import NO_ROUTER_LOSSES, RouterSettings
from launch.training.state import TrainState
from launch.training.step import Training, make_training
from models.decoder.config import DecoderConfig
from models.layers.moe import ClampedSwish, Experts
from models.layers.temperature import Temperature
from models.parallel.depth import stack
from tests.quick_compile import QUICK_COMPILE

STEPS, ROWS, LENGTH = 20, 16, 16
DENSE = DecoderConfig(
    vocab_size=32, num_layers=2, dim=32, hidden_dim=32, num_heads=8, num_kv_heads=4, head_dim=4,
    max_seq_len=LENGTH, tie_embeddings=False, initializer_range=0.1,
)  # fmt: skip
DEEP = replace(DENSE, num_layers=4, tie_embeddings=True)
ODD_WORDS = replace(DENSE, vocab_size=35, head_bias=True, logit_softcap=5.0)
ODD_WIDTH = replace(DENSE, vocab_size=35, dim=36, tie_embeddings=True)
EXPERTS = replace(DENSE, experts=Experts(8, 2, 16))
GPT_OSS = replace(
    DENSE,
    attention_sinks=True,
    attention_out_bias=True,
    experts=Experts(8, 2, 16, biases=True, clamped=ClampedSwish()),
)
LLAMA4 = replace(
    DENSE,
    qk_unit_norm=1e-5,
    attention_chunk_size=5,
    chunked_layers=(0,),
    no_rotary_layers=(1,),
    temperature=Temperature(3, 0.5),
    experts=Experts(8, 2, 16, gated_inputs=True, shared_dim=16),
)
CAPACITY = replace(DENSE, experts=Experts(4, 2, 16, capacity_factor=1.0))
ROUTER = RouterSettings(router_aux_loss_coef=0.02, router_z_loss_coef=1e-3)
TOKENS = np.random.default_rng(0).integers(0, 32, (STEPS, ROWS, LENGTH + 1)).astype(np.int32)

AR, AG, RS = "all-reduce", "all-gather", "reduce-scatter"
A2A, CP = "all-to-all", "collective-permute"

KINDS = (AR, AG, RS, A2A, CP, "collective-broadcast")

DATA, SHARDED, TENSOR = "data_parallel_size", "fully_sharded_size", "tensor_parallel_size"
CONTEXT, EXPERT, STAGES = "context_parallel_size", "expert_parallel_size", "pipeline_parallel_size"
MICRO, IN_PIPELINE = "gradient_accumulation_steps", "pipeline_parallel_num_microbatches"
CHUNKS, CUTS = "virtual_pipeline_parallel_size", "pipeline_cuts"
WHOLE_STREAM = {"sequence_parallel": False}
ULYSSES = {"context_parallel_method": "all_to_all"}
GPIPE = {"pipeline_schedule": "gpipe"}
ZERO, SCAN, FUSED = {"zero_1": True}, {"scan_layers": True}, {"fuse_qkv": True}


def recompute(name: str) -> dict[str, Any]:
    return {"recompute": name}


def order(axes: str) -> dict[str, Any]:
    return {"axis_order": axes}


class Case(NamedTuple):
    """A way to share a model, and the kinds of collectives that its step has."""

    config: DecoderConfig
    settings: Mapping[str, Any]
    kinds: set[str]


# Loss and norm are always added up, so only one core knows no all-reduce.
CASES = {
    "scan": Case(DENSE, SCAN, set()),
    "selective": Case(DENSE, recompute("selective"), set()),
    "full": Case(DENSE, SCAN | recompute("full"), set()),
    "micro-batches": Case(DENSE, {MICRO: 4}, set()),
    "data": Case(DENSE, {DATA: 8}, {AR}),
    "ZeRO-1": Case(DENSE, {DATA: 8} | ZERO, {AR, RS, AG}),
    "fully sharded": Case(DENSE, {SHARDED: 8}, {AR, RS, AG}),
    "tensor": Case(DENSE, {TENSOR: 4}, {AR, RS, AG}),
    "tensor, whole stream": Case(DENSE, {TENSOR: 4} | WHOLE_STREAM, {AR}),
    "tensor, repeated keys": Case(DENSE, {TENSOR: 8} | SCAN, {AR, RS, AG}),
    "odd words": Case(ODD_WORDS, {TENSOR: 4}, {AR, RS, AG, A2A}),
    "odd words and width": Case(ODD_WIDTH, {TENSOR: 8} | SCAN, {AR, RS, AG}),
    "ring": Case(DENSE, {CONTEXT: 8}, {AR, CP}),
    "all-to-all": Case(DENSE, {CONTEXT: 4} | ULYSSES, {AR, A2A}),
    "experts": Case(EXPERTS, {EXPERT: 8}, {AR, AG, RS}),
    "experts, capacity": Case(CAPACITY, {EXPERT: 4}, {AR, A2A}),
    "GPipe": Case(DEEP, {STAGES: 4} | GPIPE, {AR, CP}),
    "1F1B": Case(DEEP, {STAGES: 4, IN_PIPELINE: 4}, {AR, CP}),
    "interleaved": Case(DEEP, {STAGES: 2, CHUNKS: 2}, {AR, CP}),
    # Of two
    "data, micro-batches": Case(DENSE, {DATA: 4, MICRO: 2}, {AR}),
    "fully sharded, scan, micro-batches": Case(DENSE, {SHARDED: 4, MICRO: 2} | SCAN, {AR, RS, AG}),
    "hybrid sharded": Case(DENSE, {DATA: 2, SHARDED: 4} | recompute("offload"), {AR, RS, AG}),
    "hybrid sharded, ZeRO-1": Case(DENSE, {DATA: 4, SHARDED: 2} | ZERO | SCAN, {AR, RS, AG}),
    "data, tensor": Case(DENSE, {DATA: 2, TENSOR: 4} | FUSED, {AR, RS, AG}),
    "data, tensor, whole stream": Case(DENSE, {DATA: 4, TENSOR: 2} | WHOLE_STREAM | SCAN, {AR}),
    "ZeRO-1, tensor, selective": Case(
        DENSE, {DATA: 2, TENSOR: 4, MICRO: 4} | ZERO | recompute("selective"), {AR, RS, AG}
    ),
    "fully sharded, tensor": Case(DENSE, {SHARDED: 2, TENSOR: 4} | recompute("full"), {AR, RS, AG}),
    "all-to-all, fully sharded": Case(
        DENSE, {CONTEXT: 2, SHARDED: 4} | ULYSSES | SCAN, {AR, AG, RS, A2A}
    ),
    "experts, fully sharded": Case(EXPERTS, {EXPERT: 4, SHARDED: 2} | SCAN, {AR, AG, RS}),
    "experts, tensor, selective": Case(
        GPT_OSS, {EXPERT: 4, TENSOR: 2} | recompute("selective"), {AR, AG, RS}
    ),
    "GPipe, fully sharded, full": Case(
        DEEP, {STAGES: 2, SHARDED: 4} | GPIPE | recompute("full"), {AR, AG, RS, CP}
    ),
    "1F1B, unequal stages, tensor": Case(DEEP, {STAGES: 2, TENSOR: 4, CUTS: "3"}, {AR, AG, RS, CP}),
    # Of three and four
    "hybrid sharded, tensor, ZeRO-1": Case(
        DENSE,
        {DATA: 2, SHARDED: 2, TENSOR: 2, MICRO: 2} | ZERO | SCAN | FUSED | recompute("dots"),
        {AR, RS, AG},
    ),
    "odd words, hybrid sharded, ZeRO-1": Case(
        ODD_WORDS,
        {DATA: 2, SHARDED: 2, TENSOR: 2, MICRO: 2} | ZERO | WHOLE_STREAM,
        {AR, RS, AG, A2A},
    ),
    "odd words, 1F1B": Case(
        replace(DEEP, vocab_size=35), {STAGES: 2, TENSOR: 4, CUTS: "3"}, {AR, AG, RS, A2A, CP}
    ),
    "ring, data, tensor": Case(
        DENSE,
        {CONTEXT: 2, DATA: 2, TENSOR: 2} | SCAN | recompute("full") | order("model,data,context"),
        {AR, AG, RS, CP},
    ),
    "capacity, data, tensor": Case(
        CAPACITY, {EXPERT: 2, DATA: 2, TENSOR: 2} | ZERO, {AR, AG, RS, A2A}
    ),
    "experts, ring, tensor": Case(LLAMA4, {EXPERT: 2, CONTEXT: 2, TENSOR: 2}, {AR, AG, RS, CP}),
    "1F1B, ZeRO-1, tensor, micro-batches": Case(
        DEEP, {STAGES: 2, DATA: 2, TENSOR: 2, MICRO: 2, IN_PIPELINE: 2} | ZERO, {AR, AG, RS, CP}
    ),
    "GPipe, all-to-all, tensor": Case(
        DEEP,
        {STAGES: 2, CONTEXT: 2, TENSOR: 2, IN_PIPELINE: 2} | GPIPE | ULYSSES,
        {AR, AG, RS, A2A, CP},
    ),
    "1F1B, unequal stages, ring": Case(
        DEEP, {STAGES: 2, CONTEXT: 2, DATA: 2, CUTS: "3", IN_PIPELINE: 2}, {AR, CP}
    ),
    "interleaved, ZeRO-1, tensor": Case(
        DEEP,
        {STAGES: 2, CHUNKS: 2, DATA: 2, TENSOR: 2, IN_PIPELINE: 4} | ZERO | recompute("dots"),
        {AR, AG, RS, CP},
    ),
    "1F1B, experts, fully sharded": Case(
        replace(EXPERTS, num_layers=3),
        {STAGES: 2, EXPERT: 2, SHARDED: 2, IN_PIPELINE: 2},
        {AR, AG, RS, CP},
    ),
}


class Reference(NamedTuple):
    """Of one device of JAX's own platform."""

    first: TrainState  # of numpy arrays, before the first step
    curve: np.ndarray


@cache
def reference(config: DecoderConfig) -> Reference:
    training = make(config, Parallelism(), jax.devices("cpu"))
    with jax.default_device(jax.devices("cpu")[0]):
        first = jax.tree.map(np.asarray, training.init())
    return Reference(first, curve(training, first))


def make(config: DecoderConfig, parallelism: Parallelism, devices: list[jax.Device]) -> Training:
    parallelism = parallelism.fitted(config)
    return make_training(
        byte_level(DENSE).model._replace(config=config),
        optax.adamw(1e-2),
        parallelism,
        mesh=parallelism.mesh(devices),
        batch=text_batch(ROWS, LENGTH),
        objective=LanguageModelling(
            of_labels=LabelLoss(label_smoothing_factor=0.1, z_loss_coef=1e-3)
        ),
        router=NO_ROUTER_LOSSES if config.experts is None else ROUTER,
        clip_norm=0.5,
        seed=0,
    )


def compiled(training: Training) -> Any:
    lowered = training.step.lower(training.state, training.batch)
    (device, *_) = training.batch_shardings["tokens"].device_set
    return lowered.compile(compiler_options=QUICK_COMPILE | compiler_options(device))


def curve(training: Training, first: TrainState, step: Any = None) -> np.ndarray:
    """Loss and gradient norm of every step [STEPS, 2]."""
    step = step or compiled(training)
    state = jax.device_put(first, training.shardings)
    values = []
    for tokens in TOKENS:
        batch = jax.device_put(next_tokens(tokens), training.batch_shardings)
        state, reported = step(state, batch)
        values.append((reported["loss"], reported["grad_norm"]))
    return np.asarray(values)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_one_devices_curve_and_the_collectives_that_belong_to_it(
    name: str, neuron_devices: list[jax.Device]
) -> None:
    config, settings, kinds = CASES[name]
    parallelism = Parallelism(**settings)
    training = make(config, parallelism, neuron_devices)
    step, expected = compiled(training), reference(config)
    first = expected.first
    if parallelism.stacks:
        first = jax.tree.map(np.asarray, stack(first, training.order))
    np.testing.assert_allclose(curve(training, first, step), expected.curve, rtol=1e-4)
    collectives = re.findall(rf" ({'|'.join(KINDS)})(?:-start)?\(", step.as_text())
    assert set(collectives) == kinds


@pytest.mark.parametrize("name", ["GPipe", "1F1B, unequal stages, ring", "interleaved"])
def test_all_stages_run_the_same_code(name: str, neuron_devices: list[jax.Device]) -> None:
    """The Neuron compiler has no branches."""
    config, settings, _ = CASES[name]
    training = make(config, Parallelism(**settings), neuron_devices)
    text = training.step.lower(training.state, training.batch).as_text()
    assert "stablehlo.collective_permute" in text
    assert not re.findall(r"stablehlo\.(?:case|if)\b", text)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["interleaved", "ring, data, tensor", "capacity, data, tensor"])
def test_one_devices_loss_in_evaluation(name: str, neuron_devices: list[jax.Device]) -> None:
    config, settings, _ = CASES[name]
    first = reference(config).first

    def loss(training: Training) -> np.ndarray:
        state = jax.device_put(stack(first, training.order), training.shardings)
        batch = jax.device_put(next_tokens(TOKENS[0]), training.batch_shardings)
        evaluated = training.evaluate(state, batch)
        return np.asarray((evaluated.total, evaluated.weight))

    alone = make(config, Parallelism(scan_layers=True), jax.devices("cpu"))
    shared = make(config, Parallelism(**{"scan_layers": True} | settings), neuron_devices)
    np.testing.assert_allclose(loss(shared), loss(alone), rtol=1e-5)


@pytest.mark.slow
def test_first_weights_do_not_depend_on_stacks(cpu_devices: list[jax.Device]) -> None:
    training = make(
        DEEP, Parallelism(**CASES["1F1B, unequal stages, tensor"].settings), cpu_devices
    )
    expected = stack(reference(DEEP).first.parameters, training.order)
    for path, value in training.init().parameters.items():
        np.testing.assert_allclose(value, expected[path], rtol=1e-6, err_msg=path)


REFUSED = {
    "more stages than blocks": (DENSE, {STAGES: 4}, "needs at least 4 blocks, and the model has 2"),
    "a cut outside": (DENSE, {STAGES: 2, CUTS: "2"}, "does not cut 2 blocks into 2 chunks"),
    "cuts that are no numbers": (DEEP, {STAGES: 2, CUTS: "a"}, "does not cut 4 blocks into 2"),
    "cuts of no pipeline": (DEEP, {CUTS: "2"}, "pipeline_cuts=2 is for pipelines, but this"),
    "chunks of no pipeline": (DEEP, {CHUNKS: 2}, "virtual_pipeline_parallel_size=2 is for"),
    "micro-batches of a pipeline": (
        DENSE, {STAGES: 2, IN_PIPELINE: 5}, "the 16 rows of a core cannot be split into",
    ),
    "interleaved groups": (DEEP, {STAGES: 2, CHUNKS: 2, IN_PIPELINE: 1}, "in groups of 2, and 1"),
    "micro-batches": (DENSE, {DATA: 4, MICRO: 3}, "4 rows of a core cannot be split"),
    "rows": (DENSE, {DATA: 3}, "batch_size=16 is not a multiple of data=3"),
    "heads": (DENSE, {TENSOR: 3}, "model=3, which does not divide kv_heads=4"),
    "repeated keys": (DENSE, {TENSOR: 6}, "not a multiple of the model's 4"),
    "positions of a ring": (
        DENSE, {CONTEXT: 6} | WHOLE_STREAM, "16 positions cannot be split over context=6",
    ),
    "heads of all-to-all": (
        replace(DENSE, num_heads=4), {CONTEXT: 8} | ULYSSES, "not divide the 4 query heads",
    ),
    "capacity of parts of rows": (CAPACITY, {CONTEXT: 2}, "count the tokens of whole rows"),
    "experts": (CAPACITY, {EXPERT: 8}, "expert=8, which does not divide experts=4"),
    "no experts": (DENSE, {EXPERT: 2}, "expert=2 shares experts, but LlamaForCausalLM .* has none"),
    "an order without an axis": (
        DENSE, {DATA: 2, TENSOR: 2} | order("model"), "axis_order=model has no place for data=2",
    ),
    "too few cores": (DENSE, {DATA: 16}, "needs 16 devices, but there are 8"),
    "blocks that differ": (
        replace(EXPERTS, dense_layers=(0,)), SCAN, "need blocks that are alike",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_shared_is_refused(name: str, cpu_devices: list[jax.Device]) -> None:
    config, settings, message = REFUSED[name]
    with pytest.raises(LaunchError, match=message):
        make(config, Parallelism(**settings), cpu_devices)


def outputs_of_loops(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    """Shapes of what every `scan` of a program gives, those in other loops too."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "scan":
            yield from (output.aval.shape for output in eqn.outvars)
        for inner in jax.tree.leaves(list(eqn.params.values())):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from outputs_of_loops(inner)


def test_no_core_keeps_weights_that_it_gathered() -> None:
    """What is kept for the backward pass grows with a core's part, not with the model."""
    parallelism = Parallelism.of({"data": 1, "fsdp": 4, "model": 1}, scan_layers=True)
    training = make_training(
        byte_level(DEEP).model,
        optax.sgd(1.0),
        parallelism,
        mesh=parallelism.abstract_mesh(),
        batch=text_batch(ROWS, LENGTH),
        seed=0,
    )
    program = jax.make_jaxpr(training.step)(training.state, training.batch)
    stacks = {path: x.shape for path, x in training.state.parameters.items() if ".*." in path}
    whole = {shape for shape in stacks.values() if len(shape) > 2}
    assert whole
    kept = set(outputs_of_loops(program.jaxpr))
    assert len(kept) > len(whole)
    assert not whole & kept


@pytest.mark.slow
def test_blocks_one_after_the_other_gather_in_turn(neuron_devices: list[jax.Device]) -> None:
    """Memory beside the state grows by less than the weights of the blocks that are more."""
    memory, weights = [], []
    for layers in (2, 4):
        config = replace(DENSE, num_layers=layers, hidden_dim=4096)
        training = make(config, Parallelism(fully_sharded_size=8, recompute="full"), neuron_devices)
        sizes = [4 * math.prod(leaf.shape) for leaf in training.state.parameters.values()]
        memory.append(compiled(training).memory_analysis().temp_size_in_bytes)
        weights.append(sum(sizes))
    assert memory[1] - memory[0] < (weights[1] - weights[0]) / 2


def test_axes_lie_in_the_order_that_is_asked_for(cpu_devices: list[jax.Device]) -> None:
    sizes = {DATA: 2, STAGES: 2, TENSOR: 2}
    apart = Parallelism(**sizes, axis_order="model,stage,data").mesh(cpu_devices)
    assert apart.axis_names == ("model", "stage", "data")
    assert apart.devices[0, 0].tolist() == cpu_devices[:2]
    usual = Parallelism(**sizes).mesh(cpu_devices)
    assert usual.devices[0, 0].tolist() == cpu_devices[:2]
    assert usual.axis_names[-1] == "model"


@pytest.mark.parametrize("axes", ["model,model", "tensor", "model,,data", ""])
def test_orders_that_are_none_are_refused(axes: str) -> None:
    with pytest.raises(LaunchError, match=f"--axis_order={axes} does not name mesh axes, each"):
        Parallelism(axis_order=axes)
