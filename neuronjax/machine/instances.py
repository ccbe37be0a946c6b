"""Every instance and UltraServer as a record, and the table of them by name.

Sources are named as in `chips.py`; "product" is the public product page
aws.amazon.com/ec2/instance-types/<family>, used where the SDK documentation is silent. No page says
how a chip's NeuronLink bandwidth splits over its links or whether it counts both directions: the
bandwidth of one link here is the chip's figure divided by its links (derived).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from neuronjax.errors import LogicalCoreError, UnknownTargetError, did_you_mean, quoted
from neuronjax.machine.chips import INFERENTIA1, INFERENTIA2, TRAINIUM1, TRAINIUM2, TRAINIUM3
from neuronjax.machine.specs import GIB, GIGA, ChipSpec
from neuronjax.machine.topology import Axis, Topology, Wiring


@dataclass(frozen=True, kw_only=True)
class InstanceSpec:
    """A possible target: an instance, or an UltraServer of several hosts.

    Totals are over all hosts. Bandwidths are bytes/s.
    """

    name: str
    aliases: tuple[str, ...] = ()
    chip: ChipSpec
    topology: Topology
    #: Instances (or servers) with an operating system of their own.
    hosts: int = 1
    vcpus: int
    host_memory_bytes: int
    #: Network bandwidth of all hosts; "up to" on the smallest sizes.
    network_bandwidth: int
    #: NeuronLink per chip inside the instance and between instances, as printed; 0 without links.
    neuronlink_bandwidth: int = 0
    host_to_host_neuronlink_bandwidth: int = 0

    def __post_init__(self) -> None:
        for total in (self.chips, self.vcpus, self.host_memory_bytes):
            if total % self.hosts:
                raise ValueError(f"{self.name}: {total} does not divide over {self.hosts} hosts")

    @property
    def chips(self) -> int:
        """Number of chips."""
        return self.topology.chips

    @property
    def chips_per_host(self) -> int:
        """Number of chips that one host sees."""
        return self.chips // self.hosts

    @property
    def hbm_bytes(self) -> int:
        """Device memory of all chips."""
        return self.chips * self.chip.hbm.capacity_bytes

    @property
    def hbm_bandwidth(self) -> int:
        """Device memory bandwidth of all chips."""
        return self.chips * self.chip.hbm.bandwidth

    def logical_cores(self, lnc: int) -> int:
        """Logical cores of all chips at configuration `lnc`, which must be allowed."""
        return self.chips * self.chip.logical_cores(lnc)

    def resolve_lnc(self, lnc: int | None) -> int:
        """The logical-core configuration to use: `lnc`, or the chip's default for None.

        LogicalCoreError: the chip does not support it (compiler error EARG001).
        """
        if lnc is None:
            return self.chip.default_lnc
        if type(lnc) is not int or lnc not in self.chip.allowed_lncs:
            allowed = " or ".join(map(str, self.chip.allowed_lncs))
            raise LogicalCoreError(
                f"[NCC_EARG001] NEURON_LOGICAL_NC_CONFIG={quoted(lnc)} is not supported by "
                f"{self.name} ({self.chip.name}, {self.chip.core.name}); allowed: {allowed}. Unset "
                f"it to use the default {self.chip.default_lnc}; 2 exists on Trn2 and Trn3 targets "
                "only."
            )
        return lnc


def _gbps(gigabits: int) -> int:
    """Gigabits per second in bytes per second."""
    return gigabits * GIGA // 8


_ONE_CHIP = Topology((Axis("chip", 1, Wiring.LINE, 0),))


def _line(chips: int, link_bandwidth: int, steps: tuple[int, int] = (-1, 1)) -> Topology:
    return Topology((Axis("chip", chips, Wiring.LINE, link_bandwidth),), steps)


def _ring(chips: int, link_bandwidth: int) -> Topology:
    return Topology((Axis("chip", chips, Wiring.RING, link_bandwidth),))


def _torus_axes(link_bandwidth: int) -> tuple[Axis, Axis]:
    # tools/neuron-sys-tools/neuron-ls.rst prints the links of trn1.32xlarge and trn2.48xlarge.
    return (
        Axis("row", 4, Wiring.RING, link_bandwidth),
        Axis("column", 4, Wiring.RING, link_bandwidth),
    )


# hw/inf1-arch for sizes. Links: older editions of tools/neuron-sys-tools/neuron-ls.rst print a
# line for inf1.6xlarge, the next chip before the previous one; inf1.24xlarge is printed nowhere and
# taken to be a line too, the least that NeuronCore Pipeline needs. 32 GiB/s per chip, two links.
_INF1 = (
    InstanceSpec(
        name="inf1.xlarge",
        chip=INFERENTIA1,
        topology=_ONE_CHIP,
        vcpus=4,
        host_memory_bytes=8 * GIB,
        network_bandwidth=_gbps(25),
    ),
    InstanceSpec(
        name="inf1.2xlarge",
        chip=INFERENTIA1,
        topology=_ONE_CHIP,
        vcpus=8,
        host_memory_bytes=16 * GIB,
        network_bandwidth=_gbps(25),
    ),
    InstanceSpec(
        name="inf1.6xlarge",
        chip=INFERENTIA1,
        topology=_line(4, 16 * GIB, steps=(1, -1)),
        vcpus=24,
        host_memory_bytes=48 * GIB,
        network_bandwidth=_gbps(25),
        neuronlink_bandwidth=32 * GIB,
    ),
    InstanceSpec(
        name="inf1.24xlarge",
        chip=INFERENTIA1,
        topology=_line(16, 16 * GIB, steps=(1, -1)),
        vcpus=96,
        host_memory_bytes=192 * GIB,
        network_bandwidth=_gbps(100),
        neuronlink_bandwidth=32 * GIB,
    ),
)

# hw/inf2-arch for sizes; network: product (inf2). Links: the ring of twelve in hw/inf2-arch and
# neuron-runtime/explore/runtime-performance-tips.rst; the public kernel driver
# (aws-neuron/aws-neuron-driver, v2/neuron_dhal_v2.c) lists the chips of inf2.24xlarge as a line.
_INF2 = (
    InstanceSpec(
        name="inf2.xlarge",
        chip=INFERENTIA2,
        topology=_ONE_CHIP,
        vcpus=4,
        host_memory_bytes=16 * GIB,
        network_bandwidth=_gbps(15),
    ),
    InstanceSpec(
        name="inf2.8xlarge",
        chip=INFERENTIA2,
        topology=_ONE_CHIP,
        vcpus=32,
        host_memory_bytes=128 * GIB,
        network_bandwidth=_gbps(25),
    ),
    InstanceSpec(
        name="inf2.24xlarge",
        chip=INFERENTIA2,
        topology=_line(6, 96 * GIGA),
        vcpus=96,
        host_memory_bytes=384 * GIB,
        network_bandwidth=_gbps(50),
        neuronlink_bandwidth=192 * GIGA,  # printed as GiB/s, see Inferentia2
    ),
    InstanceSpec(
        name="inf2.48xlarge",
        chip=INFERENTIA2,
        topology=_ring(12, 96 * GIGA),
        vcpus=192,
        host_memory_bytes=768 * GIB,
        network_bandwidth=_gbps(100),
        neuronlink_bandwidth=192 * GIGA,
    ),
)

# hw/trn1-arch. Its table has ten values under nine headings: 384 and 768 are read as NeuronLink
# GB/s per chip, 800 and 1600 as EFA Gbit/s.
_TRN1 = (
    InstanceSpec(
        name="trn1.2xlarge",
        chip=TRAINIUM1,
        topology=_ONE_CHIP,
        vcpus=8,
        host_memory_bytes=32 * GIB,
        network_bandwidth=_gbps(25),
    ),
    InstanceSpec(
        name="trn1.32xlarge",
        chip=TRAINIUM1,
        topology=Topology(_torus_axes(96 * GIGA)),
        vcpus=128,
        host_memory_bytes=512 * GIB,
        network_bandwidth=_gbps(800),
        neuronlink_bandwidth=384 * GIGA,
    ),
    InstanceSpec(
        name="trn1n.32xlarge",
        chip=TRAINIUM1,
        topology=Topology(_torus_axes(192 * GIGA)),
        vcpus=128,
        host_memory_bytes=512 * GIB,
        network_bandwidth=_gbps(1600),
        neuronlink_bandwidth=768 * GIGA,
    ),
)

_TRN2_TORUS = _torus_axes(256 * GIGA)  # hw/trn2-arch: 1024 GB/s per chip
_TRN2_Z = Axis(
    "z", 4, Wiring.RING, 128 * GIGA, between_hosts=True
)  # hw/trn2-arch: 256 GB/s per chip

_TRN2 = (
    InstanceSpec(
        name="trn2.3xlarge",
        chip=TRAINIUM2,
        topology=_ONE_CHIP,
        # product (trn2); a sixteenth of trn2.48xlarge
        vcpus=12,
        host_memory_bytes=128 * GIB,
        network_bandwidth=_gbps(200),
    ),
    *(
        InstanceSpec(
            name=name,
            chip=TRAINIUM2,
            topology=Topology(_TRN2_TORUS),
            # hw/trn2-arch, one column for both
            vcpus=192,
            host_memory_bytes=2048 * GIB,
            network_bandwidth=_gbps(3200),
            neuronlink_bandwidth=1024 * GIGA,
        )
        for name in ("trn2.48xlarge", "trn2u.48xlarge")
    ),
    InstanceSpec(
        name="trn2-ultraserver",
        aliases=("trn2u-ultraserver",),
        chip=TRAINIUM2,
        # hw/trn2-arch: chips at the same place in the four instances form a ring
        topology=Topology((_TRN2_Z, *_TRN2_TORUS)),
        hosts=4,
        vcpus=768,
        host_memory_bytes=8192 * GIB,
        network_bandwidth=4 * _gbps(3200),  # hw/trn2-arch: 3200 Gbit/s for each instance
        neuronlink_bandwidth=1024 * GIGA,
        host_to_host_neuronlink_bandwidth=256 * GIGA,
    ),
)


def _trn3_fabric(racks: int, servers: int) -> Topology:
    """Chips addressed as (rack, server, chip), hw/trn3-arch.

    The levels print 256, 320 and 128 GB/s per chip, 704 together, against 2,048 GiB/s per device on
    the same page and 2.56 TB/s on the chip's. The levels are used: they alone say which path has
    what.
    """
    return Topology(
        (
            Axis("rack", racks, Wiring.LINE, 128 * GIGA, between_hosts=True),
            Axis("server", servers, Wiring.SWITCH, 320 * GIGA),
            Axis("chip", 4, Wiring.SWITCH, 256 * GIGA),
        )
    )


# hw/trn3-arch. Gen1 is "four servers × 16 devices" in the text and "servers of 4 chips" in the
# networking section: here four hosts, each with four switched groups of four, in one rack. Gen2 is
# 36 servers of 4; that direct links join chips of equal position across racks makes it two racks of
# 18 (derived).
_TRN3 = (
    InstanceSpec(
        name="trn3-gen1-ultraserver",
        chip=TRAINIUM3,
        topology=_trn3_fabric(racks=1, servers=16),
        hosts=4,
        vcpus=768,
        host_memory_bytes=8192 * GIB,
        network_bandwidth=_gbps(12_800),
        neuronlink_bandwidth=2048 * GIB,
    ),
    InstanceSpec(
        name="trn3-gen2-ultraserver",
        chip=TRAINIUM3,
        topology=_trn3_fabric(racks=2, servers=18),
        hosts=36,
        vcpus=2304,
        host_memory_bytes=27_648 * GIB,
        network_bandwidth=_gbps(28_800),
        neuronlink_bandwidth=2048 * GIB,
    ),
)

INSTANCES: Mapping[str, InstanceSpec] = {
    instance.name: instance for instance in (*_INF1, *_INF2, *_TRN1, *_TRN2, *_TRN3)
}

_BY_ANY_NAME: Mapping[str, InstanceSpec] = {
    name: instance for instance in INSTANCES.values() for name in (instance.name, *instance.aliases)
}


def find_instance(name: str) -> InstanceSpec:
    """The instance or UltraServer called `name`, regardless of case.

    UnknownTargetError: there is none; the message suggests close names.
    """
    wanted = name.strip().lower() if isinstance(name, str) else ""
    instance = _BY_ANY_NAME.get(wanted)
    if instance is None:
        family = [known for known in INSTANCES if wanted and known.startswith(wanted)]
        hint = f" Did you mean {' or '.join(family)}?" if family else ""
        hint = hint or did_you_mean(wanted, _BY_ANY_NAME, most=3)
        raise UnknownTargetError(
            f"Target {quoted(name)} is not a known instance or UltraServer (NEURONJAX_TARGET, or "
            f"--target of a command).{hint} Allowed: {', '.join(INSTANCES)}."
        )
    return instance
