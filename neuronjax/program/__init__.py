"""The waist: instructions of a NeuronCore as records. The compiler produces them; the emulator, the
timing model and the checks consume them.

* `element_types`, `affine`, `operand`: the operands of instructions.
* `instruction`: the base record, roles of operands, semaphores; `operators`: the enumerations.
* `tensor_engine`, `vector_engine`, `scalar_engine`, `gpsimd_engine`, `random_numbers`, `dma`,
  `collective`, `control`: the instructions; `table`: all of them by name.
* `program`: kernels, loops and whole programs; `walk`: traversing them; `conflicts`: whether
  concurrent kernels touch the same elements of HBM.
* `verify` with `rules/`: the limits of the hardware. `text` with `printer`, `parser`,
  `value_parser`, `field_types` and `tokens`: programs as text.
"""
