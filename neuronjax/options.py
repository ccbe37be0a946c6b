"""Every switch of the project in one frozen record. The only reader of the environment.

Variables that begin with ``NEURON_`` keep the meaning they have in the Neuron SDK; the project's
own begin with ``NEURONJAX_``. ``configure`` sets the same switches from Python.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

from neuronjax.errors import ConfigurationError, ConfigurationWarning, quoted
from neuronjax.faults import Fault, format_fault, parse_faults
from neuronjax.notices import warned
from neuronjax.option_values import (
    address_of,
    choice,
    counts_of,
    logical_cores,
    names_of,
    nonempty,
    parse_core_list,
    port_number,
    positive,
    process_number,
    refused,
    seed,
    switch,
)

logger = logging.getLogger("neuronjax")

DEFAULT_TARGET = "trn2.3xlarge"
XLA_THREADS = "PJRT_NPROC"
XLA_FLAGS = "XLA_FLAGS"
OLDEST_SDK = "2.20"
LATEST_SDK = "2.32"
"""The first and the last Neuron SDK whose behaviour is known."""

Version = tuple[int, ...]
"""A version as numbers, which compare."""

GENERATIONS = ("trn1", "inf2", "gen2", "trn2", "gen3", "trn3", "gen4")
"""Names of generations of cores, as NKI takes them."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The user's settings. ``None`` means "the target's default"."""

    target: str = DEFAULT_TARGET
    """The machine to emulate: an instance or UltraServer from the table of targets."""
    lnc: int | None = None
    """Physical cores per logical core (1 or 2)."""
    visible_cores: tuple[int, ...] | None = None
    """Logical cores this process may use, in order, such as ``0-3`` or ``0,2``."""
    num_cores: int | None = None
    """Number of logical cores to use, starting with the first."""
    executor: str = "host"
    """How values are computed: ``host`` by XLA on the CPU, ``engine`` by the emulator of
    NeuronCores, ``none`` not at all: results are zeros."""
    engine_order: str = "program"
    """How the executor ``engine`` orders instructions: ``program`` one after the other,
    ``dataflow`` engines and queues concurrently as semaphores permit, with races reported,
    ``adversarial`` the same, with transfers that end as late as possible."""
    engine_seed: int = 0
    """Seed for the choices that a dataflow order makes."""
    record_to: str | None = None
    """Folder for a record of every run of the executor ``engine``, for ``neuronjax replay``."""
    simulate: bool = True
    """Whether ``compiled.cost_analysis()`` and ``memory_analysis()`` give the device's numbers for
    programs that the host computes, which lowers and times them on request, and whether traces of
    ``jax.profiler`` show the device."""
    dump_to: str | None = None
    """Folder for the text of every program after each stage of its compilation."""
    dump_passes: tuple[str, ...] = ()
    """Passes after ``legalize`` whose results are also written to that folder, separated by commas;
    ``neuronjax lower --stop_after=help`` lists them."""
    verify_passes: bool = False
    """Verify the program after every pass, rather than only at the end."""
    profile_to: str | None = None
    """Folder for a profile of all programs that the process runs."""
    monitor_port: int | None = None
    """Port on 127.0.0.1 where the process serves its counters, for ``neuronjax monitor``,
    ``neuronjax top`` and Prometheus."""
    numerics: str = "chip"
    """Which arithmetic to use: ``chip`` is the NeuronCore's, ``ieee`` is plain XLA on the CPU."""
    stochastic_rounding: bool = False
    """Round FP32 to narrower floats stochastically instead of to nearest."""
    stochastic_rounding_seed: int = 0
    """Seed of the random numbers for stochastic rounding."""
    first_run: int = 0
    """The number from which to count each program's runs. The random numbers depend on the count,
    so a process that continues another's work can draw the numbers that come next."""
    flush_subnormals: bool = False
    """Replace subnormal results with zero; what the chip does is not documented."""
    legality: str = "warn"
    """What to do about programs that the real compiler would refuse: ``off``, ``log`` (only to the
    logger ``neuronjax.legality``), ``warn``, ``strict``."""
    sdk: str = LATEST_SDK
    """Version of the Neuron SDK whose compiler is emulated."""
    fail_on_nan: bool = False
    """An operation that makes a NaN from numbers ends the run with status 1003."""
    fail_on_out_of_bounds: bool = False
    """A gather or scatter index outside its operand ends the run with status 1006."""
    faults: tuple[Fault, ...] = ()
    """Faults to inject, separated by semicolons, such as ``core_dies core=3 step=10``."""
    exec_timeout: int = 30
    """Seconds after which a run that hangs fails; the default is that of the Neuron runtime."""
    kernel_target: str | None = None
    """Generation of cores that NKI kernels are compiled for, such as ``trn2`` or ``gen3``; by
    default, and where a command or a function is given a target, it is that of the emulated
    machine."""
    precise_fp: bool = True
    """Whether ``nki.simulate`` rounds to BF16 and FP8; 0 keeps FP32 where kernels name those."""
    log_level: str = "warning"
    """Lowest severity of messages that the logger ``neuronjax`` shows."""
    process_devices: tuple[int, ...] | None = None
    """Number of logical cores of each process, such as ``64,64``, if several run together."""
    process_index: int | None = None
    """The number of this process, unless ``jax.distributed`` is initialised."""
    root_address: str | None = None
    """The address ``host:port`` of process 0, unless ``jax.distributed`` is initialised."""
    peer_timeout: int = 30
    """Seconds after which the job fails if a process is missing or gives no sign of life."""
    late_peer_timeout: int = 600
    """Seconds after which the job fails if a live process does not reach the point where others
    wait for it. It may be compiling, or emulating something large."""
    emulate: bool = False
    """Emulate the platform ``neuron`` even if AWS's plugin is installed."""
    native_stubs: bool = True
    """Answer the hottest PJRT calls, and run small programs on one core, with generated machine
    code where the host allows it."""
    stress: int | None = None
    """Seed of random delays, with memory watched, for tests of the backend itself."""
    cc_flags: tuple[tuple[str, str], ...] = ()
    """Flags for the compiler, in Python as (flag, value) pairs; ``--logical-nc-config`` must agree
    with the runtime's variable."""


