"""A user's script with every public name: ``assert_type`` fails where a type checker sees Any."""

from __future__ import annotations

import warnings
from typing import TypeAlias, assert_type

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh

import neuronjax
from neuronjax import errors, mx, nki, testing, torch, workloads
from neuronjax.nki import isa as nisa
from neuronjax.nki import language as nl

Result: TypeAlias = neuronjax.Comparison | neuronjax.NanReport | neuronjax.MeshPicture


def step(w: jax.Array, x: jax.Array) -> jax.Array:
    result: jax.Array = jnp.tanh(x @ w)
    return result


@nki.jit
def double(x: nl.NkiTensor) -> nl.NkiTensor:
    tile, out = nl.load(x), nl.ndarray(x.shape, dtype=nl.float32, buffer=nl.shared_hbm)
    nisa.tensor_scalar(tile, tile, op0=nl.multiply, operand0=2.0)
    nl.store(out, nl.exp(tile))
    return out


@nki.jit(platform_target="trn2")
def sum_and_last(x: nl.NkiTensor) -> tuple[nl.NkiTensor, nl.NkiTensor]:
    return nl.sum(nl.load(x), axis=1), x


def main() -> Result:
    neuronjax.configure(target="trn2.3xlarge")
    warnings.simplefilter("ignore", neuronjax.LegalityWarning)
    w = x = jnp.ones((128, 128), jnp.bfloat16)
    machine = assert_type(neuronjax.Machine.create("trn2.3xlarge"), neuronjax.Machine)
    mesh = assert_type(neuronjax.make_mesh({"data": 2, "model": 2}, machine=machine), Mesh)
    picture = assert_type(neuronjax.visualize_mesh(mesh), neuronjax.MeshPicture)
    estimate = assert_type(neuronjax.estimate(step, w, x, tokens=128), neuronjax.Estimate)
    print(picture, estimate.step_ns / 1e6, estimate.memory.items(), estimate.usd_per_step)
    comparison = assert_type(neuronjax.compare(step, w, x), neuronjax.Comparison)
    report = assert_type(neuronjax.nan_report(step, w, x), neuronjax.NanReport | None)
    with neuronjax.profile("report") as recorded:
        step(w, x)
    assert_type(assert_type(recorded, neuronjax.Recorded).profile, neuronjax.Profile | None)
    with neuronjax.inject_faults("core_dies core=3 step=10") as injected:
        assert_type(injected, neuronjax.Injected).lift()
    assert_type(neuronjax.program_text(jax.jit(step).lower(w, x).compile()), str)
    elements, scales = assert_type(mx.quantize(x), tuple[jax.Array, jax.Array])
    assert_type(mx.dequantize(elements, scales), jax.Array)
    for finding in testing.incompatibilities(step, w, x, target="trn1.2xlarge"):
        assert_type(finding.rule.remedy, str)
    assert_type(double, nki.Kernel[jax.Array])
    assert_type(sum_and_last(x), tuple[jax.Array, ...])
    assert_type(nki.simulate(double)(np.ones((128, 128))), np.ndarray)
    assert_type(assert_type(nki.benchmark(double, x), nki.Timeline).total_ns, float)
    assert_type(nki.profile(double, x), neuronjax.Profile)
    print(assert_type(nki.sweep(double, x, over={"rows": [64, 128]}), nki.Sweep).best.name)
    program = assert_type(torch.to_jax(step, x), torch.Program)
    print(assert_type(program.types, torch.State).parameters.keys())
    decode = workloads.decode(AbstractMesh((4,), ("model",)), batch=4)
    assert_type(decode, workloads.Step)
    try:
        assert_type(neuronjax.__version__, str)
    except errors.NeuronError as error:
        assert_type(error, errors.NeuronError)
    return report or comparison
