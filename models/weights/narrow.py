"""Narrow weights in checkpoints: `quantization_config` and the tensors beside it.

Names are those of compressed-tensors (github.com/vllm-project/compressed-tensors), which
transformers and vLLM read: `X.weight` holds the numbers, or `X.weight_packed` two in each byte, and
`X.weight_scale` the scales [output blocks, input blocks], or [1] for a whole tensor. Blocks of FP8
as DeepSeek-V3 and Qwen3 store them are read and written too; their scales, which multiply as all
others do, are called `X.weight_scale_inv`. gpt-oss stores its experts as MXFP4 in `X_blocks` and
`X_scales`. Which layers are narrow follows from the tensors.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from models.layers.narrow import FOUR_BITS, Storage, narrow_name
from models.weights.fields import Fields
from models.weights.table import KeyTable, Row, row
from models.weights.transforms import KERNEL, Fused, Kernel, Shape, Transform

FIELD = "quantization_config"
HINTS, HINT = "neuron_config", "quantization_dtype"
"""Where FP8 is told apart: names of files know one E4M3 only, that whose largest number is 448."""

_HINTED: Mapping[str, str] = {"float8_e4m3": "f8e4m3", "float8_e5m2": "f8e5m2"}
_METHOD, _BLOCKS, _EXPERTS = "compressed-tensors", "fp8", "mxfp4"
SCALE_SUFFIXES: Mapping[str, str] = {
    _METHOD: "_scale",
    _BLOCKS: "_scale_inv",
    _EXPERTS: "_scales",
}
"""Method -> what a scale's key has after that of its numbers."""

_METHODS = ", ".join(SCALE_SUFFIXES)
MX_BLOCK = 32


