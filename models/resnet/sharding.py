"""Axes of every ResNet parameter: each convolution's and norm's output channels are split."""

from models.sharding import AxisTable

AXES: AxisTable = (
    (r".*\.convolution\.kernel", ("height", "width", "channels", "hidden_dim")),
    (r".*\.norm\.(scale|bias|mean|variance)", ("hidden_dim",)),
    (r"classifier\.kernel", ("dim", "label")),
    (r"classifier\.bias", ("label",)),
)
