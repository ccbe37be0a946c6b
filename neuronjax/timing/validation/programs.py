# ruff: noqa: E501 - an instruction is a line
"""The kernels that were measured, as programs in the text form.

Sizes that a source does not give are said beside the program.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from types import MappingProxyType

from neuronjax.program.program import Program
from neuronjax.program.text import parse

MATMUL = """
program "matmul" target trainium2 lnc 1 {
  hbm %a : float32[8192, 4096] argument
  hbm %b : float32[8192, 8192] argument
  hbm %c : float32[4096, 8192] result
  kernel "matmul" {
    semaphore !loaded
    semaphore !multiplied
    semaphore !added
    semaphore !packed
    semaphore !stored
    sbuf %at : float32[128, 1024] slots 16
    sbuf %bt : float32[128, 1024] slots 16
    sbuf %sum : float32[128, 512] slots 32
    sbuf %out : float32[128, 1024] slots 2
    psum %part : float32[128, 512] slots 4
    loop m in 4 {
      loop n in 8 {
        loop t in 16 {
          memset dst=%sum{128*m + 16*n + t}<0, 128>[0; 1:512] value=#0.0
        }
        loop k in 8 {
          loop i in 8 {
            dma_copy dst=%at{8*k + i}<0, 128>[0; 1:1024] src=%a[4194304*k + 524288*i + 1024*m; 4096:128, 1:1024] waits=(!multiplied >= 8192*m + 1024*n + 128*k + -128) signals=(!loaded += 16)
            dma_copy queue=1 dst=%bt{8*k + i}<0, 128>[0; 1:1024] src=%b[8388608*k + 1048576*i + 1024*n; 8192:128, 1:1024] signals=(!loaded += 16)
          }
          loop bm in 8 {
            loop bn in 2 {
              loop i in 8 {
                nc_matmul dst=%part{2*bm + bn}<0, 128>[0; 1:512] stationary=%at{8*k + i}<0, 128>[128*bm; 1:128] moving=%bt{8*k + i}<0, 128>[512*bn; 1:512] start=first(i) stop=last(i) waits=(!loaded >= 16384*m + 2048*n + 256*k + 256, !added >= 1024*m + 128*n + 16*k + 2*bm + bn + -3) signals=(!multiplied += 1)
              }
              tensor_tensor dst=%sum{128*m + 16*n + 2*bm + bn}<0, 128>[0; 1:512] data1=%sum{128*m + 16*n + 2*bm + bn}<0, 128>[0; 1:512] data2=%part{2*bm + bn}<0, 128>[0; 1:512] op=add waits=(!multiplied >= 8192*m + 1024*n + 128*k + 16*bm + 8*bn + 8) signals=(!added += 1)
            }
          }
        }
        loop bm in 8 {
          loop bn in 2 {
            tensor_copy dst=%out{bm}<0, 128>[512*bn; 1:512] src=%sum{128*m + 16*n + 2*bm + bn}<0, 128>[0; 1:512] waits=(!stored >= 1024*m + 128*n + 16*bm + -16) signals=(!packed += 1)
          }
          dma_copy queue=2 dst=%c[8388608*m + 1048576*bm + 1024*n; 8192:128, 1:1024] src=%out{bm}<0, 128>[0; 1:1024] engine=scalar waits=(!packed >= 128*m + 16*n + 2*bm + 2) signals=(!stored += 16)
        }
      }
    }
  }
}
"""
"""K1, FP32 M 4096, K 8192, N 8192. Block sizes are not published: 1024 in each dimension, square
blocks whose double buffers fit into SBUF."""

EXP = """
program "exp" target trainium1 lnc 1 {
  hbm %x : float32[128, 512] argument
  hbm %y : float32[128, 512] result
  kernel "exp" {
    semaphore !loaded
    semaphore !raised
    sbuf %tile : float32[128, 512]
    dma_copy dst=%tile<0, 128>[0; 1:512] src=%x[0; 512:128, 1:512] signals=(!loaded += 16)
    activation dst=%tile<0, 128>[0; 1:512] op=exp data=%tile<0, 128>[0; 1:512] waits=(!loaded >= 16) signals=(!raised += 1)
    dma_copy dst=%y[0; 512:128, 1:512] src=%tile<0, 128>[0; 1:512] waits=(!raised >= 1)
  }
}
"""
"""K10. The shape is not published."""

ROUND_TRIP = """
program "round_trip" target trainium2 lnc 1 {
  hbm %x : bfloat16[128, 128] argument
  hbm %y : bfloat16[128, 128] result
  kernel "round_trip" {
    semaphore !loaded
    semaphore !copied
    sbuf %tile : bfloat16[128, 128]
    dma_copy dst=%tile<0, 128>[0; 1:128] src=%x[0; 128:128, 1:128] descriptors=swdge engine=gpsimd signals=(!loaded += 16)
    activation dst=%tile<0, 128>[0; 1:128] op=copy data=%tile<0, 128>[0; 1:128] waits=(!loaded >= 16) signals=(!copied += 1)
    dma_copy dst=%y[0; 128:128, 1:128] src=%tile<0, 128>[0; 1:128] descriptors=swdge engine=gpsimd waits=(!copied >= 1)
  }
}
"""
"""K13."""

MAMBA = """
program "mamba" target trainium1 lnc 1 {
  hbm %delta : float32[256, 512] argument
  hbm %u : float32[256, 512] argument
  hbm %a : float32[256, 16] argument
  hbm %b : float32[16, 512] argument
  hbm %c : float32[16, 512] argument
  hbm %y : float32[256, 512] result
  kernel "mamba" {
    semaphore !loaded
    semaphore !freed
    semaphore !raised
    sbuf %delta_t : float32[128, 512] slots 4
    sbuf %u_t : float32[128, 512] slots 4
    sbuf %a_t : float32[128, 1] slots 4
    sbuf %b_t : float32[128, 512] slots 4
    sbuf %c_t : float32[128, 512] slots 4
    sbuf %decay : float32[128, 512] slots 4
    sbuf %gain : float32[128, 512] slots 2
    sbuf %state : float32[128, 512] slots 2
    sbuf %sum : float32[128, 512] slots 2
    loop t in 2 {
      memset dst=%sum{t}<0, 128>[0; 1:512] value=#0.0
    }
    loop s in 16 {
      loop t in 2 {
        dma_copy dst=%delta_t{2*s + t}<0, 128>[0; 1:512] src=%delta[65536*t; 512:128, 1:512] waits=(!freed >= 2*s + t + -3) signals=(!loaded += 16)
        dma_copy queue=1 dst=%a_t{2*s + t}<0, 128>[0; 1:1] src=%a[2048*t + s; 16:128, 1:1] signals=(!loaded += 16)
        dma_copy queue=2 dst=%u_t{2*s + t}<0, 128>[0; 1:512] src=%u[65536*t; 512:128, 1:512] signals=(!loaded += 16)
        dma_copy queue=3 dst=%b_t{2*s + t}<0, 128>[0; 1:512] src=%b[512*s; 0:128, 1:512] signals=(!loaded += 16)
        dma_copy queue=4 dst=%c_t{2*s + t}<0, 128>[0; 1:512] src=%c[512*s; 0:128, 1:512] signals=(!loaded += 16)
        activation dst=%decay{2*s + t}<0, 128>[0; 1:512] op=exp data=%delta_t{2*s + t}<0, 128>[0; 1:512] scale=%a_t{2*s + t}<0, 128>[0; 1:1] waits=(!loaded >= 160*s + 80*t + 80) signals=(!raised += 1)
        tensor_tensor dst=%gain{t}<0, 128>[0; 1:512] data1=%delta_t{2*s + t}<0, 128>[0; 1:512] data2=%u_t{2*s + t}<0, 128>[0; 1:512] op=multiply waits=(!loaded >= 160*s + 80*t + 80)
        tensor_tensor dst=%gain{t}<0, 128>[0; 1:512] data1=%gain{t}<0, 128>[0; 1:512] data2=%b_t{2*s + t}<0, 128>[0; 1:512] op=multiply
        tensor_tensor_scan dst=%state{t}<0, 128>[0; 1:512] data0=%decay{2*s + t}<0, 128>[0; 1:512] data1=%gain{t}<0, 128>[0; 1:512] initial=#0.0 op0=multiply op1=add waits=(!raised >= 2*s + t + 1)
        tensor_tensor dst=%state{t}<0, 128>[0; 1:512] data1=%state{t}<0, 128>[0; 1:512] data2=%c_t{2*s + t}<0, 128>[0; 1:512] op=multiply
        tensor_tensor dst=%sum{t}<0, 128>[0; 1:512] data1=%sum{t}<0, 128>[0; 1:512] data2=%state{t}<0, 128>[0; 1:512] op=add signals=(!freed += 1)
      }
    }
    loop t in 2 {
      dma_copy queue=5 dst=%y[65536*t; 512:128, 1:512] src=%sum{t}<0, 128>[0; 1:512] waits=(!freed >= t + 31)
    }
  }
}
"""
"""K14: batch 1, sequence 512, 256 channels, state 16."""

ATTENTION = """
program "attention" target trainium1 lnc 1 {{
  hbm %q : {dtype}[128, 4096] argument
  hbm %k : {dtype}[128, 4096] argument
  hbm %v : {dtype}[4096, 128] argument
  hbm %o : {dtype}[4096, 128] result
  kernel "attention" {{
    semaphore !loaded
    semaphore !scored
    semaphore !maximal
    semaphore !negated
    semaphore !raised
    semaphore !turned
    semaphore !evicted
    semaphore !applied
    semaphore !scaled
    semaphore !stored
    sbuf %qt : {dtype}[128, 4096]
    sbuf %kt : {dtype}[128, 4096]
    sbuf %vt : {dtype}[128, 128] slots 32
    sbuf %score : float32[128, 4096] slots 2
    sbuf %top : float32[128, 8] slots 2
    sbuf %most : float32[128, 1] slots 2
    sbuf %power : {dtype}[128, 4096] slots 2
    sbuf %sum : float32[128, 1] slots 2
    sbuf %pt : {dtype}[128, 512] slots 4
    sbuf %out : {dtype}[128, 128] slots 2
    psum %qk : float32[128, 512] slots 4
    psum %tp : {transposed}[128, 512] slots 2
    psum %acc : float32[128, 128] slots 2
    dma_copy dst=%qt<0, 128>[0; 1:4096] src=%q[0; 4096:128, 1:4096] signals=(!loaded += 16)
    dma_copy queue=1 dst=%kt<0, 128>[0; 1:4096] src=%k[0; 4096:128, 1:4096] signals=(!loaded += 16)
    loop j in 32 {{
      dma_copy queue=2 dst=%vt{{j}}<0, 128>[0; 1:128] src=%v[16384*j; 128:128, 1:128] signals=(!loaded += 16)
    }}
    loop j in 8 {{
      nc_matmul dst=%qk{{j}}<0, 128>[0; 1:512] stationary=%qt<0, 128>[0; 1:128] moving=%kt<0, 128>[512*j; 1:512] waits=(!loaded >= 32, !maximal >= j + -3) signals=(!scored += 1)
      tensor_scalar dst=%score<0, 128>[512*j; 1:512] data=%qk{{j}}<0, 128>[0; 1:512] op0=multiply operand0=#0.088 waits=(!scored >= j + 1)
      tensor_reduce dst=%top<0, 128>[j; 1:1] op=maximum data=%score<0, 128>[512*j; 1:512] signals=(!maximal += 1)
    }}
    loop i in 31 {{
      tensor_reduce dst=%most{{i}}<0, 128>[0; 1:1] op=maximum data=%top{{i}}<0, 128>[0; 1:8] negate=true waits=(!raised >= i + -1) signals=(!negated += 1)
      activation_reduce dst=%power{{i}}<0, 128>[0; 1:4096] op=exp data=%score{{i}}<0, 128>[0; 1:4096] reduce_res=%sum{{i}}<0, 128>[0; 1:1] bias=%most{{i}}<0, 128>[0; 1:1] waits=(!negated >= i + 1, !applied >= 32*i + -32) signals=(!raised += 1)
      loop j in 8 {{
        nc_matmul dst=%qk{{j}}<0, 128>[0; 1:512] stationary=%qt<0, 128>[128*i + 128; 1:128] moving=%kt<0, 128>[512*j; 1:512] waits=(!maximal >= 8*i + j + 5) signals=(!scored += 1)
        tensor_scalar dst=%score{{i + 1}}<0, 128>[512*j; 1:512] data=%qk{{j}}<0, 128>[0; 1:512] op0=multiply operand0=#0.088 waits=(!scored >= 8*i + j + 9, !raised >= i)
        tensor_reduce dst=%top{{i + 1}}<0, 128>[j; 1:1] op=maximum data=%score{{i + 1}}<0, 128>[512*j; 1:512] signals=(!maximal += 1)
      }}
{tail}
    }}
    tensor_reduce dst=%most{{1}}<0, 128>[0; 1:1] op=maximum data=%top{{1}}<0, 128>[0; 1:8] negate=true signals=(!negated += 1)
    activation_reduce dst=%power{{1}}<0, 128>[0; 1:4096] op=exp data=%score{{1}}<0, 128>[0; 1:4096] reduce_res=%sum{{1}}<0, 128>[0; 1:1] bias=%most{{1}}<0, 128>[0; 1:1] waits=(!negated >= 32, !applied >= 960) signals=(!raised += 1)
{last}
  }}
}}
"""
_TAIL = """
      loop j in 4 {
        nc_matmul dst=%tp{0}<0, 128>[128*j; 1:128] stationary=%power{I}<0, 128>[128*j; 1:128] moving=%kt<0, 128>[0; 1:128] waits=(!raised >= I + 1, !evicted >= 8*I + -1) signals=(!turned += 1)
      }
      loop g in 7 {
        activation dst=%pt{g}<0, 128>[0; 1:512] op=copy data=%tp{g}<0, 128>[0; 1:512] waits=(!turned >= 32*I + 4*g + 4, !applied >= 32*I + 4*g + -12) signals=(!evicted += 1)
        loop j in 4 {
          nc_matmul dst=%tp{g + 1}<0, 128>[128*j; 1:128] stationary=%power{I}<0, 128>[512*g + 128*j + 512; 1:128] moving=%kt<0, 128>[0; 1:128] waits=(!evicted >= 8*I + g) signals=(!turned += 1)
        }
        loop j in 4 {
          nc_matmul dst=%acc{I}<0, 128>[0; 1:128] stationary=%pt{g}<0, 128>[128*j; 1:128] moving=%vt{4*g + j}<0, 128>[0; 1:128] start=first(g, j) stop=false waits=(!loaded >= 544, !evicted >= 8*I + g + 1, !scaled >= I + -1) signals=(!applied += 1)
        }
      }
      activation dst=%pt{3}<0, 128>[0; 1:512] op=copy data=%tp{1}<0, 128>[0; 1:512] waits=(!turned >= 32*I + 32, !applied >= 32*I + 16) signals=(!evicted += 1)
      loop j in 4 {
        nc_matmul dst=%acc{I}<0, 128>[0; 1:128] stationary=%pt{3}<0, 128>[128*j; 1:128] moving=%vt{j + 28}<0, 128>[0; 1:128] start=false stop=last(j) waits=(!evicted >= 8*I + 8) signals=(!applied += 1)
      }
      reciprocal dst=%sum{I}<0, 128>[0; 1:1] data=%sum{I}<0, 128>[0; 1:1] waits=(!raised >= I + 1)
      tensor_scalar dst=%out{I}<0, 128>[0; 1:128] data=%acc{I}<0, 128>[0; 1:128] op0=multiply operand0=%sum{I}<0, 128>[0; 1:1] waits=(!applied >= 32*I + 32, !stored >= 16*I + -16) signals=(!scaled += 1)
      dma_copy queue=3 dst=%o[16384*I; 128:128, 1:128] src=%out{I}<0, 128>[0; 1:128] waits=(!scaled >= I + 1) signals=(!stored += 16)
