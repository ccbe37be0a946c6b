"""What is stored how; the names of strategies and observers are those of compressed-tensors."""

from collections.abc import Mapping
from dataclasses import dataclass

from launch.errors import SettingsError
from launch.settings import check_settings, setting
from models.layers.narrow import FOUR_BITS, Storage
from models.weights.narrow import MX_BLOCK

WEIGHTS: Mapping[str, Storage] = {
    **{dtype: Storage(dtype) for dtype in ("int8", "float8_e4m3", "float8_e4m3fn", "float8_e5m2")},
    "mxfp8": Storage("float8_e4m3fn", MX_BLOCK, 1, exponents=True),
    "mxfp4": Storage(FOUR_BITS, MX_BLOCK, 1, exponents=True),
}
"""Name -> storage; where the strategy is open, a scale per channel."""

STRATEGIES = ("tensor", "channel", "block")
OBSERVERS = ("minmax", "mse")


@dataclass(frozen=True, kw_only=True)
class QuantisationSettings:
    """Raises SettingsError for what there is not, or does not go together."""

    weights: str = setting("int8", "Format of the weights of linear layers.", choices=WEIGHTS)
    strategy: str | None = setting(
        None,
        "What shares a scale. channel: each output has its own. Default: channel, or blocks of "
        "32 inputs for the MX formats.",
        choices=STRATEGIES,
    )
    block: str = setting("128x128", "Outputs x inputs of a block, for --strategy=block.")
    observer: str = setting(
        "mse",
        "How scales are chosen. minmax: from the largest magnitude; mse: outliers are clipped "
        "where that reduces the error, weighted by the calibration inputs.",
        choices=OBSERVERS,
    )
    ignore: str | None = setting(
        None,
        "Layers to leave unquantized: comma-separated names in the checkpoint, or regular "
        "expressions prefixed with re:.",
    )
    calibration_rows: int = setting(16, "Rows of data used for calibration.", lowest=1)
    report_rows: int = setting(64, "Held-out rows used for the accuracy report.", lowest=1)
    kv_cache_scales: bool = setting(
        False, "Store scales for an FP8 cache, calibrated on keys and values."
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.strategy is not None and WEIGHTS[self.weights].exponents:
            raise SettingsError(
                f"--strategy={self.strategy} does not apply to --weights={self.weights}, which "
                f"has one scale for every {MX_BLOCK} inputs of an output. Leave --strategy out."
            )

    @property
    def storage(self) -> Storage:
        """How kernels are stored. Raises SettingsError for a block that is none."""
        base = WEIGHTS[self.weights]
        if base.exponents:
            return base
        outputs, _, inputs = self.block.partition("x")
        if not (outputs.isdecimal() and inputs.isdecimal() and int(outputs) and int(inputs)):
            raise SettingsError(f"--block={self.block}: write outputs x inputs, such as 128x128")
        blocks = {
            "tensor": (None, None),
            "channel": (None, 1),
            "block": (int(inputs), int(outputs)),
        }
        return Storage(base.dtype, *blocks[self.strategy or "channel"])

    @property
    def ignored(self) -> tuple[str, ...]:
        """The entries of `ignore`."""
        return tuple(part.strip() for part in (self.ignore or "").split(",") if part.strip())
