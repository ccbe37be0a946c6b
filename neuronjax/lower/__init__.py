"""Legal per-core StableHLO becomes a `Program` of engine instructions.

* `lowering`: the way through a graph, operation by operation; `families` has a rule for each kind.
* `scope`: the values of one graph and the kernels that make them; `rewrite`: operations in terms of
  others.
* `view`: where a value lies, as strides over a buffer; layout operations only change views.
* `fuse`, `attention`, `absorb`: which operations share a kernel; `order`, `homes`: when it runs and
  where its results lie.
* `tile_program`, `tiles`, `across`: how a chain walks over its values; `region`, `sweep`: regions
  as code on tiles.
* `builder`: writing one kernel; `elementwise`: instructions for element-wise operations.
* `split`, `halving`: kernels on both cores of LNC 2.
* `join`, `forward`, `resident`: small kernels as one, with tensors that stay in SBUF between them.
* `allocate`, `synchronise`: addresses and semaphores of a finished program; `account`: its memory.
"""
