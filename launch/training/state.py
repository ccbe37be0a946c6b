"""What a step of training changes."""

from typing import Any, NamedTuple

import jax

from models.parameters import Parameters


class TrainState(NamedTuple):
    """All that a step changes, besides the position in the data.

    With `scan_layers` parameters and moments of blocks are stacked; `models.parallel.depth` goes
    from one form to the other.
    """

    parameters: Parameters  # as the optimizer knows them: FP32 where there are master weights
    optimizer: Any  # the state of the optax transformation
    step: jax.Array  # int32 []: steps taken
    scaling: Parameters  # histories of largest magnitudes, FP32 [3, steps], for delayed scaling
    average: Parameters | None  # moving average of the parameters, FP32

    @property
    def evaluated(self) -> Parameters:
        """The parameters to evaluate and to use later: their average, if there is one."""
        return self.parameters if self.average is None else self.average
