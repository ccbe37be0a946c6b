"""Which operations share a kernel.

* `fuse`: chains; `absorb`: groups that read from one alone; `attention_groups`: a product, a
  softmax and a product; `pairs`: two products whose results the same operations take.
* `widening`: narrow values are widened where they are read.
"""