def version(text: str) -> Version:
    """``"2.32"`` as numbers, which compare. Raises ``ValueError`` if malformed."""
    return tuple(int(part) for part in text.split("."))


def _sdk(variable: str, text: str) -> str:
    try:
        known = version(OLDEST_SDK) <= version(text) <= version(LATEST_SDK)
    except ValueError:
        known = False
    if not known:
        raise refused(variable, text, f"a version from {OLDEST_SDK} to {LATEST_SDK}")
    return text


def _critical(variable: str, text: str) -> bool:
    if text not in ("none", "info", "critical"):
        raise refused(variable, text, "none, info or critical")
    return text == "critical"


CC_FLAGS = frozenset({
    "--model-type", "--auto-cast", "--auto-cast-type", "--enable-mixed-precision-accumulation",
    "--disable-mixed-precision-accumulation", "--enable-saturate-infinity", "--native-int64",
    "--implicit-integer-downcast", "--logical-nc-config", "-lnc", "--lnc", "--optlevel", "-O",
    "-O1", "-O2", "-O3", "--distribution-strategy", "--enable-fast-context-switch",
    "--enable-fast-loading-neuron-binaries", "--logfile", "--output", "--verbose", "--dump",
    "--target", "--framework", "--hbm-scratchpad-page-size", "--tensorizer-options",
    "--internal-hlo2tensorizer-options", "--internal-enable-dge-levels", "--pipeline",
    "--execute-repetition", "--internal-max-instruction-limit", "--cache_dir", "--no_cache",
    "--retry_failed_compilation", "--log_level", "--experimental-unsafe-fp8e4m3fn-as-fp8e4m3",
})  # fmt: skip
"""Known flags of neuronx-cc and its wrapper; any other flag is reported once."""


