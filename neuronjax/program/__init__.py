"""The waist: instructions of a NeuronCore as records. Everything before makes them, everything
after runs, times or checks them.

* `element_types`, `affine`, `operand`: what instructions work on.
* `instruction`: the base record, roles of operands, semaphores; `operators`: the enumerations.
* `tensor_engine`, `vector_engine`, `scalar_engine`, `gpsimd_engine`, `dma`, `collective`,
  `control`: the instructions; `table`: all of them by name.
* `program`: kernels, loops and whole programs; `walk`: going through them; `conflicts`: whether
  kernels beside each other meet in HBM.
* `verify` with `rules/`: what the hardware would not do. `text` with `printer`, `parser`: reading
  and writing programs.
"""