"""
"""K15: one head, 4096 queries and keys, d 128, no mask. Scores leave PSUM scaled, their maximum is
a pass of its own, and probabilities are transposed on the Tensor engine, as in the samples. The next
tile's scores come before this one's probabilities, the next transposes before the last products:
software pipelining, as the compiler does it."""

_TAIL = """
      loop j in 4 {
        nc_matmul dst=%tp{0}<0, 128>[128*j; 1:128] stationary=%power{I}<0, 128>[128*j; 1:128] moving=%kt<0, 128>[0; 1:128] waits=(!raised >= I + 1, !evicted >= 8*I + -1) signals=(!turned += 1)
      }
      loop g in 7 {
        activation dst=%pt{g}<0, 128>[0; 1:512] op=copy data=%tp{g}<0, 128>[0; 1:512] waits=(!turned >= 32*I + 4*g + 4, !applied >= 32*I + 4*g + -12) signals=(!evicted += 1)
        loop j in 4 {
          nc_matmul dst=%tp{g + 1}<0, 128>[128*j; 1:128] stationary=%power{I}<0, 128>[512*g + 128*j + 512; 1:128] moving=%kt<0, 128>[0; 1:128] waits=(!evicted >= 8*I + g) signals=(!turned += 1)
        }
        loop j in 4 {
          nc_matmul dst=%acc{I}<0, 128>[0; 1:128] stationary=%pt{g}<0, 128>[128*j; 1:128] moving=%vt{4*g + j}<0, 128>[0; 1:128] start=first(g, j) stop=false waits=(!loaded >= 544, !evicted >= 8*I + g + 1, !scaled >= I + -1) signals=(!applied += 1)
        }
      }
      activation dst=%pt{3}<0, 128>[0; 1:512] op=copy data=%tp{1}<0, 128>[0; 1:512] waits=(!turned >= 32*I + 32, !applied >= 32*I + 16) signals=(!evicted += 1)
      loop j in 4 {
        nc_matmul dst=%acc{I}<0, 128>[0; 1:128] stationary=%pt{3}<0, 128>[128*j; 1:128] moving=%vt{j + 28}<0, 128>[0; 1:128] start=false stop=last(j) waits=(!evicted >= 8*I + 8) signals=(!applied += 1)
      }
      reciprocal dst=%sum{I}<0, 128>[0; 1:1] data=%sum{I}<0, 128>[0; 1:1] waits=(!raised >= I + 1)
      tensor_scalar dst=%out{I}<0, 128>[0; 1:128] data=%acc{I}<0, 128>[0; 1:128] op0=multiply operand0=%sum{I}<0, 128>[0; 1:1] waits=(!applied >= 32*I + 32, !stored >= 16*I + -16) signals=(!scaled += 1)
      dma_copy queue=3 dst=%o[16384*I; 128:128, 1:128] src=%out{I}<0, 128>[0; 1:128] waits=(!scaled >= I + 1) signals=(!stored += 16)
