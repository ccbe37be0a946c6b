"""Options: what every variable means, which values are refused, and who wins."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from neuronjax import options
from neuronjax.errors import ConfigurationError, NeuronError, VisibleCoresError
from neuronjax.faults import CoreDies, SlowLink
from neuronjax.options import Options
from tests.conftest import RunPython


@pytest.fixture(autouse=True)
def fresh_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not yet used the platform."""
    monkeypatch.setattr(options, "_configured", {})
    monkeypatch.setattr(options, "_pinned", {})
    monkeypatch.setattr(options, "_sealed", [])
    monkeypatch.setattr(options, "_warned", set())


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, Options()),
        ({"SHELL": "zsh", "XLA_FLAGS": "--nonsense"}, Options()),
        ({"NEURONJAX_TARGET": "inf2.xlarge"}, Options(target="inf2.xlarge")),
        ({"NEURONJAX_TARGET": " trn1.2xlarge "}, Options(target="trn1.2xlarge")),
        ({"NEURON_LOGICAL_NC_CONFIG": "1"}, Options(lnc=1)),
        ({"NEURON_RT_VIRTUAL_CORE_SIZE": "2"}, Options(lnc=2)),
        (
            {"NEURON_RT_VIRTUAL_CORE_SIZE": "2", "NEURON_LOGICAL_NC_CONFIG": "1"},
            Options(lnc=1),
        ),
        ({"NEURON_RT_VISIBLE_CORES": "3"}, Options(visible_cores=(3,))),
        ({"NEURON_RT_VISIBLE_CORES": "0-3"}, Options(visible_cores=(0, 1, 2, 3))),
        ({"NEURON_RT_VISIBLE_CORES": "5, 0-1,7"}, Options(visible_cores=(5, 0, 1, 7))),
        ({"NEURON_RT_NUM_CORES": "4"}, Options(num_cores=4)),
        ({"NEURONJAX_EXECUTOR": "host"}, Options(executor="host")),
        ({"NEURONJAX_EXECUTOR": "none"}, Options(executor="none")),
        ({"NEURONJAX_NUMERICS": "ieee"}, Options(numerics="ieee")),
        ({"NEURONJAX_LEGALITY": "strict"}, Options(legality="strict")),
        ({"NEURONJAX_LEGALITY": "log"}, Options(legality="log")),
        ({"NEURONJAX_SDK": "2.31"}, Options(sdk="2.31")),
        ({"NEURON_RT_STOCHASTIC_ROUNDING_EN": "1"}, Options(stochastic_rounding=True)),
        ({"NEURON_RT_STOCHASTIC_ROUNDING_SEED": "7"}, Options(stochastic_rounding_seed=7)),
        ({"NEURONJAX_FIRST_RUN": "100"}, Options(first_run=100)),
        ({"NEURONJAX_FLUSH_SUBNORMALS": "1"}, Options(flush_subnormals=True)),
        ({"NEURON_FAIL_ON_NAN": "1"}, Options(fail_on_nan=True)),
        ({"NEURON_RT_NUMERICAL_ERRORS_VERBOSITY": "critical"}, Options(fail_on_nan=True)),
        ({"NEURONJAX_FAIL_ON_OUT_OF_BOUNDS": "1"}, Options(fail_on_out_of_bounds=True)),
        ({"NEURONJAX_LOG_LEVEL": "debug"}, Options(log_level="debug")),
        ({"NEURON_PLATFORM_TARGET_OVERRIDE": "gen4"}, Options(kernel_target="gen4")),
        ({"NKI_PRECISE_FP": "0"}, Options(precise_fp=False)),
        ({"NEURONJAX_EMULATE": "1"}, Options(emulate=True)),
        (
            {"NEURONJAX_FAULTS": "core_dies core=3 step=10; slow_link factor=1.5"},
            Options(faults=(CoreDies(core=3, step=10), SlowLink(factor=1.5))),
        ),
        ({"NEURON_RT_EXEC_TIMEOUT": "5"}, Options(exec_timeout=5)),
        ({"NEURONJAX_NATIVE_STUBS": "0"}, Options(native_stubs=False)),
        ({"NEURONJAX_STRESS": "7"}, Options(stress=7)),
        (
            {"NEURON_CC_FLAGS": "--auto-cast=none --model-type gpt -O1"},
            Options(cc_flags=(("--auto-cast", "none"), ("--model-type", "gpt"), ("-O1", ""))),
        ),
        (
            {"NEURON_CC_FLAGS": "--tensorizer-options='--a --b=1' --lnc=2"},
            Options(cc_flags=(("--tensorizer-options", "--a --b=1"), ("--lnc", "2")), lnc=2),
        ),
        (
            {"NEURON_CC_FLAGS": "--lnc 1", "NEURON_LOGICAL_NC_CONFIG": "1"},
            Options(cc_flags=(("--lnc", "1"),), lnc=1),
        ),
        ({"NEURON_RT_LOG_LEVEL": "INFO", "NEURON_FSDP": "1"}, Options()),
    ],
    ids=str,
)  # fmt: skip
def test_environment(environ: dict[str, str], expected: Options) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert options.load(environ) == expected


