"""The emulator: runs a `Program` on byte-addressed memories, instruction by instruction.

    results = core.run(program, [{"x": x}])                                   # program order
    results = core.run(program, [{"x": x}], order=core.DataflowOrder(seed=1))  # engines race

* `core`: `run` and `Emulation`; `checks`: the checks of a run; `record`: runs that can be replayed.
* `repeated`: runs of one program, whose emulation is kept.
* `program_order`; `dataflow` with `instruction_reader`, `semaphore` and `stream_choice`: the two
  orders of execution; `fabric`: exchanges between ranks.
* `code`: programs made executable; `table`: the rule of every instruction, from `tensor_engine`,
  `vector_engine` and `vector_selection`, `scalar_engine`, `gpsimd_engine`, `random_numbers`, `dma`,
  `collective` and `control`; `unit`: the building blocks of rules.
* `memory`, `window`, `element_types`, `frame`: bytes, views, number formats, loop variables.
* `uninitialised` with `settled`, `accumulation_groups`, `races` with `accesses`: the checks.
* `arithmetic`, `activations`, `custom_functions`, `mx_blocks`: functions of arrays.

Every access becomes a strided view and every instruction a closure, once, before the program runs.
Executing an instruction then costs a few microseconds on top of numpy's arithmetic.
"""
