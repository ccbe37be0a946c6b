"""The hardware as data: chips, instances, how they are wired, and where a mesh lies on them.

* `specs`: the shapes of the facts: `ChipSpec`, `CoreSpec`, `EngineSpec`, `MemorySpec`, ….
* `chips`: Inferentia1 to Trainium3, every number with its source; `CHIPS`.
* `topology`: `Topology`, chips and links as a product of lines, rings and switches.
* `instances`: every instance and UltraServer; `INSTANCES`, `find_instance`.
* `machine`: `Machine`, a target at one logical-core configuration, and its `LogicalCore`s.
* `group_sizes`: how many cores a collective may join.
* `placement`: `arrange_cores`, the pure half of mesh making.
* `mesh`: `make_mesh`, the half that knows JAX.

A new generation is a new record in `chips` and rows in `instances` and `group_sizes`.
"""
