"""What a program would take on a machine, without running it: time, memory, money.

* `workload`: `Workload`, a function with the shapes of its arguments; `load`, one by its name.
* `tracing`: a workload becomes StableHLO over a mesh that needs no devices.
* `flops`: multiplications and additions of a StableHLO module.
* `measure`: one core's program, compiled, lowered and timed, as numbers that add.
* `depth`: a deep model's numbers from shallow ones.
* `memory`: HBM by what lies there, and what to change if it does not fit.
* `estimate`: `estimate`, all of it as an `Estimate`; `record`, `table`: what that is and says.
* `what_if`: machines that do not exist; `prices`: what machines cost.
* `sweep`, `plot`: many estimates, and which of them are worth a look.
"""
