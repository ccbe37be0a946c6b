"""Operations in terms of others, before anything is grouped.

* `empty`: values without elements; `expansions`: bits, narrow integers, batch norms; `random`:
  counters of Threefry and Philox; `transposed`: convolutions of dilated inputs.
* `early_gathers`: gathers move in front of arithmetic; `argmax`, `long_rows`: rows in parts.
* `scatters`, `touched_rows`: sums as products, and of few rows in large narrow tables.
* `counted`: loops that know their trips, and slices that their counters place.
* `merged_groups`, `depthwise`, `patches`: convolutions of narrow groups, of windows side by side.
* `repeated`: products with copies of a matrix, such as keys that heads share.
* `composed`, `gelu`, `native`: what XLA spelled out becomes what the engines do by themselves.
"""
