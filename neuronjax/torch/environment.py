"""torchax's environment as a module's call needs it: constants of the host, and keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
import torch.utils._pytree as torch_trees
from torchax.ops.op_base import InplaceOp
from torchax.ops.ops_registry import Operator
from torchax.tensor import Environment, OperatorNotFound, Tensor, XLADispatchMode
from torchax.view import View

from neuronjax.errors import ArgumentMismatchError, ConfigurationError
from neuronjax.torch.operators import OF_LIBRARIES, ON_ARRAYS, ON_TENSORS, VIEWS
from neuronjax.torch.values import array


class _Operators(XLADispatchMode):
    """Looks for operators of any package where torchax has those of PyTorch alone."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "namespace", "prim").startswith("prim"):
            return super().__torch_dispatch__(func, types, args, kwargs)
        return self.env.dispatch(func, types, args, kwargs)


class ModuleEnvironment(Environment):
    """Operators of torch on arrays of JAX, those of `operators` among them."""

    def __init__(self) -> None:
        super().__init__()
        self._dispatch_mode = _Operators(self)
        for operator, implementation in ON_TENSORS.items():
            self.override_op_definition(operator, implementation)
        for operator, implementation in ON_ARRAYS.items():
            self._compute_on_arrays(operator, implementation)
        for operator, implementation in VIEWS.items():
            self.override_op_definition(operator, implementation, is_view_op=True)

    def _compute_on_arrays(self, operator: Any, implementation: Callable[..., Any]) -> None:
        self._ops[operator] = Operator(
            operator,
            implementation,
            is_jax_function=True,
            is_user_defined=True,
            needs_env=False,
            is_view_op=False,
        )

    def tensor(self, value: Any) -> Any:
        """An array as a tensor; anything else as it is."""
        return Tensor(jax.numpy.asarray(value), self) if hasattr(value, "dtype") else value

    def t2j_iso(self, torchtensors: Any) -> Any:
        """Tensors of the host that meet arrays are constants of the program."""
        tensors = torch_trees.tree_map_only(torch.Tensor, self._constant, torchtensors)
        return super().t2j_iso(tensors)

    def _constant(self, tensor: torch.Tensor) -> torch.Tensor:
        is_scalar = not isinstance(tensor, Tensor | View) and tensor.dim() == 0
        if isinstance(tensor, Tensor | View) or (is_scalar and not tensor.is_meta):
            return tensor
        if tensor.is_meta:
            raise ArgumentMismatchError(
                f"a tensor of shape {list(tensor.shape)} on meta is neither a parameter nor a "
                "buffer nor an attribute of a module, so that it has no value; register it as a "
                "buffer."
            )
        with torch._C.DisableTorchFunction():
            return Tensor(array(tensor), self)

    def _should_use_torchax_tensor(self, device: Any) -> bool:
        """Whether a tensor is made as an array: those on ``meta`` are, as are the module's own
        there."""
        is_meta = device is not None and torch.device(device).type == "meta"
        return is_meta or super()._should_use_torchax_tensor(device)

    def _torch_Tensor_to(self, args: Sequence[Any], kwargs: Any) -> Any:
        """``torch.vmap`` has numbers of Python where else there are tensors."""
        first, *rest = args
        if isinstance(first, bool | int | float):
            first = self.tensor(jax.numpy.asarray(first))
        return super()._torch_Tensor_to((first, *rest), kwargs)

    def _get_op_or_decomp(self, func: Any) -> Any:
        """The implementation of an operator; one in place is that of its value, written back."""
        try:
            return super()._get_op_or_decomp(func)
        except OperatorNotFound:
            packet = getattr(func, "overloadpacket", func)
            name = packet.__name__
            value = getattr(torch.ops.aten, name.removesuffix("_"), None)
            if known := OF_LIBRARIES.get(str(packet).replace(".", "::")):
                self._compute_on_arrays(packet, known)
            elif name.endswith("_") and value is not None:
                self.override_op_definition(packet, InplaceOp(value), is_view_op=True)
            else:
                raise
            return super()._get_op_or_decomp(func)

    def get_and_rotate_prng_key(self, generator: torch.Generator | None = None) -> Any:
        if generator is None and self.param.prng is None:
            raise ConfigurationError(
                "the module draws random numbers: pass key=jax.random.key(0), or call eval() on "
                "the module if that is its dropout."
            )
        return super().get_and_rotate_prng_key(generator)
