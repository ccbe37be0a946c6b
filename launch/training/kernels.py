"""Who computes a model's layers: the compiler's own code, or kernels of the project."""

from collections.abc import Callable, Mapping

from flax import nnx

COMPILER, NKI = "compiler", "nki"


def _leave_to_the_compiler(model: nnx.Module) -> None:
    pass


def _use_nki(model: nnx.Module) -> None:
    # Only now: estimates take a second to import, and kernels import `nki`.
    from launch.emulation import provide_nki

    provide_nki()
    from models.kernels.layers import use_kernels

    use_kernels(model)


KERNELS: Mapping[str, Callable[[nnx.Module], None]] = {
    COMPILER: _leave_to_the_compiler,
    NKI: _use_nki,
}
"""Name -> what it changes in a model, in place."""
