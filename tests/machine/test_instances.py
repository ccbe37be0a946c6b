"""Instances against the printed tables, names and logical-core rules."""

import pytest

from neuronjax.errors import LogicalCoreError, UnknownTargetError
from neuronjax.machine.instances import INSTANCES, find_instance
from neuronjax.options import DEFAULT_TARGET

# Columns of hw/inf1-arch, inf2-arch, trn1-arch, trn2-arch, trn3-arch:
# chips, vCPU, host GiB, device GiB, device memory bandwidth (as printed), network Gbit/s
PRINTED = {
    "inf1.xlarge": (1, 4, 8, 8, 50, 25),
    "inf1.2xlarge": (1, 8, 16, 8, 50, 25),
    "inf1.6xlarge": (4, 24, 48, 32, 200, 25),
    "inf1.24xlarge": (16, 96, 192, 128, 800, 100),
    "inf2.xlarge": (1, 4, 16, 32, 820, 15),
    "inf2.8xlarge": (1, 32, 128, 32, 820, 25),
    "inf2.24xlarge": (6, 96, 384, 192, 4920, 50),
    "inf2.48xlarge": (12, 192, 768, 384, 9840, 100),
    "trn1.2xlarge": (1, 8, 32, 32, 820, 25),
    "trn1.32xlarge": (16, 128, 512, 512, 13_120, 800),
    "trn1n.32xlarge": (16, 128, 512, 512, 13_120, 1600),
    "trn2.3xlarge": (1, 12, 128, 96, 2900, 200),
    "trn2.48xlarge": (16, 192, 2048, 1536, 46_400, 3200),
    "trn2u.48xlarge": (16, 192, 2048, 1536, 46_400, 3200),
    "trn2-ultraserver": (64, 768, 8192, 6144, 185_600, 4 * 3200),
    "trn3-gen1-ultraserver": (64, 768, 8192, 9216, 313_600, 12_800),
    "trn3-gen2-ultraserver": (144, 2304, 27_648, 20_736, 705_600, 28_800),
}


def test_every_instance_has_a_printed_row() -> None:
    assert set(INSTANCES) == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_row(name: str) -> None:
    instance = find_instance(name)
    # Inferentia1's figures are GiB/s, the others GB/s
    unit = 2**30 if name.startswith("inf1") else 10**9
    found = (
        instance.chips,
        instance.vcpus,
        instance.host_memory_bytes / 2**30,
        instance.hbm_bytes / 2**30,
        instance.hbm_bandwidth / unit,
        instance.network_bandwidth * 8 / 1e9,
    )
    assert found == PRINTED[name]


@pytest.mark.parametrize(
    ("name", "dtype", "petaflops"),
    [
        ("trn2.48xlarge", "float8_e4m3", 20.8),
        ("trn2.48xlarge", "bfloat16", 10.7),
        ("trn2.48xlarge", "sparse", 41.0),
        ("trn2.48xlarge", "float32", 2.9),
        ("trn3-gen1-ultraserver", "float8_e4m3fn_x4", 161.088),
        ("trn3-gen1-ultraserver", "bfloat16", 42.944),
        ("trn3-gen2-ultraserver", "float8_e4m3fn_x4", 362.448),
        ("trn3-gen2-ultraserver", "float32", 26.352),
    ],
)
def test_printed_totals(name: str, dtype: str, petaflops: float) -> None:
    instance = find_instance(name)
    total = instance.chips * instance.chip.published_tflops[dtype] / 1000
    assert total == pytest.approx(petaflops, abs=0.05 if name.startswith("trn2") else 1e-9)


def test_hosts() -> None:
    assert find_instance("trn2-ultraserver").chips_per_host == 16
    assert find_instance("trn3-gen1-ultraserver").chips_per_host == 16
    assert find_instance("trn3-gen2-ultraserver").hosts == 36


def test_names() -> None:
    assert find_instance("trn2u-ultraserver") is find_instance("trn2-ultraserver")
    assert find_instance(" TRN2.48xlarge ") is find_instance("trn2.48xlarge")
    assert find_instance(DEFAULT_TARGET).name == "trn2.3xlarge"


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("trn2.49xlarge", "trn2.48xlarge"),
        ("trn1", "trn1.2xlarge or trn1.32xlarge"),
        ("trn3", "trn3-gen1-ultraserver or trn3-gen2-ultraserver"),
        ("inf2.48xl", "inf2.48xlarge"),
        ("trn2-ultra-server", "trn2-ultraserver"),
    ],
)
def test_an_unknown_name_is_answered_with_close_ones(name: str, suggestion: str) -> None:
    with pytest.raises(UnknownTargetError) as caught:
        find_instance(name)
    message = str(caught.value)
    assert message.startswith(f"Target {name!r} ")
    assert "NEURONJAX_TARGET" in message
    assert suggestion in message.split("Allowed:")[0]
    assert all(known in message.split("Allowed:")[1] for known in INSTANCES)


def test_a_name_like_nothing_lists_what_exists() -> None:
    for name in ("", "p5.48xlarge-gpu"):
        with pytest.raises(UnknownTargetError, match=r"Allowed: inf1\.xlarge"):
            find_instance(name)


@pytest.mark.parametrize("name", PRINTED)
def test_logical_core_configuration(name: str) -> None:
    instance = find_instance(name)
    has_two = name.startswith(("trn2", "trn3"))
    assert instance.resolve_lnc(None) == (2 if has_two else 1)
    assert instance.resolve_lnc(1) == 1
    for lnc in (0, -1, 3, 4) if has_two else (0, 2, 4):
        with pytest.raises(LogicalCoreError) as caught:
            instance.resolve_lnc(lnc)
        message = str(caught.value)
        assert "EARG001" in message
        assert f"NEURON_LOGICAL_NC_CONFIG={lnc} " in message
        assert name in message
        assert f"allowed: {'1 or 2' if has_two else '1'}." in message
