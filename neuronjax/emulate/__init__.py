"""The emulator: runs a `Program` on byte-addressed memories, instruction by instruction.

    results = core.run(program, [{"x": x}])                                   # program order
    results = core.run(program, [{"x": x}], order=core.DataflowOrder(seed=1))  # engines race

* `core`: `run` and `Emulation`; `checks`: what is looked for; `record`: runs that can be repeated.
* `program_order`; `dataflow` with `reading`, `semaphore` and `choice`: the two orders; `fabric`:
  exchanges between ranks.
* `code`: programs made executable; `table`: the rule of each instruction, from `tensor_engine`,
  `vector_engine` and `vector_selection`, `scalar_engine`, `gpsimd_engine`, `random_numbers`, `dma`,
  `collective`, `control`; `unit`: what rules are made of.
* `memory`, `window`, `element_types`, `frame`: bytes, views of them, their meaning, loop variables.
* `written`, `groups`, `races`: what checks look at; `arithmetic`, `activations`,
  `custom_functions`, `mx_blocks`: functions of arrays.

An access to memory is made into a strided view, and an instruction into a closure, once; executing
costs a few microseconds beside the arithmetic, which is numpy's.
"""
