"""The scheduler on a simulated clock: hours of traffic in seconds, without values.

* `workloads`: the programs of the runner as shapes, for estimates of their time.
* `timings`: how long the step of each bucket takes on a machine.
* `traffic`: requests, drawn or read; `simulation`: the clock; `report`: what clients would see.
"""
