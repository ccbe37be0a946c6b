"""Public codes and JAX limitations that are not rules: where they are decided, or why not."""

from __future__ import annotations

_MEMORY = (
    "how much memory the compiler's schedule needs is not in the program; tensors are counted when "
    "they are allocated (DeviceMemoryError)"
)
_INSTRUCTIONS = (
    "the number of instructions is known after code generation only, and no formula is public"
)

CODES: dict[str, str] = {
    "EARG001": "decided with the target: LogicalCoreError",
    "EBIR023": "about the inside of an NKI library kernel, which the program names only",
    "EBVF030": _INSTRUCTIONS,
    "EOOM001": _MEMORY,
    "EOOM002": _MEMORY,
    "EVRF007": _INSTRUCTIONS,
    "EVRF009": _MEMORY,
    "EVRF059": "how a kernel's artefact is named in backend_config is not public",
    "EVRF064": "a module that breaks XLA's shape rules is refused when it is read: CompileError",
    "EVRF065": "which NKI version traced a kernel is not recorded in a public form",
    "EXSP001": _MEMORY,
    "EXTP004": _INSTRUCTIONS,
}
"""Code -> where it is decided, or why it cannot be."""

JAX_LIMITATIONS: dict[str, str] = {
    "jax.dlpack": "a call on the host, refused there; it leaves no trace in a program",
    "jax.experimental.sparse": "its programs consist of gathers, scatters and products like others",
    "slow compilation of random initialisation": "a matter of time, not of legality",
    "caching and donation before JAX 0.4.34": "older than the JAX releases supported here",
}
"""Known issue of JAX NeuronX -> why there is no rule for it."""
