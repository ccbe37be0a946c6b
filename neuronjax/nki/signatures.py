"""The functions of `nki.isa`: their arguments and defaults, by name, as NKI documents them.

Source: the API reference of NKI in the AWS Neuron documentation.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence, Set

from neuronjax.nki import constants

_NONE = inspect.Parameter.empty
SIGNATURES: Mapping[str, str] = {
    "dma_copy": "dst, src, priority=None, oob_mode=oob_mode.error, dge_mode=dge_mode.unknown, "
    "engine=engine.unknown, name=None",
    "tensor_copy": "dst, src, engine=engine.unknown, name=None",
    "memset": "dst, value, engine=engine.unknown, name=None",
    "tensor_copy_predicated": "dst, src, predicate, reverse_pred=False, name=None",
    "nc_matmul": "dst, stationary, moving, is_stationary_onezero=False, is_moving_onezero=False, "
    "is_transpose=False, accumulate=None, tile_position=(), tile_size=(), "
    "perf_mode=matmul_perf_mode.none, name=None",
    "nc_transpose": "dst, data, engine=engine.unknown, name=None",
    "tensor_tensor": "dst, data1, data2, op, engine=engine.unknown, name=None",
    "tensor_scalar": "dst, data, op0, operand0, reverse0=False, op1=None, operand1=None, "
    "reverse1=False, engine=engine.unknown, name=None",
    "scalar_tensor_tensor": "dst, data, op0, operand0, op1, operand1, reverse0=False, "
    "reverse1=False, name=None",
    "tensor_reduce": "dst, op, data, axis, negate=False, keepdims=False, name=None",
    "activation": "dst, op, data, bias=None, scale=1.0, reduce_op=None, reduce_res=None, "
    "reduce_cmd=reduce_cmd.idle, name=None",
    "activation_reduce": "dst, op, data, reduce_op, reduce_res, bias=None, scale=1.0, name=None",
    "activate2": "dst, op, data, imm0, imm1, op0, op1, relu_param=0.0, reverse0=False, "
    "reverse1=False, reduce_op=None, reduce_res=None, reduce_cmd=reduce_cmd.idle, name=None",
    "exponential": "dst, src, max_value=0.0, reduce_res=None, reduce_cmd=reduce_cmd.idle, "
    "reduce_init=0.0, name=None",
    "reciprocal": "dst, data, name=None",
    "tensor_scalar_reduce": "dst, data, op0, operand0, reduce_op, reduce_res=None, "
    "reverse0=False, reduce_cmd=reduce_cmd.reset_reduce, reduce_init=None, "
    "reduce_res_negate=False, name=None",
    "tensor_scalar_cumulative": "dst, src, op0, op1, imm0, imm1=None, "
    "reduce_cmd=reduce_cmd.reset_reduce, name=None",
    "select_reduce": "dst, predicate, on_true, on_false, reduce_res=None, "
    "reduce_cmd=reduce_cmd.idle, reduce_op=maximum, reverse_pred=False, name=None",
    "tensor_partition_reduce": "dst, op, data, name=None",
    "tensor_tensor_scan": "dst, data0, data1, initial, op0, op1, reverse0=False, reverse1=False, "
    "name=None",
    "nc_n_gather": "dst, data, indices, name=None",
    "nc_find_index8": "dst, data, vals, name=None",
    "nc_match_replace8": "dst, data, vals, imm, dst_idx=None, name=None",
    "nc_stream_shuffle": "dst, src, shuffle_mask, name=None",
    "bn_stats": "dst, data, name=None",
    "bn_aggr": "dst, data, name=None",
    "max8": "dst, src, name=None",
    "iota": "dst, pattern, offset=0, channel_multiplier=0, name=None",
    "affine_select": "dst, pattern, channel_multiplier, on_true_tile, on_false_value, "
    "cmp_op=equal, offset=0, name=None",
    "nc_matmul_mx": "dst, stationary, moving, stationary_scale, moving_scale, tile_position=None, "
    "tile_size=None, accumulate=None, name=None",
    "dma_transpose": "dst, src, axes=None, priority=None, dge_mode=dge_mode.unknown, "
    "oob_mode=oob_mode.error, name=None",
    "dma_compute": "dst, srcs, reduce_op, scales=None, unique_indices=True, "
    "oob_mode=oob_mode.error, name=None",
    "range_select": "dst, on_true_tile, comp_op0, comp_op1, bound0, bound1, "
    "reduce_cmd=reduce_cmd.reset_reduce, reduce_res=None, reduce_op=maximum, range_start=0, "
    "on_false_value=-3.4028234663852886e+38, name=None",
    "local_gather": "dst, src_buffer, index, num_elem_per_idx=1, num_valid_indices=None, name=None",
    "nonzero_with_count": "dst, src, index_offset=0, padding_val=-1, name=None",
    "topk": "val_dst, idx_dst, src, n, name=None",
    "sequence_bounds": "dst, segment_ids, name=None",
    "quantize_mx": "dst, src, dst_scale, name=None",
    "rng": "dst, engine=engine.vector, name=None",
    "rand2": "dst, min, max, name=None",
    "rand_set_state": "src_seeds, engine=engine.gpsimd, name=None",
    "rand_get_state": "dst, engine=engine.gpsimd, name=None",
    "set_rng_seed": "src_seeds, name=None",
    "dropout": "dst, data, prob, name=None",
    "core_barrier": "data, cores, engine=engine.gpsimd, name=None",
    "sendrecv": "src, dst, send_to_rank, recv_from_rank, pipe_id=0, dma_engine=dma_engine.dma, "
    "name=None",
    "register_move": "dst, src",
    "register_load": "dst, src",
    "register_store": "dst, src",
}
"""Name -> the parameters, in order."""


def signature(name: str) -> inspect.Signature:
    """The signature of a function of `SIGNATURES`, to bind arguments with."""
    return _signatures[name]


def bound(
    name: str, arguments: Sequence[object], keywords: Mapping[str, object]
) -> dict[str, object]:
    """The arguments of a call by parameter, with defaults for those that are not given: what
    ``inspect.Signature.bind`` says, in a fifth of its time. TypeError: no such call."""
    known, needed = _defaults[name]
    given = {**dict(zip(known, arguments, strict=False)), **keywords}
    is_clear = len(given) == len(arguments) + len(keywords) and given.keys() <= known.keys()
    if is_clear and needed <= given.keys():
        return known | given
    exact = signature(name).bind(*arguments, **keywords)
    exact.apply_defaults()
    return exact.arguments


def _parameter(text: str) -> inspect.Parameter:
    name, given, default = text.strip().partition("=")
    value = _default(default) if given else _NONE
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=value)


def _default(text: str) -> object:
    if text in constants.OPERATORS:
        return constants.OPERATORS[text]
    kind, _, member = text.partition(".")
    if kind in constants.ENUMS:
        return getattr(constants.ENUMS[kind], member)
    return ast.literal_eval(text)


_signatures = {
    name: inspect.Signature([_parameter(text) for text in parameters.split(", ")])
    for name, parameters in SIGNATURES.items()
}
_defaults: Mapping[str, tuple[dict[str, object], Set[str]]] = {
    name: (
        {key: parameter.default for key, parameter in signature.parameters.items()},
        {key for key, parameter in signature.parameters.items() if parameter.default is _NONE},
    )
    for name, signature in _signatures.items()
}
"""Name -> the default of each parameter, and those that have none."""