@dataclass(frozen=True)
class PackedBlocks:
    """Bytes of two numbers each, [experts, inputs / 2, outputs], which gpt-oss's files hold as
    [experts, outputs, blocks of inputs, MX_BLOCK / 2]."""

    def stored_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        ((experts, inputs, outputs),) = shapes
        return [(experts, outputs, inputs // (MX_BLOCK // 2), MX_BLOCK // 2)]

    def split(self, tensors: Sequence[np.ndarray], shapes: Sequence[Shape]) -> list[np.ndarray]:
        experts, outputs = tensors[0].shape[:2]
        return [tensors[0].reshape(experts, outputs, -1).swapaxes(1, 2)]

    def join(self, parameters: Sequence[np.ndarray]) -> list[np.ndarray]:
        (stored,) = self.stored_shapes([parameters[0].shape])
        return [parameters[0].swapaxes(1, 2).reshape(stored)]


@dataclass(frozen=True)
class Scales:
    """Scales [..., I, O], which files hold as [..., O, I], or [..., 1] if there is one."""

    def stored_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        (shape,) = shapes
        rows, columns = shape[-2:]
        return [(*shape[:-2], *((1,) if rows * columns == 1 else (columns, rows)))]

    def split(self, tensors: Sequence[np.ndarray], shapes: Sequence[Shape]) -> list[np.ndarray]:
        if shapes[0][-2:] == (1, 1):
            return [tensors[0].reshape(shapes[0])]
        return [tensors[0].swapaxes(-1, -2)]

    def join(self, parameters: Sequence[np.ndarray]) -> list[np.ndarray]:
        (stored,) = self.stored_shapes([parameters[0].shape])
        return [parameters[0].swapaxes(-1, -2).reshape(stored)]


SCALES, PACKED_BLOCKS = Scales(), PackedBlocks()


def scale_suffix(fields: Fields) -> str:
    """What the keys of scales end with. Raises ConfigError for a method that is not supported."""
    config = fields.object(FIELD, Fields({}, fields.where))
    config.refuse("quant_method", *SCALE_SUFFIXES, why=f"the supported methods are {_METHODS}")
    return SCALE_SUFFIXES[config.text("quant_method", _METHOD)]


def with_narrow_rows(table: KeyTable, suffix: str) -> KeyTable:
    """The table with rows for what belongs to narrow kernels; see `scale_suffix`."""
    return replace(table, rows=(*table.rows, *_narrow_rows(table.rows, suffix)))


def _narrow_rows(rows: Iterable[Row], suffix: str) -> Iterable[Row]:
    for template_row in rows:
        keys = [key.text for key in template_row.keys]
        is_linear = isinstance(template_row.transform, (Kernel, Fused)) and len(keys) == 1
        if not is_linear or not keys[0].endswith(".weight") or _is_batched(template_row.transform):
            continue
        parameters = [narrow_name(parameter.text) for parameter in template_row.parameters]
        scales = [f"{name}.scale" for name in parameters]
        packed = [f"{name}.packed" for name in parameters]
        yield row(f"{keys[0]}{suffix}", scales, _share_part(template_row.transform, SCALES))
        yield row(f"{keys[0]}_packed", packed, _share_part(template_row.transform, KERNEL))


def _is_batched(transform: Transform) -> bool:
    part = transform.part if isinstance(transform, Fused) else transform
    return isinstance(part, Kernel) and part.batch_axes > 0


def _share_part(transform: Transform, part: Transform) -> Transform:
    return Fused(part) if isinstance(transform, Fused) else part


def narrow_kernels(table: KeyTable, keys: Iterable[str], suffix: str) -> set[str]:
    """The paths of the kernels that these keys of tensors give scales to."""
    paths = set()
    ending = f"{narrow_name('')}.scale"
    rows = [
        template_row
        for template_row in (*table.rows, *_narrow_rows(table.rows, suffix))
        if template_row.keys[0].text.endswith(suffix)
        and template_row.parameters[0].text.endswith(ending)
    ]
    for key in map(table.canonical, keys):
        for template_row in rows:
            numbers = template_row.keys[0].match(key)
            if numbers is not None:
                filled = (parameter.fill(numbers) for parameter in template_row.parameters)
                paths |= {name.removesuffix(ending) for name in filled}
    return paths


def check_narrow(fields: Fields, paths: Collection[str]) -> None:
    """Raises ConfigError if a checkpoint tells of narrow experts and has none of its model's."""
    suffix = scale_suffix(fields)
    if suffix == SCALE_SUFFIXES[_EXPERTS] and not paths:
        why = (
            f"{_EXPERTS} is supported only for the experts of gpt-oss, stored as …_blocks and "
            f"…{suffix}"
        )
        raise fields.fail(FIELD, why)


def has_cache_scales(fields: Fields) -> bool:
    """Whether a quantised checkpoint has scales for a cache of FP8."""
    config = fields.object(FIELD, Fields({}, fields.where))
    return "kv_cache_scheme" in config


def read_storage(fields: Fields) -> Storage | None:
    """How the narrow weights of a checkpoint are stored; None if its config.json tells of none.

    Raises ConfigError for quantisation that is not supported.
    """
    config = fields.object(FIELD, None)
    if config is None:
        return None
    suffix = scale_suffix(fields)
    if suffix == SCALE_SUFFIXES[_EXPERTS]:
        return Storage(FOUR_BITS, MX_BLOCK, 1, exponents=True)
    if suffix == SCALE_SUFFIXES[_BLOCKS]:
        return _read_blocks(config)
    groups = config.object("config_groups")
    if len(groups.values) != 1:
        raise config.fail("config_groups", "only one group of layers is supported")
    group = groups.object(next(iter(groups.values)))
    activations = group.object("input_activations", None)
    if activations is not None and not activations.flag("dynamic", False):
        raise group.fail(
            "input_activations",
            "only weights may be quantised in advance; activations must be quantised dynamically",
        )
    weights = group.object("weights")
    weights.refuse("symmetric", True, why="only quantisation without zero points is supported")
    hints = fields.object(HINTS, Fields({}, fields.where))
    return Storage(_dtype(weights, hints), *_blocks(weights), exponents=_has_exponents(config))


def _read_blocks(config: Fields) -> Storage:
    """FP8 in blocks; what happens to activations while a model runs is not stored."""
    config.refuse("fmt", "e4m3", why="only e4m3 is supported")
    config.refuse(
        "activation_scheme",
        "dynamic",
        why="only weights may be quantised in advance; activations must be quantised dynamically",
    )
    if "weight_block_size" not in config:
        raise config.fail("weight_block_size", "give the numbers of outputs and inputs in a block")
    outputs, inputs = config.pair("weight_block_size")
    return Storage("float8_e4m3fn", inputs, outputs)


def _dtype(weights: Fields, hints: Fields) -> str:
    kind = (weights.text("type", "int"), weights.positive("num_bits", 8))
    known = {("int", 8): "int8", ("float", 8): "float8_e4m3fn", ("float", 4): FOUR_BITS}
    if kind not in known:
        raise weights.fail("num_bits", f"{kind[0]} with this number of bits is not supported")
    hinted = {hint: dtype for dtype, hint in _HINTED.items()}
    return hinted.get(hints.text(HINT, ""), known[kind])


def _blocks(weights: Fields) -> tuple[int | None, int | None]:
    strategy = weights.text("strategy", "tensor")
    if strategy == "block":
        outputs, inputs = weights.list("block_structure")
        return inputs, outputs
    if strategy == "group":
        return weights.positive("group_size"), 1
    blocks: dict[str, tuple[int | None, int | None]] = {
        "tensor": (None, None),
        "channel": (None, 1),
    }
    if strategy not in blocks:
        raise weights.fail("strategy", f"choose one of {', '.join([*blocks, 'block', 'group'])}")
    return blocks[strategy]


def _has_exponents(config: Fields) -> bool:
    return config.text("format", "").startswith("mx")


def describe_storage(storage: Storage, ignored: Sequence[str], *, kv_cache: bool) -> dict[str, Any]:
    """The fields of config.json that say how weights are stored; `ignored` are names of layers.

    With `kv_cache` there are scales for a cache of FP8.
    """
    bits = 4 if storage.is_packed else 8
    kind = "int" if storage.dtype == "int8" else "float"
    weights = {
        "num_bits": bits,
        "type": kind,
        "symmetric": True,
        "dynamic": False,
        **_strategy(storage),
    }
    layout = f"mxfp{bits}" + ("-pack" if storage.is_packed else "") if storage.exponents else kind
    cache = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True}
    group = {"targets": ["Linear"], "weights": weights}
    fields: dict[str, Any] = {
        FIELD: {
            "quant_method": _METHOD,
            "format": f"{layout}-quantized",
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": list(ignored),
            "kv_cache_scheme": {**cache, "dynamic": False} if kv_cache else None,
        }
    }
    if storage.dtype in _HINTED:
        fields[HINTS] = {HINT: _HINTED[storage.dtype]}
    return fields


def _strategy(storage: Storage) -> dict[str, Any]:
    if storage.block_in is None:
        return {"strategy": "tensor" if storage.block_out is None else "channel"}
    if storage.block_out == 1:
        return {"strategy": "group", "group_size": storage.block_in}
    return {"strategy": "block", "block_structure": [storage.block_out, storage.block_in]}
