"""The hardware as data: chips, instances, their wiring, and the placement of meshes.

* `specs`: the records of facts: `ChipSpec`, `CoreSpec`, `EngineSpec`, `MemorySpec`, ….
* `chips`: Inferentia1 to Trainium3, every number with its source; `CHIPS`.
* `topology`: `Topology`, chips and links as a product of lines, rings and switches.
* `instances`: every instance and UltraServer; `INSTANCES`, `find_instance`.
* `machine`: `Machine`, a target with a logical-core configuration, and its `LogicalCore`s.
* `hosts`: the cores of the processes of a job.
* `timings`: documented intervals and latencies; `slowness`: slow cores and links.
* `group_sizes`: how many cores a collective may join.
* `placement`: `arrange_cores`, the part of mesh construction without JAX.
* `mesh`: `make_mesh`, the part with JAX; `axes`: sizes of mesh axes.

A new generation is a new record in `chips` and rows in `instances` and `group_sizes`.
"""
