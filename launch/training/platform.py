"""What a precision recipe needs of the platform: asked for in Neuron's way, then put to the test.

Stochastic rounding and auto-cast are switches of the Neuron runtime and compiler, not of a program.
They are set before the platform starts; whether it does what the recipe says is measured on it.
"""

from collections.abc import MutableMapping

import jax
import jax.numpy as jnp
import numpy as np

from launch.errors import SettingsError
from launch.training.precision import Precision

ROUNDING = "NEURON_RT_STOCHASTIC_ROUNDING_EN"
SEED = "NEURON_RT_STOCHASTIC_ROUNDING_SEED"
FIRST_RUN = "NEURONJAX_FIRST_RUN"
COMPILER_FLAGS = "NEURON_CC_FLAGS"


def prepare_platform(
    precision: Precision, seed: int, last_step: int, environment: MutableMapping[str, str]
) -> None:
    """Sets the variables of the Neuron runtime and compiler for a recipe, before JAX starts.

    Random roundings depend on the seed of the run and on the number of the step, so that a run that
    goes on after `last_step` draws what it would have drawn. What the user has set stays.
    """
    if precision.stochastic_rounding_enabled:
        environment.setdefault(ROUNDING, "1")
        environment.setdefault(SEED, str(seed % 2**32))
        environment.setdefault(FIRST_RUN, str(last_step))
    flags = environment.get(COMPILER_FLAGS, "")
    if precision.auto_cast == "matmult" and "--auto-cast" not in flags:
        environment[COMPILER_FLAGS] = f"{flags} --auto-cast=matmult --auto-cast-type=bf16".strip()


def check_platform(precision: Precision) -> None:
    """Runs two small programs on the first device of this process, and compares.

    A platform that computes nothing, as under `neuronjax lint`, is taken at its word. Raises
    SettingsError if the platform rounds otherwise than the recipe says.
    """
    if not _computes():
        return
    wanted = precision.stochastic_rounding_enabled
    if _rounds_stochastically() != wanted:
        raise SettingsError(
            f"the recipe says stochastic rounding {_on(wanted)}, but the platform "
            f"{jax.default_backend()!r} rounds {'to nearest' if wanted else 'stochastically'}. "
            + (
                f"Set {ROUNDING}=1 before JAX starts, on a platform that has it, or choose another "
                "--precision."
                if wanted
                else f"Leave out {ROUNDING}, or give --stochastic_rounding_enabled."
            )
        )
    _check_matmul(precision)
    if precision.auto_cast is not None and _casts_matmuls() != precision.use_autocast:
        raise SettingsError(
            f"the recipe says auto-cast {_on(precision.use_autocast)}, but the platform "
            f"{jax.default_backend()!r} multiplies FP32 "
            f"{'as it is' if precision.use_autocast else 'rounded'}. Set "
            f"{COMPILER_FLAGS}=--auto-cast={precision.auto_cast} before JAX starts, on a platform "
            "that has it, or choose another --precision."
        )


def _check_matmul(precision: Precision) -> None:
    matmul = precision.make_matmul()
    if matmul is None:
        return
    x = np.ones((32, 32), precision.compute_dtype)
    history = jnp.zeros((3, matmul.history_length)) if matmul.history_length else None
    try:
        jax.block_until_ready(jax.jit(lambda x: matmul(x, x, 1, history))(x))
    except jax.errors.JaxRuntimeError as error:
        raise SettingsError(
            f"the platform {jax.default_backend()!r} ({jax.devices()[0].device_kind}) cannot "
            f"multiply as the recipe says (--matmul={precision.matmul}). Choose another "
            f"--precision, or a target that can. It says: {error}"
        ) from error


def _on(switch: bool) -> str:
    return "on" if switch else "off"


def _computes() -> bool:
    """Whether results are more than zeros of the right type."""
    return bool(jax.jit(jnp.logical_not)(np.False_))


def _rounds_stochastically() -> bool:
    """Whether numbers a quarter of the way between two of BF16 are rounded both ways."""
    quarter = np.full(4096, 1 + 2.0**-9, np.float32)
    rounded = jax.jit(lambda x: x.astype(jnp.bfloat16))(quarter)
    return len(np.unique(np.asarray(rounded))) > 1


def _casts_matmuls() -> bool:
    """Whether a factor of an FP32 product loses digits that BF16 does not have."""
    x = np.full((128, 128), 1 + 2.0**-12, np.float32)
    product = jax.jit(jnp.matmul)(x, np.eye(128, dtype=np.float32))
    return not np.array_equal(product, x)


def compiler_options(device: jax.Device) -> dict[str, str]:
    """The options of XLA with which a step is compiled for devices of this kind.

    On `cpu`, XLA removes optimization barriers before it last eliminates common subexpressions. It
    would merge what the backward pass recomputes or gathers again with what the forward pass made,
    and keep that in memory from one to the other. On `neuron` barriers are kept as they are.
    """
    return {"xla_disable_hlo_passes": "cse_barrier_expander"} if device.platform == "cpu" else {}
