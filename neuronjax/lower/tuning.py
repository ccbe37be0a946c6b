"""Every number that the compiler was free to choose: default, unit, reason, and where it matters.

A `Tuning` is an option like others (`passes.Setting.tuning`), handed to whatever decides something.
Facts of the hardware are in `neuronjax.machine`, prices in `Prices`; neither belongs here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from neuronjax.machine.specs import KIB


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
        "as many pass while a small tensor goes through HBM to another kernel",
        "reductions of long rows, greedy sampling")
    long_row_parts: int = choice(1024, "to parts of a row",
        "the second reduction takes them at once", "reductions of one row")
    taken_operations: int = choice(16, "to operations that a reader takes along",
        "others may need the same values, or a kernel of their own would be short",
        "losses over a large vocabulary, masks and rotary tables")
    written_steps: int = choice(32, "to steps along a dimension",
        "every one is an instruction", "pooling over whole images, running sums over rows")
    mask_blocks: int = choice(64, "from blocks of 128 by 128",
        "smaller masks take hardly any time", "attention in windows over long texts")
    window_taps: int = choice(9, "to elements of a window that are combined at once",
        "more are combined along one dimension after the other", "pooling of images")
    transfer_neighbours: int = choice(16, "from elements side by side",
        "transfers of fewer take as long as those of single ones",
        "pooling of few channels, running sums over rows")
    depthwise_taps: int = choice(64, "to weights of a channel",
        "every one is an instruction", "depthwise convolutions")
    depthwise_copies: float = choice(0.5, "elements that Vector copies for each weight",
        "beside a multiplication and an addition of tensors", "depthwise convolutions")
    interleaved_values: int = choice(4, "to values side by side",
        "every one is an instruction over all of the result", "rotary positions in pairs")
    argmax_elements: int = choice(1 << 18, "from elements of all rows",
        "a gather and the kernels about it take some 20 us", "greedy sampling")
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
    touched_row_bytes: int = choice(22, "bytes that move for each number of an update",
        "sums are filled, gathered, rounded, and take the places of old rows",
        "gradients of embeddings in short types")
    touched_row_kernels: int = choice(8, "kernels that the whole table does not need",
        "each begins with transfers that wait for the one before",
        "gradients of embeddings in short types")
    touched_row_transfers: int = choice(3, "transfers of 128 rows that wait for each other",
        "numbers of updates are left and taken, and rows replaced",
        "gradients of embeddings in short types")
    unrolled_operations: int = choice(256, "to operations of all trips of a loop",
        "each is an instruction of its own in every tile", "random numbers")
    # chain/: tiles of what is computed element by element.
    tile_elements: int = choice(2 * KIB, "to elements of a tile in a partition",
        "longer instructions are not faster, and tiles must leave room", "everything element-wise")
    tiles_in_turn: int = choice(4, "from tiles of a chain that is not small",
        "one is loaded and one stored while engines work", "residuals and activations")
    tile_part: int = choice(256, "elements of a partition from which a tile is not small",
        "an instruction's start counts for less", "small element-wise kernels")
    single_row: int = choice(256, "from elements of a reduced row that has a partition to itself",
        "its sums are scalars of instructions", "norms and softmax")
    chain_slots: int = choice(2, "tiles of what a loop loads or stores",
        "one is used while the other is on its way", "everything element-wise")
    held_bytes: int = choice(24, "bytes for each element of the values between",
        "the tiles of the dead make room for others", "long chains, norms of long rows")
    row_bytes: int = choice(150 * KIB, "to bytes of a partition for whole rows",
        "the rest is for what is loaded beside them", "norms and softmax of long rows")
    shared_bytes: int = choice(32 * KIB, "to bytes of a partition for what a loop's tiles share",
        "the rest is for the tiles", "biases and scales of wide layers, gated layers")
    close_elements: int = choice(4, "to elements from one that is wanted to the next",
        "a transfer takes what lies between along", "strided slices, interleaved channels")
    moved_for_one: int = choice(8, "to elements that are moved for each that is wanted",
        "a transfer of a single element takes as long", "strided copies, gathers of columns")
    copied_run: int = choice(32, "from elements side by side that are moved together",
        "fewer are moved as fast one by one", "transposes and strided copies")
    sweep_words: int = choice(12, "words of a partition for each element of a row",
        "kernels that count them say so themselves", "windows, running sums, reductions of pairs")
    spread_partitions: int = choice(32, "from partitions that a row is spread over",
        "transfers to fewer take less time than a product", "biases and scales")
    scalar_elements: int = choice(32, "from elements of work that moves to the Scalar engine",
        "an engine has to be told that the other is done", "sums that leave PSUM")
    # group/: what becomes one kernel.
    group_operations: int = choice(96, "to operations of a group",
        "tiles have to fit, and people to read the kernel", "optimizers, long chains")
    early_elements: int = choice(64 * KIB, "to elements of what is made before it is read",
        "more would take memory for too long", "biases that are converted")
    score_bytes: int = choice(36, "bytes of a query's partition for each key",
        "scores, their exponentials and what is between", "attention over long texts")
    attention_queries: int = choice(64, "from queries of attention whose keys pass in parts",
        "fewer leave most partitions idle", "attention over long texts")
    # plan/: where values lie.
    efficient_run: int = choice(512, "from bytes side by side",
        "transfers of fewer are bound by their descriptors", "layouts that products read")
    # reduction/.
    two_pass_row: int = choice(1024, "from elements of a row that is reduced in two passes",
        "a second kernel has latencies of its own", "reductions with a function of their own")
    scanned_rows: int = choice(16, "to rows of a partition that are scanned one by one",
        "more are added up column by column", "running sums")
    # sort/.
    sort_piece: int = choice(4 * KIB, "to pairs of a partition that are compared at once",
        "fewer, down to a 4th, leave room for more", "sorts")
    selected_elements: int = choice(512, "to elements that are chosen of a row",
        "beyond, rounds of eight are no faster than a network", "sampling of the best words")
    selection_trip: int = choice(12_000, "elements that an instruction goes through",
        "as many pass while parts of rows are put together", "sampling of the best words")
    best_parts_trip: int = choice(40_000, "elements that an instruction goes through",
        "as many pass while kernels between look for the best parts", "choices from long rows")
    # index/.
    index_columns: int = choice(32, "to index vectors of a partition",
        "rows of as many are computed at once", "embeddings, pages of a cache")
    window_bytes: int = choice(32 * KIB, "to bytes of a window on a partition",
        "transfers of longer runs are not faster", "gathers of long rows")
    register_bytes: int = choice(64 * KIB, "from bytes of a window",
        "a transfer of fewer is not worth a register", "experts, slices at a position")
    register_windows: int = choice(64, "to windows that are taken one by one",
        "128 at once are better", "experts, slices at a position")
    held_table: int = choice(16 * KIB, "to elements of a table that every partition holds",
        "more take longer to bring there than rows to fetch", "relative positions")
    held_window: int = choice(64, "to elements of a window of such a table",
        "GpSimd takes longer to look up more than DMA engines to fetch", "relative positions")
    held_window_turned: int = choice(4, "times as many where windows come first",
        "rows would be put in another order afterwards", "relative positions")
    # product/.
    chunk_bytes: int = choice(16 * KIB, "bytes of a partition for a transfer",
        "2 MiB over all partitions use all DMA engines well", "products of large matrices")
    in_flight_bytes: int = choice(1 << 20, "bytes that move while a transfer arrives",
        "2 us at the bandwidth of a core", "products whose operands pass by")
    load_slots: int = choice(8, "to tiles of what a loop loads",
        "more take the room of others: without a limit, counts of classes took 1.8 times as long",
        "products whose operands pass by")
    panel_columns: int = choice(4 * KIB, "to columns of a panel",
        "wider ones leave no room for what passes", "products of large matrices")
    panel_taps: int = choice(64, "to taps of a window whose panels are loaded as one",
        "they overlap in memory", "convolutions")
    sum_readers: int = choice(2, "to operations that read sums in PSUM",
        "more keep it occupied for too long", "activations after products")
    added_rows: int = choice(256, "to rows of sums that a row is added to by a product",
        "spreading it over partitions pays for more", "biases")
    attention_batches: int = choice(4, "to batches whose scores are made at once",
        "engines have some to work on while others wait for a softmax", "attention of few queries")
    attention_part: int = choice(1024, "keys of a part, or half as many",
        "starting an instruction costs little beside what it does", "attention over long texts")
    wide_elements: int = choice(256, "elements of an instruction for several batches",
        "its start counts for little then", "attention of few queries")
    wide_queries: int = choice(32, "to queries that leave the Tensor engine idle",
        "the fewest instructions are best", "attention of a word at a time")
    wide_groups: int = choice(8, "from groups of batches",
        "engines have one to work on while others wait", "attention of few queries")
    wide_together: int = choice(3, "to groups whose scores are made at once",
        "the softmax of each waits for other engines", "attention of few queries")
    pair_shared_bytes: int = choice(48 * KIB, "to bytes of a partition loaded for rows of a pair",
        "both products have to fit beside them", "gated layers")
    segment_share: float = choice(0.9, "to part of the work that is left",
        "the whole is simpler", "attention with masks")
    segments: int = choice(3, "to segments of queries",
        "each is a kernel, whose order the compiler looks for", "attention with masks")
    waiting_share: float = choice(0.25, "part of other engines' work that the busiest waits for",
        "what iterations of a loop take beside its work, in order", "attention, convolutions")
    # cores/ and join/: what kernels are made of.
    split_share: float = choice(0.9, "to part of a kernel's work that a core has",
        "the rest is not worth a second core", "LNC 2")
    halved_bytes: int = choice(16 * KIB, "from bytes of a copy that is halved",
        "fewer take a transfer no longer than its start", "LNC 2")
    small_runs: int = choice(512, "to instructions that a small kernel runs",
        "larger ones take longer than the barriers around them", "small models")
    joined_instructions: int = choice(300, "to instructions of a joined kernel",
        "loops of longer ones stay where they are, which costs more", "small models")
    resident_share: float = choice(0.9, "to part of SBUF for tiles and tensors that stay",
        "the rest is lost between them", "values between joined kernels")
    large_tile_share: float = choice(15 / 16, "to part of SBUF for a kernel's large tiles",
        "the rest is for the small ones", "sorts, gathers, norms of long rows")
    overlaps: int = choice(2, "kernels before one that may still run",
        "with one, small kernels keep loads from running ahead; with more, fewer find memory",
        "all programs of several kernels")
    # schedule/: in which order instructions come.
    idle_ratio: float = choice(1.2, "from times the busiest engine's work",
        "kernels and loops that take less have little to gain", "all kernels")
    enough_ratio: float = choice(1.1, "to times the busiest engine's work",
        "an order that takes no more leaves nothing to look for", "all kernels")
    order_share: float = choice(0.99, "to part of the time before",
        "clocks are rough", "all kernels")
    unroll_factor: int = choice(8, "to iterations written out",
        "more bring little that waits", "loops that leave engines idle")
    unrolled_instructions: int = choice(320, "to instructions of a list",
        "looking for an order takes as long as their square", "loops that leave engines idle")
    pipeline_cuts: int = choice(8, "places to cut a loop's body at",
        "neighbouring ones take as long", "loops that leave engines idle")
    clock_trips: int = choice(3, "iterations that clocks look at",
        "others are like the last", "all loops")
    clock_long: int = choice(64, "nodes of a loop of which clocks look at one iteration fewer",
        "it takes long", "long loops")
    clock_gaps: int = choice(8, "idle times of the DMA engines that later transfers fill",
        "older ones are seldom asked for", "kernels of many transfers")
    negligible_share: float = choice(0.025, "to part of a program's time that is given up",
        "orders for what promises so little take longer to find than they save", "all programs")
    tolerable_share: float = choice(0.05, "the same while there is much to look at",
        "orders for large programs take minutes", "large programs")
    much_instructions: int = choice(700, "from instructions that are much to look at",
        "some 10 ms each", "large programs")
    unknown_trips: int = choice(64, "iterations of a loop that only the run knows",
        "loops of programs run often", "generation in a loop")
# fmt: on


DEFAULT = Tuning()
"""The numbers that users get."""


def choices() -> Iterator[Choice]:
    """Yields every number of `Tuning`, in the order of the passes."""
    for number in fields(Tuning):
        assert isinstance(number.default, int | float)
        yield Choice(number.name, number.default, **number.metadata)
