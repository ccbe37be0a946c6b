"""Products on the Tensor engine.

* `matmul`, `convolution`: `dot_general` and `convolution`, with what follows; `pair`: two products
  and what takes both; `attention`: scores and weights stay in SBUF.
* `product`: the writer they share; `steps`: contracted elements in steps; `blocking`: what is
  stationary, what stays in SBUF, in which order; `panels`, `loading`: operands in SBUF.
"""