"""
"""K15: one head, 4096 queries and keys, d 128, no mask. Scores leave PSUM scaled, their maximum is a
pass of its own, and probabilities are transposed on the Tensor engine, as the samples do. The next tile's scores come
before this one's probabilities, the next transposes before the last products: software pipelining,
as the compiler does it."""

EMPTY = 'program "empty" target trainium2 lnc 1 {}'
"""K16: nothing but the launch."""


def attention(dtype: str) -> Program:
    """K15 with operands of a type; before version 3 transposes are products, in FP32."""
    last = _evaluated(_TAIL, 31)
    text = ATTENTION.format(
        dtype=dtype, transposed="float32", tail=_TAIL.replace("I", "i"), last=last
    )
    return parse(text)


def _evaluated(text: str, value: int) -> str:
    """A peeled trip: `I`, and products with it, as numbers."""
    text = re.sub(r"(\d+)\*I\b", lambda match: str(int(match[1]) * value), text)
    return re.sub(r"\bI\b", str(value), text)


@functools.cache
def programs() -> Mapping[str, Program]:
    """All by name."""
    texts = {
        "matmul": MATMUL,
        "exp": EXP,
        "round_trip": ROUND_TRIP,
        "mamba": MAMBA,
        "empty": EMPTY,
    }
    parsed = {
        **{name: parse(text) for name, text in texts.items()},
        "attention FP32": attention("float32"),
        "attention BF16": attention("bfloat16"),
    }
    return MappingProxyType(parsed)