@pytest.mark.parametrize(
    ("variable", "value", "allowed", "kind"),
    [
        ("NEURONJAX_TARGET", "", "not empty", ConfigurationError),
        ("NEURONJAX_TARGET", "  ", "not empty", ConfigurationError),
        ("NEURON_LOGICAL_NC_CONFIG", "3", "1 or 2", ConfigurationError),
        ("NEURON_LOGICAL_NC_CONFIG", "one", "1 or 2", ConfigurationError),
        ("NEURON_RT_VIRTUAL_CORE_SIZE", "0", "1 or 2", ConfigurationError),
        ("NEURON_RT_VISIBLE_CORES", "", "core ids and ranges", VisibleCoresError),
        ("NEURON_RT_VISIBLE_CORES", "a", "core ids and ranges", VisibleCoresError),
        ("NEURON_RT_VISIBLE_CORES", "0-", "core ids and ranges", VisibleCoresError),
        ("NEURON_RT_VISIBLE_CORES", "-1", "core ids and ranges", VisibleCoresError),
        ("NEURON_RT_VISIBLE_CORES", "1,,2", "core ids and ranges", VisibleCoresError),
        ("NEURON_RT_VISIBLE_CORES", "3-1", "runs backwards", VisibleCoresError),
        ("NEURON_RT_VISIBLE_CORES", "0-2,2", "core 2 occurs twice", VisibleCoresError),
        ("NEURON_RT_NUM_CORES", "0", "at least 1", ConfigurationError),
        ("NEURON_RT_NUM_CORES", "-2", "at least 1", ConfigurationError),
        ("NEURON_RT_NUM_CORES", "1.5", "at least 1", ConfigurationError),
        ("NEURONJAX_EXECUTOR", "gpu", "one of host, engine, none", ConfigurationError),
        ("NEURONJAX_NUMERICS", "exact", "one of chip, ieee", ConfigurationError),
        ("NEURONJAX_SDK", "2.19", "from 2.20 to 2.32", ConfigurationError),
        ("NEURONJAX_SDK", "new", "from 2.20 to 2.32", ConfigurationError),
        ("NEURON_RT_STOCHASTIC_ROUNDING_EN", "yes", "0 or 1", ConfigurationError),
        ("NEURON_RT_STOCHASTIC_ROUNDING_SEED", "-1", "below 2^32", ConfigurationError),
        ("NEURON_RT_NUMERICAL_ERRORS_VERBOSITY", "loud", "none, info or", ConfigurationError),
        ("NEURONJAX_LEGALITY", "on", "one of off, log, warn, strict", ConfigurationError),
        ("NEURON_PLATFORM_TARGET_OVERRIDE", "trn9", "one of trn1, inf2, ", ConfigurationError),
        ("NKI_PRECISE_FP", "yes", "0 or 1", ConfigurationError),
        ("NEURONJAX_LOG_LEVEL", "loud", "one of debug, info, warning, error", ConfigurationError),
        ("NEURONJAX_EMULATE", "yes", "0 or 1", ConfigurationError),
        ("NEURONJAX_NATIVE_STUBS", "yes", "0 or 1", ConfigurationError),
        ("NEURON_CC_FLAGS", "--dump='", "quoted as in a shell", ConfigurationError),
        ("NEURON_CC_FLAGS", "transformer", "begin with '-'", ConfigurationError),
        ("NEURON_CC_FLAGS", "--lnc=4", "1 or 2", ConfigurationError),
    ],
)
def test_refused_value_names_variable_value_and_what_is_allowed(
    variable: str, value: str, allowed: str, kind: type[NeuronError]
) -> None:
    with pytest.raises(kind) as caught:
        options.load({variable: value})
    message = str(caught.value)
    assert variable in message
    assert allowed in message
    assert (value if "lnc" not in value else "4") in message


