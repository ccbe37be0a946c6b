"""Who computes a model's layers: the compiler's own code, or kernels of the project."""

from collections.abc import Callable, Mapping

from flax import nnx

from launch.emulation import provide_nki

COMPILER, NKI = "compiler", "nki"


def _leave_to_the_compiler(model: nnx.Module) -> None:
    pass


def _use_nki(model: nnx.Module) -> None:
    provide_nki()
    # Only now: kernels import `nki`.
    from models.kernels.layers import use_kernels

    use_kernels(model)


KERNELS: Mapping[str, Callable[[nnx.Module], None]] = {
    COMPILER: _leave_to_the_compiler,
    NKI: _use_nki,
}
"""Name -> what it changes in a model, in place."""
