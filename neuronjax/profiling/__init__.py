"""What people see of recorded executions: summaries, tables, a trace and a page.

* `records`: `Profile`, everything known about a recording; all outputs are derived from it.
* `places`: kernels by their path in the schedule; `work`: what their instructions do.
* `spans`: a kernel's first instructions and transfers in time, and what they waited for.
* `memory_use`: bytes of HBM, SBUF and PSUM while a program runs.
* `analyse`: turns a program into its profile.
* `costs`: cost by source line and by layer.
* `summary`, `tables`: metrics under Neuron Explorer's names, as JSON and as parquet.
* `events`: the contents of a trace; `chrome`, `perfetto`, `xspace`: its encodings as JSON, as
  Perfetto's protobuf, and as the XSpace of jax.profiler.
* `counters`, `prometheus`: what a running process reports, as neuron-monitor does.
* `page`: the HTML report; `text`: the summary for a terminal.
* `findings`: what is slow, why, and what to do about it; `compare`: two profiles side by side.
* `store`: the folder that holds a recording and its outputs.

Times are in ns and sizes in bytes, of one logical core unless stated otherwise.
"""
