"""Copies that nobody reads go; all others stay."""

from __future__ import annotations

import pytest

from neuronjax.lower.join.unread import without_unread
from neuronjax.program.dma import DmaCopy
from neuronjax.program.text import parse
from neuronjax.program.verify import verify
from neuronjax.program.walk import instructions

PROGRAM = """program "p" target trainium2 lnc 1 {{
  hbm %x : float32[128, 8] argument
  hbm %y : float32[128, 8] result
  hbm %h : float32[128, 8]{kind}
  hbm %g : float32[128, 8]
{alias}  function @twice(hbm %a : {type}, hbm %b : {type}, hbm %c : {type}) {{
    kernel "twice" {{
      sbuf %t : float32[128, 8]
      dma_copy dst=%t<0, 128>[0; 1:8] src=%a[0; 8:128, 1:8]
      dma_copy dst=%b[0; 8:128, 1:8] src=%t<0, 128>[0; 1:8]
      dma_copy dst=%c[0; 8:128, 1:8] src=%t<0, 128>[0; 1:8]
    }}
  }}
  call @twice(%x, %{first}, %h)
  call @twice(%x, %g, %{second})
{reader}}}
"""
READER = """  kernel "reader" {
    sbuf %u : float32[128, 8]
    dma_copy dst=%u<0, 128>[0; 1:8] src=%h[0; 8:128, 1:8]
    dma_copy dst=%y[0; 8:128, 1:8] src=%u<0, 128>[0; 1:8]
  }
"""


@pytest.mark.parametrize(
    ("given", "copies"),
    [
        ({}, 2),
        ({"second": "h", "first": "g"}, 1),
        ({"reader": READER}, 5),
        ({"reader": READER, "first": "g"}, 4),
        ({"kind": " result"}, 3),
        ({"alias": "  alias %h = %x\n"}, 3),
    ],
    ids=["unread", "no result", "read", "one read", "a result", "shares memory"],
)
def test_copies_that_nobody_reads_go(given: dict[str, str], copies: int) -> None:
    text = {
        "type": "float32[128, 8]",
        "kind": "",
        "alias": "",
        "first": "y",
        "second": "h",
        "reader": "",
        **given,
    }
    program = parse(PROGRAM.format(**text))
    found = without_unread(program)
    assert sum(isinstance(each, DmaCopy) for _, each in instructions(found)) == copies
    assert [str(finding) for finding in verify(found)] == [str(each) for each in verify(program)]
    assert without_unread(found) == found
