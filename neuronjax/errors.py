"""Every exception that neuronjax raises: one class per cause, with the remedy in the message.

``status`` is the PJRT status name under which the error crosses the C API into JAX. Warnings have
their own classes, too, so that they can be filtered.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable


def quoted(value: object) -> str:
    """The ``repr`` of user input for a one-line message, with the middle of long text elided."""
    return shortened(repr(value), 120)


def shortened(text: str, most: int) -> str:
    """A text with its middle left out if it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]} … {text[-most // 6 :]}"


def describe(error: BaseException) -> str:
    """The class of an exception and the first line of its text, as other processes are told."""
    return shortened(f"{type(error).__name__}: {error}".splitlines()[0], 300)


def shown_line(source: str) -> str:
    """A source line, ``file:line``, as messages and tables name it: from the working directory if
    the file is in it."""
    return os.path.relpath(source) if source.startswith(f"{os.getcwd()}{os.sep}") else source


def did_you_mean(word: str, known: Iterable[str], most: int = 1) -> str:
    """A sentence, after a space, that names what is close to `word`; empty if nothing is."""
    close = difflib.get_close_matches(word, list(known), most, cutoff=0.5)
    return f" Did you mean {' or '.join(close)}?" if close else ""


class NeuronError(Exception):
    """Base of all errors of the project."""

    status = "INTERNAL"

    def __init_subclass__(cls, *, status: str = "") -> None:
        super().__init_subclass__()
        cls.status = status or cls.status


class ConfigurationError(NeuronError, ValueError, status="INVALID_ARGUMENT"):
    """A variable, flag or ``configure`` argument has a value that is not allowed."""


class UnknownTargetError(ConfigurationError, status="NOT_FOUND"):
    """The named instance or UltraServer does not exist."""


class LogicalCoreError(ConfigurationError):
    """The logical NeuronCore configuration is impossible on the target (compiler code EARG001)."""


class VisibleCoresError(ConfigurationError):
    """NEURON_RT_VISIBLE_CORES or NEURON_RT_NUM_CORES name cores that are missing or overlap."""


class TopologyError(NeuronError, ValueError, status="INVALID_ARGUMENT"):
    """A mesh does not fit the machine or uses a group size that it does not support."""


class UnknownFormatError(NeuronError, ValueError, status="INVALID_ARGUMENT"):
    """A name or dtype is not a number format of a NeuronCore."""


class BlockShapeError(NeuronError, ValueError, status="INVALID_ARGUMENT"):
    """An array does not divide into MX blocks or words, or its scales belong to another shape."""


class MXOperandError(NeuronError, ValueError, status="INVALID_ARGUMENT"):
    """MX arrays do not support a dtype or a rule for scales."""


class CompileError(NeuronError, status="INVALID_ARGUMENT"):
    """The program could not be compiled."""


class PartitionError(CompileError):
    """XLA's partitioner refused the program."""


class KernelError(NeuronError, status="INVALID_ARGUMENT"):
    """A kernel that the chip would refuse; the text has its lines."""


class UnknownNameError(KernelError, AttributeError):
    """A kernel uses a name that a module of NKI does not have."""


class RemovedImportError(KernelError, ImportError):
    """A kernel imports a name that NKI had once."""


class UnsupportedProgramError(CompileError, status="UNIMPLEMENTED"):
    """The program contains something that the backend cannot run."""


class FailedPassError(CompileError, status="INTERNAL"):
    """A pass of the compiler left a program that no core could run: a defect of this package."""


class LegalityError(CompileError):
    """The real compiler would refuse the program, and option ``legality`` is ``strict``."""


class MalformedProgramError(NeuronError, ValueError, status="INVALID_ARGUMENT"):
    """A record of an engine-level program contradicts itself."""


class ProgramSyntaxError(NeuronError, ValueError, status="INVALID_ARGUMENT"):
    """The text of an engine-level program cannot be read."""


class DeviceMemoryError(NeuronError, status="RESOURCE_EXHAUSTED"):
    """An allocation exceeds the HBM of a logical core."""


class OnChipMemoryError(CompileError, status="RESOURCE_EXHAUSTED"):
    """The tiles of a kernel do not fit into a memory of the core."""


class SbufOverflowError(OnChipMemoryError):
    """The tiles of a kernel do not fit into SBUF."""


class PsumOverflowError(OnChipMemoryError):
    """The tiles of a kernel do not fit into PSUM."""


class HostMemoryError(NeuronError, status="RESOURCE_EXHAUSTED"):
    """An allocation would exhaust the memory of the host that runs the emulation."""


class DeletedBufferError(NeuronError, status="FAILED_PRECONDITION"):
    """A buffer was used after it had been deleted or donated."""


class UnknownElementTypeError(NeuronError, status="INVALID_ARGUMENT"):
    """The backend does not know an element type of the PJRT C API."""


class ArgumentMismatchError(NeuronError, status="INVALID_ARGUMENT"):
    """An executable was called with the wrong number or kind of buffers."""


class ExecutionError(NeuronError):
    """The program failed while it ran."""


class NumericalError(ExecutionError):
    """The program made NaN from numbers (NRT status 1003, NRT_EXEC_COMPLETED_WITH_NUM_ERR)."""


class HardwareError(ExecutionError):
    """Hardware failed, by an injected fault (NRT status 1201 to 1203)."""


class CollectiveTimeoutError(ExecutionError, status="DEADLINE_EXCEEDED"):
    """A core never reached a collective (NRT status 5, NRT_TIMEOUT)."""


class OutOfBoundsError(ExecutionError):
    """The program used an index outside its operand (NRT status 1006, NRT_EXEC_OOB)."""


class MemoryAccessError(ExecutionError):
    """An instruction accessed memory outside its buffer, or a buffer lies outside its memory."""


class UninitialisedError(ExecutionError):
    """An instruction read bytes that nothing had written."""


class OverwrittenError(ExecutionError):
    """An instruction read bytes of a buffer that were written through another one."""


class AccumulationError(ExecutionError):
    """An instruction violates the rules of accumulation groups in PSUM."""


class RaceError(ExecutionError):
    """Two unordered instructions access the same bytes, and at least one of them writes."""


class DeadlockError(ExecutionError):
    """Engines wait for semaphores that nothing will signal."""


class EndlessLoopError(ExecutionError):
    """A loop that a register decides about goes on and on."""


class CollectiveError(ExecutionError):
    """Ranks of a group do not run the same collectives in the same order."""


class MissingHostError(ExecutionError, status="UNIMPLEMENTED"):
    """A program calls the host, but no host function was given."""


class RecordError(NeuronError, ValueError, status="DATA_LOSS"):
    """A record of a run is damaged, or its replay gives different results."""


class NonDeterministicError(NeuronError, ValueError, status="INVALID_ARGUMENT"):
    """Two runs of a function differ, so that its error cannot be measured."""


class SerializationError(NeuronError, status="DATA_LOSS"):
    """A serialized executable or topology is damaged or of another version."""


ENDS_JOB = "The job cannot go on"
"""What an error says that another process is the cause of."""


class PeerError(NeuronError, status="UNAVAILABLE"):
    """Another process of the job is missing, has ended, or was started for another job."""


class NotAddressableError(NeuronError, ValueError, status="INVALID_ARGUMENT"):
    """A device belongs to another process."""


class ScriptError(NeuronError, status="NOT_FOUND"):
    """The command line names a script that cannot be run."""


class WorkloadError(NeuronError, status="INVALID_ARGUMENT"):
    """The function that makes a workload raised an exception."""


class ProfileError(NeuronError, status="NOT_FOUND"):
    """A recording of executions cannot be read or written."""


class MonitorError(NeuronError, status="UNAVAILABLE"):
    """No process serves its counters on the port, or their format needs a missing package."""


class ForkedProcessError(NeuronError, status="FAILED_PRECONDITION"):
    """A child process after ``fork`` cannot compute on the platform that its parent uses."""


class NotImplementedCallError(NeuronError, status="UNIMPLEMENTED"):
    """A PJRT call that this backend does not provide."""


class NeuronWarning(UserWarning):
    """Base of all warnings of the platform. They never make a program fail, even if filters turn
    warnings into errors: see ``neuronjax.notices``."""


class LegalityWarning(NeuronWarning):
    """The program runs here, but would not compile for the device, might fail there, or would give
    other numbers. Option ``legality`` (NEURONJAX_LEGALITY) selects what is reported."""


class ConfigurationWarning(NeuronWarning):
    """An unknown variable or compiler flag was ignored."""


class LifetimeError(NeuronError):
    """Freed memory was written to: a defect of the backend."""


class KernelWarning(NeuronWarning):
    """A kernel of NKI reads what nothing has written, and so has values that nobody knows."""


class UntestedVersionWarning(NeuronWarning):
    """The project was not tested with the minor version of the installed jaxlib."""