def test_compiler_and_runtime_must_agree_on_the_logical_core() -> None:
    with pytest.raises(ConfigurationError, match=r"--lnc=2 .* NEURON_LOGICAL_NC_CONFIG is 1"):
        options.load({"NEURON_CC_FLAGS": "--lnc=2", "NEURON_LOGICAL_NC_CONFIG": "1"})


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"NEURON_TYPO": "1"}, "unknown variable NEURON_TYPO"),
        ({"NEURONJAX_TRAGET": "trn1.2xlarge"}, "unknown variable NEURONJAX_TRAGET"),
        ({"NEURON_CC_FLAGS": "--auto-cats=all"}, "unknown compiler flag '--auto-cats'"),
    ],
)
def test_what_is_unknown_warns_exactly_once(environ: dict[str, str], message: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            options.load(environ)
    assert [message in str(warning.message) for warning in caught] == [True]


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("target", "trn1.2xlarge", "trn1.2xlarge"),
        ("lnc", "2", 2),
        ("lnc", 2, 2),
        ("visible_cores", "0-2", (0, 1, 2)),
        ("visible_cores", (4, 0), (4, 0)),
        ("visible_cores", [4, 0], (4, 0)),
        ("num_cores", 3, 3),
        ("num_cores", "3", 3),
        ("legality", "warn", "warn"),
        ("native_stubs", False, False),
        ("native_stubs", "0", False),
        ("cc_flags", "--auto-cast=all", (("--auto-cast", "all"),)),
        ("cc_flags", (("--auto-cast", "all"), ("-O1", "")), (("--auto-cast", "all"), ("-O1", ""))),
    ],
)
def test_configure_takes_text_and_typed_values(field: str, value: Any, expected: Any) -> None:
    options.configure(**{field: value})
    assert getattr(options.load({}), field) == expected


def test_configure_wins_over_the_environment_until_it_is_taken_back() -> None:
    environ = {"NEURONJAX_TARGET": "inf2.xlarge"}
    options.configure(target="trn1.2xlarge")
    assert options.load(environ).target == "trn1.2xlarge"
    options.configure(target=None)
    assert options.load(environ).target == "inf2.xlarge"


def test_pinned_options_win_over_configure() -> None:
    options.pin(target="inf2.xlarge")
    options.configure(target="trn1.2xlarge", sdk="2.31")
    assert options.load({"NEURONJAX_TARGET": "trn2.48xlarge"}) == Options(
        target="inf2.xlarge", sdk="2.31"
    )
    with pytest.raises(ConfigurationError, match=r"pin\(legality=…\).* must be one of off"):
        options.pin(legality="on")


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"tarjet": "trn1.2xlarge"}, "unknown option 'tarjet'; choose one of .*target"),
        ({"lnc": 3}, "lnc=.* must be 1 or 2"),
        ({"num_cores": 0}, "num_cores.* at least 1"),
        ({"legality": "on"}, "one of off, log, warn, strict"),
        ({"visible_cores": "0,0"}, "core 0 occurs twice"),
        ({"visible_cores": (0, 0)}, "occurs twice"),
        ({"visible_cores": (0, -1)}, "visible_cores"),
    ],
)
def test_configure_refuses(switches: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        options.configure(**switches)
    assert options.load({}) == Options()


def test_configure_is_refused_while_the_platform_is_in_use() -> None:
    options.seal()
    options.seal()
    options.unseal()
    with pytest.raises(ConfigurationError, match="before the first JAX computation"):
        options.configure(target="trn1.2xlarge")
    options.unseal()
    options.configure(target="trn1.2xlarge")
    assert options.load({}).target == "trn1.2xlarge"


def test_each_of_several_processes_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "NEURONJAX_MONITOR_PORT": "9000",
        "NEURONJAX_PROFILE_TO": "/p",
        "NEURONJAX_DUMP_TO": "d/",
        "NEURONJAX_RECORD_TO": "r",
        "NEURONJAX_SDK": "2.20",
    }
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    assert options.environment("trn2.3xlarge").items() >= given.items()
    assert (
        options.environment("trn2.3xlarge", process=2).items()
        >= {
            "NEURONJAX_MONITOR_PORT": "9002",
            "NEURONJAX_PROFILE_TO": "/p/process-2",
            "NEURONJAX_DUMP_TO": "d/process-2",
            "NEURONJAX_RECORD_TO": "r/process-2",
            "NEURONJAX_SDK": "2.20",
            "NEURONJAX_TARGET": "trn2.3xlarge",
        }.items()
    )


def test_configure_before_and_after_the_start_of_the_platform(start_python: RunPython) -> None:
    done = start_python(
        """
        import neuronjax
        neuronjax.configure(target="trn1.2xlarge")
        import jax
        print(len(jax.devices()), jax.devices()[0].device_kind)
        try:
            neuronjax.configure(target="trn2.3xlarge")
        except ValueError as error:
            print(type(error).__name__, error)
        """,
        {"NEURON_LOGICAL_NC_CONFIG": None},
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "2 NC_v2"
    assert lines[1].startswith("ConfigurationError")
    assert "clear_backends()" in lines[1]


UNASKED = """
    import signal
    import jax
    own = signal.getsignal(signal.SIGINT)
    assert own is signal.default_int_handler
    print(jax.default_backend(), signal.getsignal(signal.SIGINT) is own)
    device = jax.devices("neuron")[0]
    print((jax.device_put(1.0, device) + 1).devices() == {device})
    print(signal.getsignal(signal.SIGINT) is own)
"""


def test_installed_but_not_asked_for(start_python: RunPython) -> None:
    """Other platforms keep their place and Python its Ctrl-C until neuron is used."""
    done = start_python(UNASKED, {"JAX_PLATFORMS": None})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["cpu", "True", "True", "False"]
