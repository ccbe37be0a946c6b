"""Programs in time, without values: cost rules, a schedule, collectives over links, rooflines.

* `calibration`: the few constants fitted to public measurements, each with its points.
* `platform`: what a program is timed on: `Platform`.
* `cost`: `Cost`, `Transfer`, `Message`, records that add; `walks`: what an access pattern costs.
* `tensor_engine`, `vector_engine`, `scalar_engine`, `gpsimd_engine`, `random_numbers`, `dma`,
  `collective`, `control`: the rule of every instruction; `table`: all of them by type.
* `encoding`: a kernel as integers, with `overlaps`, which says what an engine waits for of its own;
  `simulate`: one kernel in time, loops jumped over.
* `schedule`: whole programs; `clocks`, `state`: what kernels leave to those after;
  `timeline`: the result.
* `network`: collectives over the topology, also without a program; `fabric`: where their ranks lie.
* `roofline`: lower bounds from the program alone.
* `validation`: public measurements beside predictions.

Cost records are in ns, simulated times are integers in ps, what people read is in ns.
"""
