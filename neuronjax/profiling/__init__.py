"""What people see of recorded executions: summaries, tables, a trace and a page.

* `records`: `Profile`, all that is known of a recording; everything else is made from it.
* `places`: kernels by the paths that a schedule gives them; `work`: what their instructions do.
* `detail`: a kernel's first instructions and transfers in time, and what each waited for.
* `live`: bytes of HBM, SBUF and PSUM while a program runs.
* `analyse`: a program becomes its profile.
* `costs`: what lines and layers cost.
* `summary`, `tables`: Neuron Explorer's names, as JSON and as parquet.
* `events`: what a trace shows; `chrome`, `perfetto`, `xspace`: it as JSON, as Perfetto's protobuf,
  and as jax.profiler has it.
* `page`: the report; `text`: the table of a terminal.
* `findings`: what is slow, why, and what to do; `compare`: two profiles beside each other.
* `store`: all of it in a folder.

Times are ns, sizes are bytes, of one logical core unless something else is said.
"""
