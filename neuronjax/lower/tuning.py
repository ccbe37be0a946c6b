"""Every number that the compiler was free to choose: default, unit, reason, and where it matters.

A `Tuning` is an option like others (`passes.Setting.tuning`), handed to whatever decides something.
Facts of the hardware are in `neuronjax.machine`, prices in `Prices`; neither belongs here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

KIB = 1 << 10


class Choice(NamedTuple):
    """A number that was chosen: its name, default and unit, why, and the programs it matters to."""

    name: str
    default: float
    unit: str
    reason: str
    cases: str


def choice(default: float, unit: str, reason: str, cases: str) -> Any:
    """Returns the field of a number that was chosen; `choices` reads back what it says."""
    return field(default=default, metadata={"unit": unit, "reason": reason, "cases": cases})


# fmt: off
@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The numbers that were chosen, by the pass that asks for them.

    Units that begin with "from" are of the least for which something is done, "to" of the most.
    """

    # rewrite/: what operations become.
    early_gather_ratio: int = choice(16, "from elements of a table for each that is picked",
        "a gather takes every element by a transfer of its own", "losses of one number of each row")
    long_row_trip: int = choice(4 * KIB, "elements that an instruction goes through",
        "as many pass while a small tensor goes through HBM to another kernel", "long rows")
    long_row_parts: int = choice(1024, "to parts of a row",
        "the second reduction takes them at once", "reductions of one row")
    long_row_repeats: int = choice(16, "to operations done again for parts",
        "others may need the same values", "losses over a large vocabulary")
    mask_blocks: int = choice(64, "from blocks of 128 by 128",
        "smaller masks take hardly any time", "attention in windows over long texts")
    window_taps: int = choice(9, "to elements of a window that are combined at once",
        "more are combined along one dimension after the other", "pooling of images")
    window_row: int = choice(32, "to elements of a window along a dimension",
        "every one is an instruction", "pooling over whole images")
    transfer_neighbours: int = choice(16, "from elements side by side",
        "transfers of fewer take as long as those of single ones", "pooling of few channels")
    depthwise_taps: int = choice(64, "to weights of a channel",
        "every one is an instruction", "depthwise convolutions")
    interleaved_values: int = choice(4, "to values side by side",
        "every one is an instruction over all of the result", "rotary positions in pairs")
    argmax_row: int = choice(4 * KIB, "from elements of a row",
        "a gather takes longer than going through a shorter one", "greedy sampling")
    argmax_elements: int = choice(1 << 18, "from elements of all rows",
        "a gather and the kernels about it take some 20 us", "greedy sampling")
    tensor_sum_rows: int = choice(128, "from rows that are added up",
        "the Tensor engine's array is idle below", "gradients of biases, norms over columns")
    spread_vector: int = choice(8 * KIB, "from elements of a vector",
        "shorter ones are not worth spreading over partitions", "products of two vectors")
    squared_vector: int = choice(1024, "from elements of a vector",
        "one partition adds up shorter ones as fast", "norms of gradients")
    scatter_places: int = choice(1 << 18, "to places of an index",
        "going through more takes longer than one transfer", "gradients of losses")
    scatter_sums: int = choice(1024, "to places of an index",
        "comparing more takes longer than transfers of 128 updates", "bins that are added up")
    scatter_marks: int = choice(1 << 28, "to pairs of a place and an update",
        "their marks lie in memory, two bytes each", "gradients of embeddings, sums of segments")
    counted_pairs: int = choice(1 << 16, "from pairs of a place and an index",
        "products have latencies of their own", "counts of classes, sums of segments")
    worthwhile_elements: int = choice(32 * KIB, "from elements of a tensor",
        "a pass through SBUF takes some microseconds", "transposes, strided copies, pairs")
# fmt: on


DEFAULT = Tuning()
"""The numbers that users get."""


def choices() -> Iterator[Choice]:
    """Yields every number of `Tuning`, in the order of the passes."""
    for number in fields(Tuning):
        assert isinstance(number.default, int | float)
        yield Choice(number.name, number.default, **number.metadata)
