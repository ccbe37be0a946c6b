"""Axes of the parameters of the denoiser and the autoencoder.

As in Megatron's layout, the first convolution of a residual block and what follows it are split by
channels, so that a block needs one all-reduce.
"""

from models.layers.axes import ATTENTION_AXES, MLP_AXES
from models.sharding import AxisTable

_LINEAR = r"(time|ids)_embedding\.linear_"

UNET_AXES: AxisTable = (
    *ATTENTION_AXES,
    *MLP_AXES,
    (r".*\.conv_1\.kernel", ("height", "width", "dim", "hidden_dim")),
    (r".*\.conv_1\.bias", ("hidden_dim",)),
    (r".*\.time\.kernel", ("time", "hidden_dim")),
    (r".*\.time\.bias", ("hidden_dim",)),
    (r".*\.norm_2\.(scale|bias)", ("hidden_dim",)),
    (r".*\.conv_2\.kernel", ("height", "width", "hidden_dim", "dim")),
    (r".*\.(conv_2|shortcut|resize)\.bias", ("residual",)),
    (r".*\.(shortcut|resize)\.kernel", ("height", "width", "channels", "dim")),
    (r".*\.(inwards|outwards)\.kernel", ("dim", "residual")),
    (r".*\.(inwards|outwards)\.bias", ("residual",)),
    (r"(.*[._])?norm(_1)?\.(scale|bias)", ("residual",)),
    (rf"{_LINEAR}1\.kernel", ("dim", "hidden_dim")),
    (rf"{_LINEAR}1\.bias", ("hidden_dim",)),
    (rf"{_LINEAR}2\.kernel", ("hidden_dim", "dim")),
    (rf"{_LINEAR}2\.bias", ("residual",)),
    (r"(.*\.)?(conv_in|conv_out)\.kernel", ("height", "width", "channels", "out_channels")),
    (r"(.*\.)?(conv_in|conv_out)\.bias", ("out_channels",)),
)

# Its attention has one head, which cannot be split.
AUTOENCODER_AXES: AxisTable = (
    (r".*attention\.(query|key|value)\.kernel", ("dim", "head", "head_dim")),
    (r".*attention\.(query|key|value)\.bias", ("head", "head_dim")),
    (r".*attention\.output\.kernel", ("head", "head_dim", "dim")),
    (r"(post_)?quant_conv\.kernel", ("height", "width", "channels", "out_channels")),
    (r"(post_)?quant_conv\.bias", ("out_channels",)),
    *UNET_AXES,
)
