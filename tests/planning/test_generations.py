"""Ratios of generations: the published one and the records' agree, or the table says why not."""

from __future__ import annotations

import pytest

from tests.planning.generations import CLAIMS, Claim

CLOSE = 0.2
"""Claims are rounded."""


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.newer}, {claim.what}")
def test_what_differs_is_explained(claim: Claim) -> None:
    agrees = claim.predicted is not None and abs(claim.predicted / claim.claimed - 1) <= CLOSE
    assert agrees or claim.difference
    if claim.predicted is not None:
        assert claim.predicted > 1
