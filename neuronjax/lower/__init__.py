"""Legal per-core StableHLO becomes a `Program` of engine instructions.

In the order of the flow:

* `passes`: all passes, each with its contract and what checks it.
* `lowering`, `scope`: the way through a graph, and the kernels that make its values; `unit`: the
  program that grows on that way; `rules`: operation -> the rule that lowers it; `epilogue`: what a
  product takes along; `operations`: what passes ask of operations; `values`: types and strides in
  memory.
* `rewrite`, with `rewriter`: operations in terms of others.
* `group`: which operations share a kernel; `plan`: where values between kernels lie.
* `chain`, `product`, `index`, `reduction`, `sort`, `control`: kernels by kind of operation, with
  `write`: the builder of kernels; `region`, `filling`, `moves`: what several kinds need.
* `cores`: both cores of LNC 2; `join`: small kernels as one; `schedule`: the order of instructions.
* `memory`: addresses; `sync`: semaphores.
"""
