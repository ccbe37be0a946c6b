"""The weights that a training begins with: blocks in a stack are drawn like single ones."""

import re
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import optax

from launch.training.objectives import text_batch
from launch.training.parallelism import Parallelism
from launch.training.step import Training, make_training
from models.parallel.depth import stack
from models.parameters import Parameters
from tests.quick_compile import QUICK_COMPILE
from tests.training.tiny_training import MODEL


def training(devices: list[jax.Device], layers: int, **how: Any) -> Training:
    parallelism = Parallelism(data_parallel_size=1, **how)
    return make_training(
        MODEL._replace(config=replace(MODEL.config, num_layers=layers)),
        optax.sgd(0.1),
        parallelism,
        mesh=parallelism.mesh(devices),
        batch=text_batch(8, 16),
        seed=3,
    )


def parameters(training: Training) -> Parameters:
    return training.init.lower().compile(QUICK_COMPILE)().parameters  # type: ignore[attr-defined]


def test_a_stack_has_the_weights_of_single_blocks(neuron_devices: list[jax.Device]) -> None:
    single = parameters(training(neuron_devices, layers=2))
    stacked = parameters(training(neuron_devices, layers=2, scan_layers=True))
    jax.tree.map(np.testing.assert_array_equal, stacked, stack(single))


def test_random_numbers_are_made_for_a_block_at_a_time(neuron_devices: list[jax.Device]) -> None:
    """A program for all blocks at once takes longer to compile, and the memory of all."""
    programs = [
        training(neuron_devices, layers, scan_layers=True).init.lower().as_text()  # type: ignore
        for layers in (2, 7)
    ]
    assert len({program.count("\n") for program in programs}) == 1
    assert "tensor<7x32x" in programs[1]  # a stack of weights
    assert not re.search("tensor<7x32x[0-9x]*xui32>", programs[1])
