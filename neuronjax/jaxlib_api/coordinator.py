"""What ``jax.distributed.initialize`` joined: which process this is, and the store of texts."""

from __future__ import annotations

from jax._src import distributed
from jax.errors import JaxRuntimeError


def process() -> tuple[int, int]:
    """Number of this process, and how many there are; (0, 1) without ``jax.distributed``.

    Relies on ``distributed.global_state``. Without it: ``jax.process_index`` does not help, since
    it asks the platform; the options that JAX's factory gives a client have both.
    """
    state = distributed.global_state
    return (state.process_id, state.num_processes) if state.client is not None else (0, 1)


class Store:
    """The coordinator's key-value store.

    Relies on ``key_value_set`` and ``blocking_key_value_get`` of jaxlib's
    ``DistributedRuntimeClient``. Without them: the callbacks of ``PJRT_Client_Create``.
    """

    def __init__(self) -> None:
        self._client = distributed.global_state.client

    def put(self, key: str, value: str) -> None:
        self._client.key_value_set(key, value)

    def get(self, key: str, seconds: float) -> str | None:
        try:
            return self._client.blocking_key_value_get(key, max(1, round(seconds * 1000)))
        except JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise


def leave() -> list[object]:
    """Takes what waits for the other processes at exit away from JAX; somebody must keep it.

    At exit every process waits for all: minutes, where one has died. What ends such a wait is the
    end of the process alone.

    Relies on the fields of ``distributed.global_state``. Without it: nothing but the wait.
    """
    state = distributed.global_state
    kept = [state.preemption_sync_manager, state.client, state.service]
    state.preemption_sync_manager = state.client = state.service = None
    return kept
