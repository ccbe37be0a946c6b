"""Instructions with inputs, and what numpy makes of those in FP64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from tests.emulate.single import Arrays, Outputs

BF16, F8 = ml_dtypes.bfloat16, ml_dtypes.float8_e5m2
RNG = np.random.default_rng(7)
F32 = "float32"


@dataclass(frozen=True)
class Case:
    """`expected` gets inputs as they are; results are equal to `steps` of float32 precision."""

    text: str
    inputs: Arrays
    outputs: Outputs
    expected: Callable[..., object]
    steps: float = 0.0
    options: dict[str, object] = field(default_factory=dict)


def f(*shape: int, dtype: type = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def i(*shape: int, dtype: type = np.int32, low: int = -100, high: int = 100) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


def w(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def out(dtype: str, *shape: int) -> Outputs:
    return {"y": (dtype, shape)}


NAN_ROW = np.array([[np.nan, np.inf, -np.inf, 1.0]] * 4, np.float32)
COLUMN = {"a": f(16, 32), "s": f(16, 1)}
PAIR = {"a": f(16, 32), "b": f(16, 32)}
WORDS = {"a": i(16, 8, low=-(2**31), high=2**31), "b": i(16, 8, low=-(2**31), high=2**31)}
DISTINCT = RNG.permutation(16 * 64).reshape(16, 64).astype(np.float32)
TOP = {"a": DISTINCT, "v": -np.sort(-DISTINCT, 1)[:, :8]}
MASK32 = tuple((3 * lane + 1) % 32 for lane in range(31))
GATHERED = {"a": f(32, 40), "k": i(32, 2, dtype=np.uint16, low=0, high=40)}
SPARSE = (f(32, 12) * (RNG.random((32, 12)) < 0.5)).astype(np.float32)
SEGMENTS = np.array([[0, 1, 1, 1, 2, 2, 0, 3]], np.float32)
SNAKE = RNG.permutation(16 * 20).reshape(16, 20).astype(BF16)
TABLE, ROWS = f(50, 8), RNG.permutation(50)[:16].astype(np.uint32)[:, None]


def moments(a: np.ndarray) -> np.ndarray:
    x = w(a)
    parts = [(p.shape[1], p.mean(1), p.var(1) * p.shape[1]) for p in (x[:, ::2], x[:, 1::2])]
    columns = [np.broadcast_to(each, (len(x),)) for part in parts for each in part]
    return np.stack(columns, 1)


def running_scan(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    last, columns = np.zeros(len(a)), []
    for one, other in zip(w(a).T, w(b).T, strict=True):
        last = one * last + other
        columns.append(last)
    return np.stack(columns, 1)


def shuffled(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    result = b.copy()
    for quadrant in range(0, len(a), 32):
        for lane, source in enumerate(MASK32):
            result[quadrant + lane] = a[quadrant + source]
    return result


def gathered(a: np.ndarray, k: np.ndarray) -> np.ndarray:
    result = np.empty((32, 32), a.dtype)
    for partition in range(32):
        core = k[partition // 16 * 16 : partition // 16 * 16 + 16]
        for place in range(32):
            result[partition, place] = a[partition, core[place % 16, place // 16]]
    return result


def nonzeros(a: np.ndarray) -> np.ndarray:
    result = np.full((32, 13), 7, np.int32)
    for row in (0, 16):
        places = [place + 100 for place, value in enumerate(a[row]) if value != 0]
        result[row] = [*places, *[-1] * (12 - len(places)), len(places)]
    return result


def top_of_snake(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    line = [float(a[place % 16, place // 16]) for place in range(300)]
    order = sorted(range(300), key=line.__getitem__)[-16:]
    return np.array([line[place] for place in order])[:, None], np.array(order)[:, None]


def clamped(x: np.ndarray, dtype: type) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.clip(np.rint(w(x)), info.min, info.max)


CASES: dict[str, Case] = {
    # Tensor engine
    "nc_matmul": Case(
        "nc_matmul dst={y} stationary={a} moving={b}",
        {"a": f(64, 32, dtype=BF16), "b": f(64, 100, dtype=BF16)}, out(F32, 32, 100),
        lambda a, b: w(a).T @ w(b), 32, {"psum": ("y",)}),
    "nc_matmul of whole tiles": Case(
        "nc_matmul dst={y} stationary={a} moving={b}",
        {"a": f(128, 128, dtype=BF16), "b": f(128, 512, dtype=BF16)}, out(F32, 128, 512),
        lambda a, b: w(a).T @ w(b), 64, {"psum": ("y",)}),
    "nc_matmul fp8 double row": Case(
        "nc_matmul dst={y} stationary=%a<0, 32>[0; 16:2, 1:16] moving=%b<0, 32>[0; 24:2, 1:24]"
        " perf_mode=double_row",
        {"a": f(32, 32, dtype=F8), "b": f(32, 48, dtype=F8)}, out(F32, 16, 24),
        lambda a, b: np.einsum("kjm,kjn->mn", w(a).reshape(32, 2, 16), w(b).reshape(32, 2, 24)),
        32, {"psum": ("y",)}),
    "nc_matmul accumulates": Case(
        "nc_matmul dst={y} stationary={a} moving={b} stop=false\n"
        "nc_matmul dst={y} stationary={a} moving={b} start=false",
        {"a": f(8, 4), "b": f(8, 6)}, out(F32, 4, 6), lambda a, b: 2 * w(a).T @ w(b), 16,
        {"psum": ("y",)}),
    "nc_matmul moves bits": Case(
        "nc_matmul dst={y} stationary={a} moving={b} is_transpose=true",
        {"a": NAN_ROW, "b": np.eye(4, dtype=np.float32)}, out(F32, 4, 4), lambda a, b: a.T,
        0, {"psum": ("y",)}),
    "tensor_transpose": Case(
        "tensor_transpose dst={y} data={a}", {"a": NAN_ROW}, out(F32, 4, 4), lambda a: a.T,
        0, {"psum": ("y",)}),
    "tensor_transpose spreads before v3": Case(
        "tensor_transpose dst={y} data={a}", {"a": NAN_ROW}, out(F32, 4, 4),
        lambda a: np.stack([np.full(4, np.nan)] * 3 + [np.ones(4)]),
        0, {"psum": ("y",), "target": "trainium1"}),
    # Vector engine
    "tensor_tensor": Case(
        "tensor_tensor dst={y} data1={a} data2={b} op=subtract",
        {"a": f(16, 32), "b": f(16, 32, dtype=BF16)}, out(F32, 16, 32),
        lambda a, b: w(a) - w(b), 0.5),
    "tensor_tensor rounds": Case(
        "tensor_tensor dst={y} data1={a} data2={b} op=multiply", PAIR, out("bfloat16", 16, 32),
        lambda a, b: (a * b).astype(BF16)),
    "tensor_tensor integers go through float32": Case(
        "tensor_tensor dst={y} data1={a} data2={b} op=add",
        {"a": np.array([[2**24 + 1, 5, 2**31 - 1]], np.int32),
         "b": np.array([[0, 6, 1]], np.int32)}, out("int32", 1, 3),
        lambda a, b: np.array([[2**24, 11, 2**31 - 1]])),
    "tensor_tensor integers on gpsimd": Case(
        "tensor_tensor dst={y} data1={a} data2={b} op=multiply engine=gpsimd", WORDS,
        out("int32", 16, 8), lambda a, b: a * b),
    "tensor_tensor bits": Case(
        "tensor_tensor dst={y} data1={a} data2={b} op=bitwise_xor", WORDS, out("int32", 16, 8),
        lambda a, b: a ^ b),
    "tensor_tensor maximum": Case(
        "tensor_tensor dst={y} data1={a} data2={b} op=maximum",
        {"a": NAN_ROW, "b": NAN_ROW[:, ::-1].copy()}, out(F32, 4, 4),
        lambda a, b: np.array([[np.nan, np.inf, np.inf, np.nan]] * 4)),
    "tensor_scalar": Case(
        "tensor_scalar dst={y} data={a} op0=subtract operand0={s} reverse0=true op1=maximum"
        " operand1=#0.25", COLUMN, out(F32, 16, 32),
        lambda a, s: np.maximum(w(s) - w(a), 0.25), 0.5),
    "tensor_scalar shifts": Case(
        "tensor_scalar dst={y} data={a} op0=right_shift operand0=#3 op1=bitwise_and operand1=#255",
        {"a": WORDS["a"]}, out("int32", 16, 8), lambda a: (a >> 3) & 255),
    "tensor_scalar compares": Case(
        "tensor_scalar dst={y} data={a} op0=less operand0=#0.0", {"a": f(8, 8)},
        out("uint8", 8, 8), lambda a: a < 0),
    "tensor_scalar saturates": Case(
        "tensor_scalar dst={y} data={a} op0=multiply operand0=#100.0", {"a": f(8, 64)},
        out("int8", 8, 64), lambda a: clamped(a * np.float32(100), np.int8)),
    "tensor_scalar NaN to integer": Case(
        "tensor_scalar dst={y} data={a} op0=add operand0=#0.5", {"a": NAN_ROW},
        out("int16", 4, 4), lambda a: np.array([[0, 32767, -32768, 2]] * 4)),
    "scalar_tensor_tensor": Case(
        "scalar_tensor_tensor dst={y} data={a} op0=multiply operand0={s} op1=add operand1={b}",
        {**COLUMN, "b": PAIR["b"]}, out(F32, 16, 32), lambda a, s, b: w(a * s) + w(b), 0.5),
    "tensor_reduce": Case(
        "tensor_reduce dst={y} op=add data=%a<0, 8>[0; 32:3, 4:8, 1:4] axes=2", {"a": f(8, 96)},
        out(F32, 8, 3), lambda a: w(a).reshape(8, 3, 32).sum(2), 32),
    "tensor_reduce negated": Case(
        "tensor_reduce dst={y} op=minimum data={a} negate=true", {"a": f(8, 16)},
        out(F32, 8, 1), lambda a: -a.min(1, keepdims=True)),
    "tensor_reduce over a stride": Case(
        "tensor_reduce dst={y} op=maximum data=%a<0, 8>[0; 1:4, 4:6] axes=1", {"a": f(8, 24)},
        out(F32, 8, 4), lambda a: a.reshape(8, 6, 4).max(1)),
    "tensor_scalar_reduce": Case(
        "tensor_scalar_reduce dst={y} data={a} op0=multiply operand0=#2.0 reduce_op=maximum"
        " reduce_res={z} reduce_res_negate=true", {"a": f(8, 16)},
        {"y": (F32, (8, 16)), "z": (F32, (8, 1))},
        lambda a: (2 * a, -2 * a.max(1, keepdims=True))),
    "tensor_scalar_reduce reversed": Case(
        "tensor_scalar_reduce dst={y} data={a} op0=subtract operand0=#2.0 reverse0=true"
        " reduce_op=minimum reduce_res={z}", {"a": f(8, 16)},
        {"y": (F32, (8, 16)), "z": (F32, (8, 1))},
        lambda a: (2 - a, (2 - a).min(1, keepdims=True))),
    "tensor_scalar_cumulative": Case(
        "tensor_scalar_cumulative dst={y} src={a} op0=multiply op1=add imm0=#1.0",
        {"a": f(8, 30)}, out(F32, 8, 30), lambda a: np.cumsum(w(a), 1), 32),
    "tensor_scalar_cumulative goes on": Case(
        "tensor_scalar_cumulative dst={y} src={a} op0=add op1=subtract imm0=#0.0 imm1=#1.0"
        " reduce_cmd=load_reduce", {"a": f(8, 3)}, out(F32, 8, 3),
        lambda a: np.stack([a[:, 0] - 1, a[:, 1] - (a[:, 0] - 1),
                            a[:, 2] - (a[:, 1] - (a[:, 0] - 1))], 1)),
    "tensor_tensor_scan": Case(
        "tensor_tensor_scan dst={y} data0={a} data1={b} initial=#0.0 op0=multiply op1=add",
        PAIR, out(F32, 16, 32), running_scan, 64),
    "tensor_copy": Case(
        "tensor_copy dst={y} src=%a<0, 8>[15; -1:16]", {"a": f(8, 16)}, out(F32, 8, 16),
        lambda a: a[:, ::-1]),
    "tensor_copy casts": Case(
        "tensor_copy dst={y} src={a}", {"a": f(8, 16) * 100}, out("float8_e5m2", 8, 16),
        lambda a: a.astype(F8)),
    "tensor_copy strides": Case(
        "tensor_copy dst=%y<0, 8>[0; 2:8] src=%a<0, 8>[0; 1:8]\n"
        "tensor_copy dst=%y<0, 8>[1; 2:8] src=%a<0, 8>[8; 1:8]",
        {"a": f(8, 16, dtype=BF16)}, out("bfloat16", 8, 16),
        lambda a: a.reshape(8, 2, 8).swapaxes(1, 2).reshape(8, 16)),
    "tensor_copy_predicated": Case(
        "tensor_copy dst={y} src={b}\ntensor_copy_predicated dst={y} src={a} predicate={p}",
        {**PAIR, "p": i(16, 32, dtype=np.uint8, low=0, high=2)}, out(F32, 16, 32),
        lambda a, b, p: np.where(p, a, b)),
    "select_reduce": Case(
        "select_reduce dst={y} predicate={p} on_true={a} on_false=#-9.0 reduce_res={z}"
        " reduce_cmd=reset_reduce reverse_pred=true",
        {"a": PAIR["a"], "p": i(16, 32, dtype=np.uint8, low=0, high=2)},
        {"y": (F32, (16, 32)), "z": (F32, (16, 1))},
        lambda a, p: (np.where(p, -9, a), np.where(p, -9, a).max(1, keepdims=True))),
    "range_select": Case(
        "range_select dst={y} on_true={a} comp_op0=greater_equal comp_op1=less bound0={g}"
        " bound1={h} range_start=5",
        {"a": PAIR["a"], "g": np.full((16, 1), 7, np.float32),
         "h": np.arange(16, dtype=np.float32)[:, None] + 10}, out(F32, 16, 32),
        lambda a, g, h: np.where(
            (np.arange(5, 37) >= g) & (np.arange(5, 37) < h), a, np.finfo(np.float32).min)),
    "memset": Case("memset dst={y} value=#0.1", {}, out("bfloat16", 4, 4),
                   lambda: np.full((4, 4), 0.1).astype(BF16)),
    "memset integers": Case("memset dst={y} value=#-1", {}, out("uint64", 4, 4),
                            lambda: np.full((4, 4), 2**64 - 1, np.uint64)),
    "bn_stats": Case("bn_stats dst={y} data={a}", {"a": f(8, 33)}, out(F32, 8, 6), moments, 2),
    "bn_aggr": Case(
        "bn_stats dst=%t<0, 8>[0; 1:6] data=%a<0, 8>[0; 1:20]\n"
        "bn_stats dst=%t<0, 8>[6; 1:6] data=%a<0, 8>[20; 1:13]\n"
        "bn_aggr dst={y} data=%t<0, 8>[0; 1:12]",
        {"a": f(8, 33)}, {"y": (F32, (8, 2)), "t": (F32, (8, 12))},
        lambda a: (np.stack([w(a).mean(1), w(a).var(1)], 1), None), 8),
    "reciprocal": Case("reciprocal dst={y} data={a}", {"a": f(8, 16)}, out(F32, 8, 16),
                       lambda a: 1 / w(a), 0.5),
    "exponential": Case(
        "exponential dst={y} src={a} max_value={s} reduce_res={z} reduce_cmd=reset_reduce",
        COLUMN, {"y": (F32, (16, 32)), "z": (F32, (16, 1))},
        lambda a, s: (np.exp(w(a - s)), np.exp(w(a - s)).sum(1, keepdims=True)), 16),
    "max8": Case("max8 dst={y} src={a}", {"a": DISTINCT}, out(F32, 16, 8),
                 lambda a: -np.sort(-a, 1)[:, :8]),
    "nc_find_index8": Case(
        "nc_find_index8 dst={y} data={a} vals={v}", TOP, out("uint32", 16, 8),
        lambda a, v: np.argsort(-a, 1)[:, :8]),
    "nc_find_index8 finds nothing": Case(
        "nc_find_index8 dst={y} data={a} vals={v}", {**TOP, "v": TOP["v"] + 0.5},
        out("uint16", 16, 8), lambda a, v: np.full((16, 8), 0xFFFF)),
    "nc_match_replace8": Case(
        "nc_match_replace8 dst={y} data={a} vals={v} imm=#-1.0 dst_idx={k}", TOP,
        {"y": (F32, (16, 64)), "k": ("uint32", (16, 8))},
        lambda a, v: (np.where(a >= v[:, -1:], -1, a), np.argsort(-a, 1)[:, :8])),
    "nc_stream_shuffle": Case(
        "tensor_copy dst={y} src={b}\nnc_stream_shuffle dst={y} src={a} mask="
        f"({', '.join(map(str, (*MASK32, 255)))})", {"a": f(64, 8), "b": f(64, 8)},
        out(F32, 64, 8), shuffled),
    "vector_transpose": Case("vector_transpose dst={y} data={a}", {"a": f(16, 32)},
                             out(F32, 32, 16), lambda a: a.T),
    # Scalar engine
    "activation": Case(
        "activation dst={y} op=tanh data={a} scale=#2.0 bias={s}", COLUMN, out(F32, 16, 32),
        lambda a, s: np.tanh(w(a * np.float32(2) + s)), 0.6),
    "activation accumulates": Case(
        "activation dst={y} op=square data={a} reduce_op=add reduce_cmd=reset_reduce\n"
        "activation dst={y} op=copy data={a} reduce_op=add reduce_cmd=reduce reduce_res={z}",
        {"a": f(8, 16)}, {"y": (F32, (8, 16)), "z": (F32, (8, 1))},
        lambda a: (a, (w(a) ** 2 + w(a)).sum(1, keepdims=True)), 32),
    "activation_reduce": Case(
        "activation_reduce dst={y} op=exp data={a} reduce_res={z}", {"a": f(8, 16)},
        {"y": ("bfloat16", (8, 16)), "z": (F32, (8, 1))},
        lambda a: (np.exp(w(a)).astype(BF16), np.exp(w(a)).sum(1, keepdims=True)), 16),
    "activate2": Case(
        "activate2 dst={y} op=prelu data={a} op0=multiply imm0=#2.0 op1=subtract imm1=#1.0"
        " reverse1=true relu_param=#0.5", {"a": f(8, 16)}, out(F32, 8, 16),
        lambda a: np.where(1 - 2 * a > 0, 1 - 2 * a, 0.5 * (1 - 2 * a))),
    # GpSimd engine
    "iota": Case("iota dst={y} pattern=(10:3, -1:4) offset=5 channel_multiplier=100", {},
                 out("int32", 4, 12),
                 lambda: 5 + 100 * np.arange(4)[:, None]
                 + (10 * np.arange(3)[:, None] - np.arange(4)).reshape(1, 12)),
    "affine_select": Case(
        "affine_select dst={y} pattern=(-1:32) channel_multiplier=1 on_true={a} on_false=#-5.0"
        " cmp_op=greater", {"a": f(16, 32)}, out(F32, 16, 32),
        lambda a: np.where(np.tril(np.ones((16, 32)), -1) > 0, a, -5)),
    "affine_select keeps integers": Case(
        "affine_select dst={y} pattern=(1:8) channel_multiplier=-1 on_true={a} on_false=#-5"
        " cmp_op=less_equal", {"a": WORDS["a"]}, out("int32", 16, 8),
        lambda a: np.where(np.tril(np.ones((16, 8))) > 0, a, -5)),
    "tensor_partition_reduce": Case(
        "tensor_partition_reduce dst={y} op=add data={a}", {"a": f(16, 32)}, out(F32, 1, 32),
        lambda a: w(a).sum(0, keepdims=True), 16),
    "tensor_partition_reduce bits": Case(
        "tensor_partition_reduce dst={y} op=bitwise_and data={a}", {"a": WORDS["a"]},
        out("int32", 1, 8), lambda a: np.bitwise_and.reduce(a, 0)[None]),
    "local_gather": Case("local_gather dst={y} src={a} index={k}", GATHERED, out(F32, 32, 32),
                         gathered),
    "nc_n_gather": Case(
        "nc_n_gather dst={y} data={a} indices={k}",
        {"a": f(8, 40), "k": i(8, 12, dtype=np.uint32, low=0, high=40)}, out(F32, 8, 12),
        lambda a, k: np.stack([row[places] for row, places in zip(a, k, strict=True)])),
    "nonzero_with_count": Case(
        "memset dst={y} value=#7\nnonzero_with_count dst={y} src={a} index_offset=100",
        {"a": SPARSE}, out("int32", 32, 13), nonzeros),
    "topk": Case(
        "topk values=%y<0, 16>[0; 1:16] indices=%k<0, 16>[0; 1:16] src={a} n=300\n"
        "tensor_copy dst={z} src=%y<0, 16>[0; 1:1]\ntensor_copy dst={m} src=%k<0, 16>[0; 1:1]\n"
        "memset dst={y} value=#0.0\nmemset dst={k} value=#0",
        {"a": SNAKE}, {"y": ("bfloat16", (16, 16)), "k": ("uint32", (16, 16)),
                       "z": ("bfloat16", (16, 1)), "m": ("uint32", (16, 1))},
        lambda a: (None, None, *top_of_snake(a))),
    "sequence_bounds": Case(
        "sequence_bounds dst={y} segment_ids={a}", {"a": SEGMENTS}, out("int32", 1, 16),
        lambda a: np.array([[8, 1, 1, 1, 4, 4, 8, 7, -1, 4, 4, 4, 6, 6, -1, 8]])),
    "core_barrier": Case("tensor_copy dst={y} src={a}\ncore_barrier data={y}", {"a": f(4, 4)},
                         out(F32, 4, 4), lambda a: a),
    # DMA
    "dma_copy": Case("dma_copy dst={y} src=%hbm_a[3; 8:4, 1:5]", {"a": f(4, 8)},
                     out(F32, 4, 5), lambda a: a[:, 3:]),
    "dma_copy casts": Case("dma_copy dst={y} src={hbm_a}", {"a": f(4, 8)}, out("bfloat16", 4, 8),
                           lambda a: a.astype(BF16)),
    "dma_copy repeats": Case("dma_copy dst={y} src=%hbm_a[8; 0:4, 1:8]", {"a": f(4, 8)},
                             out(F32, 4, 8), lambda a: np.stack([a[1]] * 4)),
    "dma_gather": Case(
        "dma_gather dst={y} table={hbm_t} index={k}", {"t": TABLE, "k": ROWS}, out(F32, 16, 8),
        lambda t, k: t[k[:, 0]]),
    "dma_gather skips": Case(
        "memset dst={y} value=#2.0\n"
        "dma_gather dst={y} table=%hbm_t[0; 8:20, 1:8] index={k} out_of_bounds=skip",
        {"t": TABLE, "k": ROWS}, out(F32, 16, 8), lambda t, k: np.where(k < 20, t[k[:, 0]], 2)),
    "dma_gather accumulates": Case(
        "memset dst={y} value=#2.0\n"
        "dma_gather dst={y} table={hbm_t} index={k} accumulate=true",
        {"t": TABLE, "k": ROWS}, out(F32, 16, 8), lambda t, k: t[k[:, 0]] + 2),
    "dma_scatter": Case(
        "dma_copy dst={hbm_y} src={hbm_t}\n"
        "dma_scatter table=%hbm_y[0; 8:50, 1:8] src={a} index={k}",
        {"t": TABLE, "k": ROWS, "a": f(16, 8)}, out(F32, 50, 8),
        lambda t, k, a: np.array([a[list(k[:, 0]).index(row)] if row in k else t[row]
                                  for row in range(50)])),
    "dma_transpose": Case("dma_transpose dst={y} src={hbm_a}", {"a": f(16, 24)},
                          out(F32, 24, 16), lambda a: a.T),
    "dma_transpose of three axes": Case(
        "dma_transpose dst=%y<0, 5>[0; 8:3, 1:8] src=%hbm_a[0; 15:8, 5:3, 1:5] axes=(2, 1, 0)",
        {"a": f(8, 15)}, out(F32, 5, 24),
        lambda a: a.reshape(8, 3, 5).transpose(2, 1, 0).reshape(5, 24)),
    "dma_gather_transpose": Case(
        "dma_gather_transpose dst={y} table={hbm_t} index={k}", {"t": TABLE, "k": ROWS},
        out(F32, 8, 16), lambda t, k: t[k[:, 0]].T),
    "dma_compute": Case(
        "dma_compute dst={y} srcs=({hbm_a}, {hbm_b}, {hbm_a})", PAIR, out(F32, 16, 32),
        lambda a, b: 2 * w(a) + w(b), 2),
}  # fmt: skip
"""Name, which begins with the mnemonic -> case."""
