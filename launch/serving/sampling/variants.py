"""Programs that choose tokens: each does what the one before does, and more.

What a request does not use changes nothing in it, so that its tokens do not depend on which variant
its neighbours in the batch need.
"""

from typing import NamedTuple

from launch.serving.requests import Request


class Variant(NamedTuple):
    """What one program can do besides taking the likeliest token."""

    name: str
    draws: bool  # temperature, min-p
    full: bool  # top-k, top-p, penalties, bias, logprobs
    masks: bool  # tokens that a grammar forbids


VARIANTS = (
    Variant("greedy", draws=False, full=False, masks=False),
    Variant("sampled", draws=True, full=False, masks=False),
    Variant("full", draws=True, full=True, masks=False),
    Variant("masked", draws=True, full=True, masks=True),
)


PLAIN = (0, 1)  # what most requests need
SAMPLED = VARIANTS[1]
STATELESS = 3
"""The first so many may serve requests whose tokens depend on the model alone."""


def variant_of(request: Request) -> int:
    """The index in VARIANTS of the least program that does what a request needs."""
    sampling = request.sampling
    if request.grammar is not None:
        return 3
    if sampling.is_truncated or sampling.changes_logits or sampling.logprobs is not None:
        return 2
    return 0 if sampling.is_greedy else 1
