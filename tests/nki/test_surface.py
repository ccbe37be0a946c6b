"""Every public name of NKI's API reference is here, or says on call why it is not."""

from __future__ import annotations

import inspect
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest

from neuronjax import nki
from neuronjax.errors import KernelError, UnsupportedProgramError
from neuronjax.nki import collectives, isa, language
from neuronjax.nki.building import BUILDERS
from neuronjax.nki.signatures import SIGNATURES
from neuronjax.nki.tensor import Tensor
from neuronjax.program.element_types import ElementType
from tests.nki.kernels import loaded, stored

NAMES: dict[ModuleType, str] = {
    isa: """
    engine reduce_cmd dge_mode oob_mode matmul_perf_mode nc_version dma_engine NkiInstruction
    NkiValidationError VirtualRegister get_nc_sub_version get_nc_version dma_copy tensor_copy memset
    tensor_copy_predicated nc_matmul nc_matmul_mx nc_transpose dma_transpose tensor_tensor
    tensor_scalar tensor_reduce tensor_partition_reduce tensor_scalar_cumulative activation
    activation_reduce activate2 iota affine_select local_gather nc_n_gather bn_stats bn_aggr
    tensor_tensor_scan nc_stream_shuffle rng dropout set_rng_seed rand_set_state rand_get_state
    rand2 exponential reciprocal max8 sequence_bounds scalar_tensor_tensor tensor_scalar_reduce
    core_barrier dma_compute quantize_mx range_select select_reduce sendrecv register_alloc
    register_move register_load register_store nc_find_index8 nc_match_replace8 nonzero_with_count
    topk sparse_matmul tensor_engine vector_engine scalar_engine gpsimd_engine
    """,
    language: """
    bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 bfloat16 tfloat32
    float8_e3m4 float8_e4m3 float8_e4m3fn float8_e5m2 float8_e5m2_x4 float8_e4m3fn_x4
    float8_e8m0fnu float4_e2m1fn_x4
    sbuf psum hbm private_hbm shared_hbm tile_size average prelu bypass MemoryRegion NKIObject
    NkiTensor is_hbm is_on_chip is_psum is_sbuf add subtract multiply divide maximum minimum
    abs_max abs_min abs square power equal not_equal less less_equal greater greater_equal
    bitwise_and bitwise_or bitwise_xor invert left_shift right_shift logical_and logical_or
    logical_xor logical_not exp log sqrt rsqrt tanh sigmoid relu gelu gelu_apprx_sigmoid
    gelu_apprx_tanh gelu_dx gelu_apprx_sigmoid_dx silu silu_dx softplus mish erf erf_dx
    reciprocal copy sin cos tan arctan ceil floor trunc negative sign fmod mod sum max min mean
    prod var all softmax rms_norm where dropout ones full zeros_like empty_like random_seed
    expand_dims broadcast_to transpose matmul no_reorder load_transpose2d gather_flattened ds
    affine_range sequential_range static_range dynamic_range fori_loop while_loop ndarray zeros
    load store program_id num_programs program_ndim shared_constant shared_identity_matrix
    device_print rand
    """,
    collectives: """
    ReplicaGroup all_reduce all_gather all_gather_v reduce_scatter all_to_all all_to_all_v
    collective_permute collective_permute_implicit collective_permute_implicit_reduce
    collective_permute_implicit_current_processing_rank_id rank_id
    """,
}
"""Module -> the names of the API reference, NKI 0.6."""


@pytest.mark.parametrize("module", NAMES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_name_is_there_or_says_why_not(module: ModuleType) -> None:
    listed = dir(module)
    for name in NAMES[module].split():
        assert name in listed
        assert getattr(module, name) is not None
    for name, reason in getattr(module, "NOT_BUILT", {}).items():

        def kernel(x: Tensor, module: ModuleType = module, name: str = name) -> Tensor:
            getattr(module, name)()
            return x

        with pytest.raises(UnsupportedProgramError) as raised:
            nki.simulate(nki.jit(kernel))(np.zeros((128, 4), np.float32))
        assert "test_surface.py:" in str(raised.value)
        assert f"{name} is not built: {reason}" in str(raised.value)


def test_every_signature_has_a_builder_whose_fields_exist() -> None:
    assert BUILDERS.keys() == SIGNATURES.keys()
    for builder in BUILDERS.values():
        fields = inspect.signature(builder.instruction).parameters
        assert set(builder.renamed.values()) <= set(fields)


@nki.jit
def copied(x: Tensor) -> Tensor:
    return stored(loaded(x))


@nki.jit
def cast(x: Tensor, dtype: ElementType) -> Tensor:
    return stored(language.copy(loaded(x), dtype=dtype))


def test_long_integers_are_copied_and_no_engine_takes_them() -> None:
    x = np.arange(128 * 4).reshape(128, 4) << 40
    np.testing.assert_array_equal(nki.simulate(copied)(x), x)
    with pytest.raises(KernelError, match=r"int64 on NeuronCore-v3; allowed"):
        nki.simulate(cast)(np.ones((128, 4), np.float32), language.int64)


def test_fp8_with_four_digits() -> None:
    x = np.random.default_rng(0).standard_normal((128, 64), np.float32)
    expected = x.astype(ml_dtypes.float8_e3m4)
    np.testing.assert_array_equal(nki.simulate(cast)(x, language.float8_e3m4), expected)
