"""Legal per-core StableHLO becomes a `Program` of engine instructions.

* `lowering`: the way through a graph, operation by operation; `families` has a rule for each kind.
* `view`: where a value lies, as strides over a buffer; layout operations only change views.
* `fuse`: which operations share a kernel; `tiles`: how a kernel walks over its values.
* `builder`: writing one kernel; `elementwise`: instructions for element-wise operations.
* `allocate`, `synchronise`: addresses and semaphores of a finished program.
"""
