"""The layers of a model, computed by kernels."""

import jax
import jax.numpy as jnp
from flax import nnx

from models.decoder.model import Decoder
from models.errors import KernelError
from models.kernels.cross_entropy import cross_entropy
from models.kernels.flash_attention import MOST_BYTES, MOST_WIDTH, flash_attention
from models.kernels.rms_norm import rms_norm
from models.kernels.rope import rope
from models.kernels.swiglu import fits, swiglu
from models.layers.attention import Attention, AttentionCall
from models.layers.linear import Linear
from models.layers.masks import Visibility
from models.layers.mlp import GatedMLP
from models.layers.norms import RMSNorm
from models.layers.rotary import Turn
from models.parallel.tensor import AddedUp


def use_kernels(model: nnx.Module) -> None:
    """Lets kernels compute the attention, rotary positions, SwiGLU, RMSNorms and cross entropy of a
    model. It is changed in place."""
    for _, module in nnx.iter_modules(model):
        if isinstance(module, Attention):
            module.mix, module.rotate = attend, rotate
        elif isinstance(module, GatedMLP):
            module.compute = feed_forward
        elif isinstance(module, Decoder):
            module.cross_entropy = cross_entropy
        elif isinstance(module, RMSNorm):
            module.normalise = normalise


def attend(query: jax.Array, keys: jax.Array, values: jax.Array, call: AttentionCall) -> jax.Array:
    """`dot_product_attention` of a text with itself, where a position sees all before it.

    Raises KernelError for any other attention, and for heads that are wider than 128.
    """
    sees = call.mask if isinstance(call.mask, Visibility) else None
    asked = {
        "attention that is not that of a text with what is before it": sees is None,
        "a window": sees is not None and sees.window is not None,
        "several texts in a row": sees is not None and sees.segments is not None,
        f"heads of {query.shape[-1]} numbers, which are more than {MOST_WIDTH}": (
            query.shape[-1] > MOST_WIDTH
        ),
        f"{query.shape[1]} positions of {query.dtype}, more than {MOST_BYTES} bytes": (
            query.shape[1] * query.dtype.itemsize > MOST_BYTES
        ),
        "values of another width than keys": values.shape != keys.shape,
        "a bias of scores": call.bias is not None,
        "a soft cap of scores": call.softcap is not None,
        "sinks": call.sinks is not None,
        "dropout of weights": call.dropout is not None,
    }
    for what, is_so in asked.items():
        if is_so:
            raise KernelError(
                f"the kernel of attention has no way to compute {what}, as this model needs. "
                "Leave attention to the compiler: --kernels=compiler."
            )
    return flash_attention(query, keys, values, call.scale)


def normalise(x: jax.Array, scale: jax.Array | None, eps: float) -> jax.Array:
    """Does in a kernel what `rms_normalised` does."""
    return rms_norm(x, jnp.ones(x.shape[-1]) if scale is None else scale, eps)


def rotate(x: jax.Array, turn: Turn) -> jax.Array:
    """Does in a kernel what `apply_rotary` does."""
    return rope(x, *turn)


def feed_forward(mlp: GatedMLP, x: jax.Array) -> jax.Array:
    """The SwiGLU of x by a kernel; by `GatedMLP.composed` what is no SwiGLU that fits it."""
    down = mlp.down.inner if isinstance(mlp.down, AddedUp) else mlp.down
    maps = [m for m in (mlp.gate, mlp.up, down) if isinstance(m, Linear) and m.is_plain]
    if len(maps) < 3 or mlp.act not in ("silu", "swish"):
        return mlp.composed(x)
    gate, up, down_kernel = (linear.kernel[...].astype(x.dtype) for linear in maps)
    width, hidden = gate.shape
    if not fits(width, hidden, x.dtype.itemsize):
        return mlp.composed(x)
    y = swiglu(x, gate, up, down_kernel)
    return mlp.down.finished(y) if isinstance(mlp.down, AddedUp) else y
