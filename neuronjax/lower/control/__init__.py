"""Control flow, collectives, and what is left to the host.

* `control_flow`: `while`, `case`, `if`.
* `native_kernels`: kernels that users wrote.
* `collectives`: between ranks; `host`, `printing`: operations that no engine can do, as MLIR.
"""