def parse_cc_flags(variable: str, text: str) -> tuple[tuple[str, str], ...]:
    """NEURON_CC_FLAGS as (flag, value) pairs. Raises ``ConfigurationError`` if malformed."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise refused(variable, text, f"flags quoted as in a shell ({error})") from None
    pairs: list[tuple[str, str]] = []
    for word in words:
        if word.startswith("-"):
            flag, _, value = word.partition("=")
            pairs.append((flag, value))
        elif pairs and not pairs[-1][1]:
            pairs[-1] = (pairs[-1][0], word)
        else:
            raise refused(variable, text, f"flags that begin with '-'; found {quoted(word)}")
    for flag in sorted({flag for flag, _ in pairs} - CC_FLAGS):
        _warn_unknown(f"{variable}: unknown compiler flag {quoted(flag)} is ignored.")
    return tuple(pairs)


VARIABLES: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "NEURONJAX_TARGET": ("target", nonempty),
    "NEURON_LOGICAL_NC_CONFIG": ("lnc", logical_cores),
    "NEURON_RT_VIRTUAL_CORE_SIZE": ("lnc", logical_cores),
    "NEURON_RT_VISIBLE_CORES": ("visible_cores", parse_core_list),
    "NEURON_RT_NUM_CORES": ("num_cores", positive),
    "NEURONJAX_EXECUTOR": ("executor", choice("host", "engine", "none")),
    "NEURONJAX_ENGINE_ORDER": (
        "engine_order",
        choice("program", "dataflow", "adversarial"),
    ),
    "NEURONJAX_ENGINE_SEED": ("engine_seed", seed),
    "NEURONJAX_RECORD_TO": ("record_to", nonempty),
    "NEURONJAX_SIMULATE": ("simulate", switch),
    "NEURONJAX_DUMP_TO": ("dump_to", nonempty),
    "NEURONJAX_DUMP_PASSES": ("dump_passes", names_of),
    "NEURONJAX_VERIFY_PASSES": ("verify_passes", switch),
    "NEURONJAX_PROFILE_TO": ("profile_to", nonempty),
    "NEURONJAX_MONITOR_PORT": ("monitor_port", port_number),
    "NEURONJAX_NUMERICS": ("numerics", choice("chip", "ieee")),
    "NEURON_RT_STOCHASTIC_ROUNDING_EN": ("stochastic_rounding", switch),
    "NEURON_RT_STOCHASTIC_ROUNDING_SEED": ("stochastic_rounding_seed", seed),
    "NEURONJAX_FIRST_RUN": ("first_run", seed),
    "NEURONJAX_FLUSH_SUBNORMALS": ("flush_subnormals", switch),
    "NEURONJAX_LEGALITY": ("legality", choice("off", "log", "warn", "strict")),
    "NEURONJAX_SDK": ("sdk", _sdk),
    "NEURON_FAIL_ON_NAN": ("fail_on_nan", switch),
    "NEURON_RT_NUMERICAL_ERRORS_VERBOSITY": ("fail_on_nan", _critical),
    "NEURONJAX_FAIL_ON_OUT_OF_BOUNDS": ("fail_on_out_of_bounds", switch),
    "NEURONJAX_FAULTS": ("faults", parse_faults),
    "NEURON_RT_EXEC_TIMEOUT": ("exec_timeout", positive),
    "NEURON_PLATFORM_TARGET_OVERRIDE": ("kernel_target", choice(*GENERATIONS)),
    "NKI_PRECISE_FP": ("precise_fp", switch),
    "NEURONJAX_LOG_LEVEL": ("log_level", choice("debug", "info", "warning", "error")),
    "NEURON_PJRT_PROCESSES_NUM_DEVICES": ("process_devices", counts_of),
    "NEURON_PJRT_PROCESS_INDEX": ("process_index", process_number),
    "NEURON_RT_ROOT_COMM_ID": ("root_address", address_of),
    "NEURONJAX_PEER_TIMEOUT": ("peer_timeout", positive),
    "NEURONJAX_LATE_PEER_TIMEOUT": ("late_peer_timeout", positive),
    "NEURONJAX_EMULATE": ("emulate", switch),
    "NEURONJAX_NATIVE_STUBS": ("native_stubs", switch),
    "NEURONJAX_STRESS": ("stress", seed),
    "NEURON_CC_FLAGS": ("cc_flags", parse_cc_flags),
}
"""Environment variable -> (field, parser). If two rows set the same field, the earlier one wins."""

_ACCEPTED_PREFIXES = (
    "NEURON_RT_", "NEURON_PJRT_", "NEURON_COMPILE_CACHE_URL", "NEURON_FORCE_PJRT_PLUGIN",
    "NEURON_RUN_TRIVIAL_COMPUTATION_ON_CPU", "NEURON_PROCESS_TAG",
    "NEURON_SCRATCHPAD_PAGE_SIZE", "NEURON_NUM_RECENT_MODELS_TO_KEEP",
    "NEURON_EXTRACT_GRAPHS_ONLY", "NEURON_FSDP", "NEURON_LIBTORCH_REMOTE_CACHE",
    "NEURONJAX_CONFORMANCE_",
)  # fmt: skip
"""Prefixes of the real runtime's variables that are accepted but have no effect here."""

