"""Chains of element-wise operations and row reductions as one pass over tiles.

* `tile_program`: a chain as records; `tiles`: boxes of its domain, and the instructions of each;
  `across`: sums over rows of memory; `sweep`: walks of other kernels over values of one shape.
* `elementwise`: StableHLO names to instructions.
* `shortcuts`, `compose`, `spread`: several operations in one instruction; `balance`: which engine
  has which of them.
"""
