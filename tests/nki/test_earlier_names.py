"""Names of NKI 0.x: each works, or is refused by a line that says what took its place."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
import numpy as np
import pytest
from jax_neuronx import nki_call

from neuronjax.errors import KernelError, NeuronError

X = np.linspace(-1, 1, 256 * 8, dtype=np.float32).reshape(256, 8)

PRESENT = "present dialect"

REFUSED: dict[str, str] = {
    "from neuronxcc.nki.kernels import flash_fwd": "nkilib.core.attention.attention_cte",
    "from neuronxcc.nki.kernels.attention import flash_fwd": "reference/attention.py",
    "from neuronxcc.nki.kernels.attention import flash_attn_bwd": "attention.attention_bwd",
    "from neuronxcc.nki.kernels.attention import FlashConfig": "attention.attention_cte",
    "from neuronxcc.nki.kernels.attention import fused_self_attn_for_SD_small_head_size": "cte",
    "from neuronxcc.nki.kernels.allocated_attention import "
    "allocated_fused_self_attn_for_SD_small_head_size": "reference/allocated_attention.py",
    "from neuronxcc.nki.kernels import allocated_fused_rms_norm_qkv": "nkilib.core.qkv.qkv",
    "from neuronxcc.nki.kernels.vision import resize_nearest_fixed_dma_kernel": "vision.py",
    "from neuronxcc.nki.kernels.vision import select_and_scatter_kernel": "vision.py",
    "from neuronxcc.nki._private_kernels.attention import attention_isa_kernel": "attention_cte",
    "from neuronxcc.nki._private_kernels.mlp import mlp_isa_kernel": "nkilib.core.mlp.mlp",
    "from neuronxcc.nki._private_kernels.qkv import rmsnorm_qkv_isa_kernel": "nkilib.core.qkv.qkv",
    "from neuronxcc.nki._private_kernels.cumsum import cumsum": "nkilib.core.cumsum.cumsum",
    "from neuronxcc.nki._private_kernels.RoPE import RoPE_sbuf": "nkilib.core.embeddings.rope",
    "from neuronxcc.nki.kernels import flash_forward": "flash_forward",
    "nl.fori_loop": f"nl.sequential_range, or nl.fori_loop of the {PRESENT}",
    "nl.fori": "nl.sequential_range",
    "nl.while_loop": f"nl.while_loop of the {PRESENT}",
    "nl.dynamic_range": "nl.sequential_range",
    "nl.atomic_rmw": "nki.isa.dma_compute",
    "nl.all_reduce": "nki.collectives.all_reduce",
    "nl.mod": "nl.divide and nl.floor",
    "nl.fmod": "nl.divide and nl.trunc",
    "nl.static_cast": "nl.copy with a dtype",
    "nl.no_reorder": "no call: engines keep the order",
    "nl.add_dep": "no call: engines wait",
    "nl.sharded_hbm": "nl.shared_hbm",
    "nisa.tensor_copy_dynamic_src": "nki.isa.tensor_copy",
    "nisa.tensor_copy_dynamic_dst": "scalar_offset=register",
    "nisa.range_select": f"nki.isa.range_select of the {PRESENT}",
    "nisa.dma_transpose": f"nki.isa.dma_transpose of the {PRESENT}",
    "nisa.sendrecv": f"nki.isa.sendrecv of the {PRESENT}",
    "nisa.core_barrier": f"nki.isa.core_barrier of the {PRESENT}",
    "nisa.quantize_mx": f"nki.isa.quantize_mx of the {PRESENT}",
    "nisa.nc_matmul_mx": f"nki.isa.nc_matmul_mx of the {PRESENT}",
    "nisa.dma_compute": f"nki.isa.dma_compute of the {PRESENT}",
}
"""A statement or an expression -> words of what took the name's place."""


@pytest.mark.parametrize("code", REFUSED)
def test_a_name_that_is_refused_has_a_successor(code: str) -> None:
    with pytest.raises((NeuronError, ImportError)) as caught:
        exec(code, {"nl": nl, "nisa": nisa})
    assert REFUSED[code] in str(caught.value)


def test_a_program_that_tries_both_packages_gets_import_errors() -> None:
    for package in ("_private_kernels", "kernels"):
        module = importlib.import_module(f"neuronxcc.nki.{package}.attention")
        with pytest.raises(ImportError, match="attention_cte"):
            exec("from neuronxcc.nki.kernels.attention import attention_isa_kernel")
        assert not hasattr(module, "attention_isa_kernel")


def doubled(x: Any, out: Any) -> None:
    p, f = nl.arange(128)[:, None], nl.arange(8)[None, :]
    for part in nl.affine_range(2):
        nl.store(out[part * 128 + p, f], nl.load(x[part * 128 + p, f]) * 2.0)


def one_part(x: Any, factor: Any, out: Any, rest: Any) -> None:
    """A program of a grid; `factor` is known when it is traced."""
    p, f = nl.program_id(0) * 128 + nl.arange(128)[:, None], nl.arange(8)[None, :]
    nl.store(out[p, f], nl.load(x[p, f]) * factor)
    nl.store(rest[p, f], nl.load(x[p, f]) - 1.0)


SHAPE = jax.ShapeDtypeStruct(X.shape, X.dtype)


def test_nki_call_gives_what_a_kernel_writes() -> None:
    assert nki_call(doubled, X, out_shape=SHAPE).shape == X.shape
    marked = nki.jit(doubled)
    for function in (doubled, marked):
        got = jax.jit(lambda x, function=function: nki_call(function, x, out_shape=SHAPE) + 1)(X)
        np.testing.assert_array_equal(got, 2 * X + 1)
    with pytest.raises(KernelError, match=r"pass a jax\.ShapeDtypeStruct"):
        nki_call(doubled, X, out_shape=(256, 8))


def test_nki_call_of_a_grid_and_several_results() -> None:
    def part(x: Any, out: Any, rest: Any, factor: float) -> None:
        one_part(x, factor, out, rest)

    call = functools.partial(part, factor=3.0)
    tripled, less = nki_call(call, jnp.asarray(X), grid=2, out_shape=(SHAPE, SHAPE))
    np.testing.assert_allclose(tripled, 3 * X, rtol=1e-6)
    np.testing.assert_allclose(less, X - 1, rtol=1e-6)
