"""Convolutions and what stands beside them: pooling, resizing, norms over groups of channels."""

from __future__ import annotations

from tests.conformance.real_sizes.kind import (
    BATCHES,
    CHANNELS,
    FLOATS,
    PIXELS,
    YES_OR_NO,
    Array,
    Kind,
    Written,
    need,
)

_LAYOUTS = {"NHWC": ("NHWC", "HWIO"), "NCHW": ("NCHW", "OIHW")}


def _image(batch: int, pixels: int, channels: int, layout: str, dtype: str) -> Array:
    sizes = {"N": batch, "H": pixels, "W": pixels, "C": channels}
    return Array(tuple(sizes[each] for each in layout), dtype)


def _wrt(choice: str) -> tuple[str, ...]:
    return {"none": (), "image": ("x",), "weight": ("w",), "both": ("x", "w")}[choice]


def _seen(kernel: int, stride: int, axes: int) -> dict[str, float]:
    """The share of the input that windows see which lie apart along so many axes."""
    return {"x": min(1.0, kernel / stride) ** axes}


def convolution(
    batch: int, pixels: int, channels: int, features: int, kernel: int, stride: int,
    dilation: int, groups: int, layout: str, wrt: str, dtype: str,
) -> Written:  # fmt: skip
    need(channels % groups == 0 and features % groups == 0)
    need(dilation * (kernel - 1) < pixels and stride <= pixels)
    images, weights = _LAYOUTS[layout]
    sizes = {"H": kernel, "W": kernel, "I": channels // groups, "O": features}
    arrays = {
        "x": _image(batch, pixels, channels, layout, dtype),
        "w": Array(tuple(sizes[each] for each in weights), dtype),
    }
    body = (
        f"return lax.conv_general_dilated(x, w, ({stride}, {stride}), 'SAME', "
        f"rhs_dilation=({dilation}, {dilation}), feature_group_count={groups}, "
        f"dimension_numbers=('{images}', '{weights}', '{images}'))"
    )
    return Written(arguments=arrays, body=body, wrt=_wrt(wrt), read=_seen(kernel, stride, axes=2))


def depthwise(
    batch: int, pixels: int, channels: int, multiplier: int, kernel: int, stride: int,
    dilation: int, layout: str, wrt: str, dtype: str,
) -> Written:  # fmt: skip
    return convolution(
        batch, pixels, channels, channels * multiplier, kernel, stride, dilation, channels,
        layout, wrt, dtype,
    )  # fmt: skip


def transposed_convolution(
    batch: int, pixels: int, channels: int, features: int, kernel: int, stride: int, wrt: str,
    dtype: str,
) -> Written:  # fmt: skip
    arrays = {
        "x": Array((batch, pixels, pixels, channels), dtype),
        "w": Array((kernel, kernel, channels, features), dtype),
    }
    body = (
        f"return lax.conv_transpose(x, w, ({stride}, {stride}), 'SAME', "
        "dimension_numbers=('NHWC', 'HWIO', 'NHWC'))"
    )
    return Written(arguments=arrays, body=body, wrt=_wrt(wrt))


def convolution_of_sequences(
    batch: int, positions: int, channels: int, features: int, kernel: int, stride: int,
    is_depthwise: bool, wrt: str, dtype: str,
) -> Written:  # fmt: skip
    """Along one axis and from the past, as models of audio and of states do."""
    groups = channels if is_depthwise else 1
    features = channels if is_depthwise else features
    arrays = {
        "x": Array((batch, positions, channels), dtype),
        "w": Array((kernel, channels // groups, features), dtype),
    }
    body = (
        f"return lax.conv_general_dilated(x, w, ({stride},), [({kernel - 1}, 0)], "
        f"feature_group_count={groups}, dimension_numbers=('NHC', 'HIO', 'NHC'))"
    )
    return Written(arguments=arrays, body=body, wrt=_wrt(wrt), read=_seen(kernel, stride, axes=1))


def convolution_of_videos(
    batch: int, frames: int, pixels: int, channels: int, features: int, kernel: int, stride: int,
    wrt: str, dtype: str,
) -> Written:  # fmt: skip
    need(kernel <= pixels and stride <= frames)
    arrays = {
        "x": Array((batch, frames, pixels, pixels, channels), dtype),
        "w": Array((kernel, kernel, kernel, channels, features), dtype),
    }
    body = (
        f"return lax.conv_general_dilated(x, w, ({stride},) * 3, 'SAME', "
        "dimension_numbers=('NDHWC', 'DHWIO', 'NDHWC'))"
    )
    return Written(arguments=arrays, body=body, wrt=_wrt(wrt), read=_seen(kernel, stride, axes=3))


def pooling(
    batch: int, pixels: int, channels: int, window: int, stride: int, what: str, gradient: bool,
    dtype: str,
) -> Written:  # fmt: skip
    need(window <= pixels)
    function, start = {"max": ("max", "-jnp.inf"), "mean": ("add", "0.0")}[what]
    body = (
        f"y = lax.reduce_window(x, {start}, lax.{function}, (1, {window}, {window}, 1), "
        f"(1, {stride}, {stride}, 1), 'SAME')\n"
    )
    body += "return y" if what == "max" else f"return y / {window * window}"
    x = Array((batch, pixels, pixels, channels), dtype)
    return Written(arguments={"x": x}, body=body, wrt=("x",) if gradient else ())


def pooling_of_everything(
    batch: int, pixels: int, channels: int, layout: str, dtype: str
) -> Written:
    axes = tuple(layout.index(each) for each in "HW")
    x = _image(batch, pixels, channels, layout, dtype)
    return Written(arguments={"x": x}, body=f"return x.mean({axes})")


def resizing(
    batch: int, pixels: int, to: int, channels: int, method: str, gradient: bool, dtype: str
) -> Written:
    x = Array((batch, pixels, pixels, channels), dtype)
    body = f"return jax.image.resize(x, ({batch}, {to}, {to}, {channels}), '{method}')"
    seen = min(1.0, to / pixels) ** 2 if method == "nearest" else 1.0
    return Written(arguments={"x": x}, body=body, wrt=("x",) if gradient else (), read={"x": seen})


def upsampling(batch: int, pixels: int, channels: int, form: str, dtype: str) -> Written:
    """Pixels twice as many in each direction, as decoders of images write it."""
    forms = {
        "repeat": "return x.repeat(2, 1).repeat(2, 2)",
        "broadcast": "b, h, w, c = x.shape\n"
        "return jnp.broadcast_to(x[:, :, None, :, None], (b, h, 2, w, 2, c))"
        ".reshape(b, 2 * h, 2 * w, c)",
        "from_channels": "b, h, w, c = x.shape\n"
        "return x.reshape(b, h, w, 2, 2, c // 4).transpose(0, 1, 3, 2, 4, 5)"
        ".reshape(b, 2 * h, 2 * w, c // 4)",
        "to_channels": "b, h, w, c = x.shape\n"
        "return x.reshape(b, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 2, 4, 5)"
        ".reshape(b, h // 2, w // 2, 4 * c)",
    }
    need(channels % 4 == 0 if form == "from_channels" else pixels % 2 == 0)
    x = Array((batch, pixels, pixels, channels), dtype)
    return Written(arguments={"x": x}, body=forms[form])


def norm_of_groups(
    batch: int, pixels: int, channels: int, groups: int, act: bool, gradient: bool, dtype: str
) -> Written:
    need(channels % groups == 0)
    arrays = {
        "x": Array((batch, pixels, pixels, channels), dtype),
        "scale": Array((channels,), "float32"),
        "shift": Array((channels,), "float32"),
    }
    body = (
        f"y = x.astype('float32').reshape({batch}, {pixels * pixels}, {groups}, -1)\n"
        "y = (y - y.mean((1, 3), keepdims=True)) * lax.rsqrt(y.var((1, 3), keepdims=True) + 1e-5)\n"
        "y = (y.reshape(x.shape) * scale + shift).astype(x.dtype)\n"
    )
    body += "return jax.nn.silu(y)" if act else "return y"
    return Written(arguments=arrays, body=body, wrt=tuple(arrays) if gradient else ())


def norm_of_batches(
    batch: int, pixels: int, channels: int, training: bool, layout: str, gradient: bool, dtype: str
) -> Written:
    shape = tuple(-1 if each == "C" else 1 for each in layout)
    axes = tuple(at for at, each in enumerate(layout) if each != "C")
    weight = Array((channels,), "float32")
    arrays = {"x": _image(batch, pixels, channels, layout, dtype), "scale": weight, "shift": weight}
    body = f"y = x.astype('float32')\nmean, variance = y.mean({axes}), y.var({axes})\n"
    if not training:
        arrays |= {"mean": weight, "variance": weight}
        body = "y = x.astype('float32')\n"
    body += (
        f"scale = (scale * lax.rsqrt(variance + 1e-5)).reshape{shape}\n"
        f"y = (y - mean.reshape{shape}) * scale + shift.reshape{shape}\n"
        "return jax.nn.relu(y).astype(x.dtype)"
    )
    return Written(arguments=arrays, body=body, wrt=("x", "scale", "shift") if gradient else ())


_IMAGE = {"batch": BATCHES, "pixels": PIXELS, "channels": CHANNELS}
_BY = ("none", "image", "weight", "both")
_KERNELS = (1, 3, 5, 7)
_TWO = ("NHWC", "NCHW")
_AND_GRADIENTS = {"wrt": _BY, "dtype": FLOATS}

KINDS = {
    "convolution": Kind(
        convolution,
        _IMAGE
        | {"features": CHANNELS, "kernel": _KERNELS, "stride": (1, 1, 2, 4)}
        | {"dilation": (1, 1, 1, 2), "groups": (1,), "layout": _TWO}
        | _AND_GRADIENTS,
        rows="batch",
    ),
    "convolution_of_groups": Kind(
        convolution,
        _IMAGE
        | {"features": CHANNELS, "kernel": _KERNELS, "stride": (1, 2), "dilation": (1,)}
        | {"groups": (2, 4, 8, 16, 32), "layout": _TWO}
        | _AND_GRADIENTS,
        rows="batch",
    ),
    "depthwise": Kind(
        depthwise,
        _IMAGE
        | {"multiplier": (1, 1, 2), "kernel": _KERNELS[1:], "stride": (1, 2)}
        | {"dilation": (1, 1, 2), "layout": _TWO}
        | _AND_GRADIENTS,
        rows="batch",
    ),
    "transposed_convolution": Kind(
        transposed_convolution,
        _IMAGE | {"features": CHANNELS, "kernel": (2, 3, 4), "stride": (2,)} | _AND_GRADIENTS,
        rows="batch",
    ),
    "convolution_of_sequences": Kind(
        convolution_of_sequences,
        {"batch": (1, 2, 8), "positions": (100, 1500, 4096, 16_384, 65_536)}
        | {"channels": (1, 80, 512, 1280, 4096), "features": (32, 512, 1280)}
        | {"kernel": (3, 4, 7, 10), "stride": (1, 1, 2, 5), "is_depthwise": YES_OR_NO}
        | _AND_GRADIENTS,
        rows="batch",
    ),
    "convolution_of_videos": Kind(
        convolution_of_videos,
        {"batch": (1, 2), "frames": (4, 9, 16), "pixels": (8, 14, 32, 64, 112, 224)}
        | {"channels": (3, 16, 64, 96, 320), "features": (16, 64, 320), "kernel": (1, 2, 3)}
        | {"stride": (1, 2)}
        | _AND_GRADIENTS,
        rows="batch",
    ),
    "pooling": Kind(
        pooling,
        _IMAGE
        | {"window": (2, 3, 5, 7), "stride": (1, 2, 3), "what": ("max", "mean")}
        | {"gradient": YES_OR_NO, "dtype": FLOATS},
        rows="batch",
    ),
    "pooling_of_everything": Kind(
        pooling_of_everything, _IMAGE | {"layout": _TWO, "dtype": FLOATS}, "batch"
    ),
    "resizing": Kind(
        resizing,
        _IMAGE
        | {"to": (14, 32, 64, 100, 224, 512), "gradient": YES_OR_NO, "dtype": FLOATS}
        | {"method": ("nearest", "linear", "cubic", "lanczos3")},
        rows="batch",
    ),
    "upsampling": Kind(
        upsampling,
        _IMAGE | {"form": ("repeat", "broadcast", "from_channels", "to_channels"), "dtype": FLOATS},
        rows="batch",
    ),
    "norm_of_groups": Kind(
        norm_of_groups,
        _IMAGE
        | {"groups": (1, 4, 16, 32), "act": YES_OR_NO, "gradient": YES_OR_NO, "dtype": FLOATS},
        rows="batch",
    ),
    "norm_of_batches": Kind(
        norm_of_batches,
        _IMAGE | {"training": YES_OR_NO, "layout": _TWO, "gradient": YES_OR_NO, "dtype": FLOATS},
        rows="batch",
    ),
}
