"""The scheduler on a simulated clock: hours of traffic in seconds, without values.

* `workloads`: the programs of the runner as `shapes`, for estimates of their time.
* `timings`: how long a program takes on a machine, by bucket; `costs`: the programs of a step.
* `traffic`: requests, drawn or read.
* `one_copy`: the clock of a copy of the model, with `guessing`; `simulation`: one or several
  copies; `disaggregation`: one for prompts and one for answers.
* `outcome` and `report`: what clients would see.
"""
