"""Legal per-core StableHLO becomes a `Program` of engine instructions.

* `passes`: all passes in their order, each with its contract and what checks it.
* `lowering`: the way through a graph, operation by operation; `families` has a rule for each kind.
* `native`, `rewrite`: operations in terms of others, and what engines do by themselves.
* `scope`: the values of one graph and the kernels that make them; `view`: where a value lies, as
  strides over a buffer, for layout operations only change views; `storage`: its type in memory;
  `frames`: values that lie within their padding.
* `fuse`, `attention`, `pairs`, `absorb`, `widening`: which operations share a kernel; `order`,
  `homes`: when it runs and where its results lie; `layouts`: the order that its readers want.
* `tile_program`, `tiles`, `across`: how a chain walks over its values; `shortcuts`, `compose`,
  `spread`: several operations in one instruction; `region`, `sweep`: regions as code on tiles.
* `builder`: writing one kernel; `elementwise`: instructions for element-wise operations; `balance`:
  which engine has which of them.
* `unread`: copies that nobody reads; `split`, `halving`: kernels on both cores of LNC 2.
* `join`, `segments`, `forward`, `resident`, `once`: small kernels as one, with tensors that stay in
  SBUF between them.
* `interleaving`: loops written out, and instructions in an order that keeps engines busy.
* `allocate`, `synchronise`: addresses and semaphores of a finished program; `account`: its memory.
"""