_configured: dict[str, Any] = {}
_pinned: dict[str, Any] = {}
_sealed: list[str] = []
_warned: set[str] = set()


def _warn_unknown(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        if not warned(message, ConfigurationWarning, "environment", 1):
            logger.warning("%s", message)


def unknown_variables(environ: Mapping[str, str] | None = None) -> Iterable[str]:
    """Variables in ``environ`` (default: the process environment) that look as if they were
    Neuron's or ours, and are neither."""
    for name in os.environ if environ is None else environ:
        ours = name.startswith(("NEURON_", "NEURONJAX_"))
        if ours and name not in VARIABLES and not name.startswith(_ACCEPTED_PREFIXES):
            yield name


def load(environ: Mapping[str, str] | None = None, **switches: Any) -> Options:
    """Options from ``environ`` (default: the process environment) and ``configure``, which wins.

    Options set by ``pin`` win over both, and ``switches``, as for ``configure``, over all of them.

    Raises:
      ConfigurationError: a variable has a value that is not allowed; the message names both.
    """
    environ = os.environ if environ is None else environ
    chosen: dict[str, Any] = {}
    for variable, (field, parse) in VARIABLES.items():
        if variable in environ and field not in chosen:
            chosen[field] = parse(variable, environ[variable])
    for name in unknown_variables(environ):
        _warn_unknown(f"unknown variable {name} is ignored; docs/options.md lists them.")
    explicit = _configured | _pinned
    if "target" in {*explicit, *switches} and "kernel_target" not in explicit:
        chosen.pop("kernel_target", None)
    chosen |= explicit
    for name, value in switches.items():
        chosen[name] = _parsed(name, value, f"{name}=…")
    return _with_compiler_lnc(Options(**chosen))


def is_emulation_asked_for() -> bool:
    """Option ``emulate`` alone, so that a process without the platform reads no other variable."""
    variable = "NEURONJAX_EMULATE"
    return load({variable: os.environ[variable]} if variable in os.environ else {}).emulate


def _with_compiler_lnc(options: Options) -> Options:
    """The runtime's and the compiler's logical core size must agree (unsupported otherwise)."""
    for flag, value in options.cc_flags:
        if flag in ("--logical-nc-config", "--lnc", "-lnc"):
            lnc = logical_cores(f"NEURON_CC_FLAGS {flag}", value)
            if options.lnc not in (None, lnc):
                raise ConfigurationError(
                    f"NEURON_CC_FLAGS asks for {flag}={lnc} but NEURON_LOGICAL_NC_CONFIG is "
                    f"{options.lnc}; make them equal."
                )
            options = replace(options, lnc=lnc)
    return options


_OF_ONE_PROCESS: dict[str, Callable[[str, int], str]] = {
    "NEURONJAX_MONITOR_PORT": lambda port, process: str(int(port) + process),
    **dict.fromkeys(
        ("NEURONJAX_PROFILE_TO", "NEURONJAX_DUMP_TO", "NEURONJAX_RECORD_TO"),
        lambda folder, process: os.path.join(folder, f"process-{process}"),
    ),
}
"""Variables of what only one process can have -> what the n-th of several gets for it."""


def environment(target: str, process: int | None = None) -> dict[str, str]:
    """The environment of another process like this one, on the platform and a target.

    ``process`` is its number if it is one of several; it gets its own port and folders.
    """
    own = {
        variable: given(os.environ[variable], process)
        for variable, given in _OF_ONE_PROCESS.items()
        if process is not None and variable in os.environ
    }
    return {"JAX_PLATFORMS": "neuron", **os.environ, **own, "NEURONJAX_TARGET": target}


@contextmanager
def settings_of_xla(threads: int, flag: str) -> Iterator[None]:
    """Clients of XLA:CPU that are made meanwhile have so many threads and a flag ``--NAME=VALUE``,
    unless the user has set them: XLA has no arguments for them.

    It reads flags once, when the first client of the process is made.
    """
    before = {name: os.environ.get(name) for name in (XLA_THREADS, XLA_FLAGS)}
    os.environ.setdefault(XLA_THREADS, str(threads))
    flags = before[XLA_FLAGS] or ""
    if flag.partition("=")[0] not in flags:
        os.environ[XLA_FLAGS] = f"{flags} {flag}".strip()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def set_default_variable(name: str, value: str) -> None:
    """Sets a variable that another project reads, unless the user has set it."""
    os.environ.setdefault(name, value)


def configure(**switches: object) -> None:
    """Sets options from Python, by the field names of ``Options``; they win over the environment.

    Values may be given as the environment's text or as the field's type. Call it before the first
    use of the platform.

    Raises:
      ConfigurationError: unknown switch, refused value, or the platform is already in use.
    """
    if _sealed:
        raise ConfigurationError(
            "neuronjax.configure was called after the neuron platform had started; call it before "
            "the first JAX computation, or call jax.extend.backend.clear_backends() first."
        )
    for name, value in switches.items():
        if value is None:
            _configured.pop(_known(name), None)
        else:
            _configured[name] = _parsed(name, value, f"configure({name}=…)")


def pin(**switches: Any) -> None:
    """Sets options permanently: ``configure`` can no longer change them.

    It is for programs that run a user's script under their own options.
    """
    for name, value in switches.items():
        _pinned[name] = _parsed(name, value, f"pin({name}=…)")


def _known(name: str) -> str:
    names = {field.name for field in fields(Options)}
    if name not in names:
        raise ConfigurationError(
            f"unknown option {name!r}; choose one of {', '.join(sorted(names))}."
        )
    return name


def _parsed(name: str, value: Any, asked: str) -> Any:
    """The value of an option given from Python; ``asked`` names it in messages."""
    parsers = dict(reversed(VARIABLES.values()))
    return parsers[_known(name)](asked, _as_text(value))


def _as_text(value: Any) -> str:
    """A typed value as the environment would write it."""
    if isinstance(value, bool):
        return str(int(value))
    if not isinstance(value, (tuple, list)):
        return str(value)
    if any(isinstance(entry, Fault) for entry in value):
        return "; ".join(map(format_fault, value))
    if all(isinstance(entry, tuple) for entry in value):
        return shlex.join("=".join(filter(None, entry)) for entry in value)
    return ",".join(map(str, value))


def seal() -> None:
    """Marks the options as in use: ``configure`` is refused until ``unseal`` is called as often."""
    _sealed.append("client")


def unseal() -> None:
    """Undoes one ``seal``."""
    if _sealed:
        _sealed.pop()
