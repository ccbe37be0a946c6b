"""Device assignments as bytes, against jaxlib's own writer."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from jax._src.lib import xla_client

from neuronjax.jaxlib_api import compile_options
from neuronjax.jaxlib_api.compile_options import read_device_assignment, write_device_assignment

TABLES = arrays.arrays(
    np.int64,
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    elements=st.integers(0, 2**31 - 1),
    unique=True,
)


def jaxlib_bytes(table: np.ndarray) -> bytes:
    return xla_client.DeviceAssignment.create(table).serialize()


@given(TABLES)
def test_reads_what_jaxlib_writes(table: np.ndarray) -> None:
    np.testing.assert_array_equal(read_device_assignment(jaxlib_bytes(table)), table)


@given(TABLES)
def test_writes_what_jaxlib_writes(table: np.ndarray) -> None:
    assert write_device_assignment(table) == jaxlib_bytes(table)


def test_device_assignment_of_many_cores() -> None:
    table = np.arange(2048).reshape(2, 1024)
    assert write_device_assignment(table) == jaxlib_bytes(table)
    np.testing.assert_array_equal(read_device_assignment(jaxlib_bytes(table)), table)


def test_options_through_their_proto() -> None:
    """Counts, assignment, propagation and debug options arrive as they were set."""
    options = compile_options.new()
    assert compile_options.assignment(options) is None
    assert compile_options.shardings_propagated(options) == ([False], [False])
    table = np.array([[2, 0], [1, 3]])
    compile_options.assign(options, table)
    compile_options.propagate_shardings(options, [True, False], [True])
    options.executable_build_options.use_shardy_partitioner = True
    options.env_option_overrides = [("xla_dump_to", "folder")]
    parsed = compile_options.parse(options.SerializeAsString())
    np.testing.assert_array_equal(compile_options.assignment(parsed), table)
    build = parsed.executable_build_options
    assert (build.num_replicas, build.num_partitions) == (2, 2)
    assert build.use_shardy_partitioner
    assert compile_options.shardings_propagated(parsed) == ([True, False], [True])
    assert parsed.env_option_overrides == [("xla_dump_to", "folder")]
