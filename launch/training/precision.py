"""Precision recipes by the names that neuronx-distributed-training publishes (`precision.type`).

The state of a run holds its weights once, as exactly as they are known: FP32 where the recipe has
master weights. Each step begins by rounding them to what the layers compute with; under ZeRO-1 and
FSDP a core rounds its own part, and BF16 is what is gathered.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import jax

from launch.settings import check_settings, setting
from launch.training.parameter_kinds import Kind, kind_of, matrix_axes
from models.layers import fp8
from models.layers.fake_quantization import QuantizedInput, fake_quantize_weights
from models.layers.linear import Matmul
from models.layers.microscaling import Microscaling
from models.parameters import AxisNames, Parameters

MATMULS: Mapping[str, Callable[[str], Matmul]] = {
    "fp8_current": fp8.CurrentScaling,
    "fp8_delayed": fp8.DelayedScaling,
    "mxfp8": lambda fp8_dtype: Microscaling(),
    "quantized_int8": lambda fp8_dtype: QuantizedInput("int8"),
    "quantized_fp8": QuantizedInput,
}
"""How linear maps multiply: name -> what makes the record, of an FP8 dtype."""

_QUANTIZED: Mapping[str, Callable[[str], str]] = {
    "quantized_int8": lambda fp8_dtype: "int8",
    "quantized_fp8": lambda fp8_dtype: fp8_dtype,
}
"""Which of MATMULS want quantized weights -> their format, of an FP8 dtype."""


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Which numbers are kept and computed in which type. Fields are named as flags are."""

    bf16: bool = True  # layers compute, and are given their weights, in BF16; otherwise FP32
    optimizer_use_master_weights: bool = False  # the optimizer's weights are FP32
    optimizer_use_fp32_grad_acc: bool = False  # gradients are added up in FP32
    stochastic_rounding_enabled: bool = False  # FP32 is rounded to BF16 stochastically
    use_autocast: bool = False  # the compiler rounds operands of FP32 matmuls to BF16
    matmul: str | None = None  # how linear maps multiply: a name of MATMULS; None = as they are
    fp8_dtype: str = fp8.DTYPES[0]  # of activations and kernels in FP8

    @property
    def compute_dtype(self) -> str:
        """The dtype of activations, and of the weights and gradients that layers see."""
        return "bfloat16" if self.bf16 else "float32"

    @property
    def weights_dtype(self) -> str:
        """The dtype of the weights that the optimizer changes, and of its moments."""
        return "float32" if self.optimizer_use_master_weights else self.compute_dtype

    @property
    def accumulation_dtype(self) -> str:
        """The dtype of gradients added up over micro-batches."""
        return "float32" if self.optimizer_use_fp32_grad_acc else self.compute_dtype

    @property
    def auto_cast(self) -> str | None:
        """What the compiler's `--auto-cast` must be; None = it makes no difference."""
        if self.bf16:
            return None
        return "matmult" if self.use_autocast else "none"

    def configure(self, config: Any) -> Any:
        """The configuration of a model that is trained like this."""
        return replace(config, dtype=self.compute_dtype, param_dtype=self.weights_dtype)

    def make_matmul(self) -> Matmul | None:
        """How linear maps multiply; None = in the dtype of their input."""
        return None if self.matmul is None else MATMULS[self.matmul](self.fp8_dtype)

    def quantized(self, weights: Parameters, axes: AxisNames) -> Parameters:
        """Weights of the state as they are trained, and exported: matrices fake-quantized where
        the recipe is quantisation-aware. `axes` names the parameters' axes."""
        if self.matmul is None or self.matmul not in _QUANTIZED:
            return weights
        form = _QUANTIZED[self.matmul](self.fp8_dtype)
        return {
            path: fake_quantize_weights(weight, matrix_axes(path, axes)[0], form)
            if kind_of(path) is Kind.MATRIX
            else weight
            for path, weight in weights.items()
        }

    def rounded(self, weights: Parameters) -> Parameters:
        """Weights of the state as layers get them."""
        return {path: weight.astype(self.compute_dtype) for path, weight in weights.items()}

    def accumulated(self, gradients: Parameters) -> Parameters:
        """Gradients of a micro-batch as they are added up."""
        return jax.tree.map(lambda gradient: gradient.astype(self.accumulation_dtype), gradients)


_MIXED = Precision(optimizer_use_master_weights=True, optimizer_use_fp32_grad_acc=True)

PRECISIONS: Mapping[str, Precision] = {
    "fp32": Precision(bf16=False),
    "autocast": Precision(bf16=False, use_autocast=True),
    "mixed_precision": _MIXED,
    "mixed_precisionSR": replace(_MIXED, stochastic_rounding_enabled=True),
    "bf16SR": Precision(stochastic_rounding_enabled=True),
    "manual": Precision(),
    "fp8_current": replace(_MIXED, matmul="fp8_current"),
    "fp8_delayed": replace(_MIXED, matmul="fp8_delayed"),
    "mxfp8": replace(_MIXED, matmul="mxfp8"),
    "qat_int8": replace(_MIXED, matmul="quantized_int8"),
    "qat_fp8": replace(_MIXED, matmul="quantized_fp8"),
}
"""Recipe by name. `manual` is plain BF16, for flags to add to."""


@dataclass(frozen=True, kw_only=True)
class PrecisionSettings:
    """A recipe, and what departs from it. Raises SettingsError for what there is not."""

    precision: str = setting("fp32", "Precision recipe.", choices=PRECISIONS)
    bf16: bool | None = setting(None, "Compute in BF16; default: as --precision says.")
    optimizer_use_master_weights: bool | None = setting(
        None, "Let the optimizer change FP32 weights; default: as --precision says."
    )
    optimizer_use_fp32_grad_acc: bool | None = setting(
        None, "Add up gradients in FP32; default: as --precision says."
    )
    stochastic_rounding_enabled: bool | None = setting(
        None, "Round FP32 to BF16 stochastically; default: as --precision says."
    )
    use_autocast: bool | None = setting(
        None, "Let the compiler round operands of FP32 matmuls; default: as --precision says."
    )
    matmul: str | None = setting(
        None, "How linear maps multiply; default: as --precision says.", choices=MATMULS
    )
    fp8_dtype: str | None = setting(
        None, "FP8 format of activations and kernels.", choices=fp8.DTYPES
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def resolve(self) -> Precision:
        """The recipe with what was set beside its name."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        names = {entry.name for entry in fields(Precision)}
        changes = {name: value for name, value in given.items() if name in names}
        return replace(PRECISIONS[self.precision], **changes)
