"""PyTorch modules as JAX functions, without a change to them.

* `to_jax`: a ``torch.nn.Module`` with example inputs as a `Program`, a function of its `State`.
* `specs`: the split of its tensors over a mesh by rules on their paths; `tensor_parallel` and
  `fully_sharded` are such rules.
* `as_jax`: what every tool that takes a function calls first, so that it takes modules too;
  `as_program` makes a program of what a function of a file returned.

`torch` and `torchax` are loaded when a module is first seen. `library` says which versions work.
"""

from neuronjax.torch.layouts import fully_sharded as fully_sharded
from neuronjax.torch.layouts import specs as specs
from neuronjax.torch.layouts import tensor_parallel as tensor_parallel
from neuronjax.torch.program import Program as Program
from neuronjax.torch.program import as_jax as as_jax
from neuronjax.torch.program import as_program as as_program
from neuronjax.torch.program import to_jax as to_jax
from neuronjax.torch.state import State as State

__all__ = [
    "Program",
    "State",
    "as_jax",
    "as_program",
    "fully_sharded",
    "specs",
    "tensor_parallel",
    "to_jax",
]
