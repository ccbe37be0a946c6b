"""What people look at in a notebook: a line at the prompt, tables in a cell."""

from __future__ import annotations

import html
import re

import jax
import jax.numpy as jnp
import pytest

import neuronjax
from neuronjax.display import Displayed


def estimated() -> Displayed:
    return neuronjax.estimate(lambda x: x @ x, jax.ShapeDtypeStruct((64, 64), jnp.bfloat16))


def compared() -> Displayed:
    return neuronjax.compare(lambda x: jnp.exp(x) @ x, jnp.ones((8, 8), jnp.bfloat16))


def reported() -> Displayed | None:
    return neuronjax.nan_report(lambda x: jnp.log(x), jnp.array([-1.0]))


def recorded() -> Displayed:
    x = jax.device_put(jnp.ones((8, 8)), jax.devices("neuron")[0])
    with neuronjax.profile() as recording:
        jax.jit(jnp.sin)(x)
    return recording


SIGNS = {"|", "error"}
"""What groups the columns of a comparison where it is text."""


@pytest.mark.parametrize("made", [estimated, compared, reported, recorded])
def test_results_are_a_line_and_a_page(made: object) -> None:
    assert callable(made)
    result = made()
    assert isinstance(result, Displayed)
    line, page = repr(result), result._repr_html_()
    assert re.fullmatch(r"<[A-Z]\w+: [^\n]{5,150}>", line)
    assert str(result).strip().splitlines()[0] in line
    if made is recorded:
        assert page.startswith("<iframe srcdoc=")
        assert "Where the time goes" in html.unescape(page)
    else:
        assert page.count("<table") == page.count("</table>") > 0
        assert ("<svg" in page) == (made is estimated)
        text = html.unescape(re.sub(r"<[^>]*>", " ", page.partition("<svg")[0]))
        assert set(str(result).split()) - set(text.split()) <= SIGNS


def test_completion_has_the_public_names_alone() -> None:
    assert dir(neuronjax) == sorted(neuronjax.__all__)
