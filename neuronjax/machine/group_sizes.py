"""How many cores a collective may join: a table by chip and logical-core configuration."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupSizes:
    """The supported numbers of cores: `sizes`, and every multiple of `multiple` if there is one."""

    sizes: tuple[int, ...]
    multiple: int | None
    source: str

    def allows(self, size: int) -> bool:
        """Whether `size` cores may form a group."""
        return size in self.sizes or (self.multiple is not None and size % self.multiple == 0)

    def nearest(self, size: int) -> tuple[int, ...]:
        """The supported sizes next below and next above `size`, where they exist."""
        known = set(self.sizes)
        if self.multiple is not None:
            whole = size // self.multiple * self.multiple
            known |= {whole, whole + self.multiple}
        below = max((candidate for candidate in known if 0 < candidate <= size), default=None)
        above = min((candidate for candidate in known if candidate > size), default=None)
        return tuple(candidate for candidate in (below, above) if candidate is not None)

    def __str__(self) -> str:
        multiples = [] if self.multiple is None else [f"a multiple of {self.multiple}"]
        listed = [", ".join(map(str, self.sizes))] if self.sizes else []
        return " or ".join(listed + multiples)


_FEATURE_GUIDE = "libraries/nxd-inference/developer_guides/feature-guide.rst"
_RUNTIME_MESSAGE = 'runtime: "Supported number of Neuron Cores is 1, 2, 8, 16 or a multiple of 32"'

# Inferentia1 has no collectives: its cores form pipelines, of any length.
_ANY = GroupSizes((), 1, "about-neuron/arch/neuron-features/neuroncore-pipeline.rst")

# 12 stands in about-neuron/transformers/generative-llm-inference-with-neuron.rst only; it is all of
# inf2.24xlarge.
_INFERENTIA2 = GroupSizes((1, 2, 4, 8, 12, 24), None, _FEATURE_GUIDE)

# 4 adjacent cores since release 2.21.
_TRAINIUM1 = GroupSizes((1, 2, 4, 8, 16), 32, f"{_FEATURE_GUIDE}; {_RUNTIME_MESSAGE}")

# Printed for LNC 2 up to 64; taken for LNC 1 and Trainium3 too, where nothing is printed.
_TRAINIUM2 = GroupSizes((1, 2, 4, 8, 16), 32, f"{_FEATURE_GUIDE}; {_RUNTIME_MESSAGE}")

GROUP_SIZES: Mapping[tuple[str, int], GroupSizes] = {
    ("inferentia1", 1): _ANY,
    ("inferentia2", 1): _INFERENTIA2,
    ("trainium1", 1): _TRAINIUM1,
    ("trainium2", 1): _TRAINIUM2,
    ("trainium2", 2): _TRAINIUM2,
    ("trainium3", 1): _TRAINIUM2,
    ("trainium3", 2): _TRAINIUM2,
}
