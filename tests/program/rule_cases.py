"""For every rule, programs that keep it and programs that break it and no other."""

from __future__ import annotations

from dataclasses import dataclass

BUFFERS = """
hbm %x : float32[128, 512] argument @0
hbm %y : float32[128, 512] result @262144
hbm %i : uint32[128] argument @524288
"""
TILES = """
sbuf %a : float32[128, 512] @0
sbuf %b : float32[128, 512] @2048
sbuf %n : bfloat16[128, 512] @4096
sbuf %f : float8_e4m3[128, 512] @5120
sbuf %k : uint32[128, 512] @5632
sbuf %v : float32[128, 1] @7680
sbuf %e : float32[128, 8] @7684
sbuf %z : int64[128, 2] @7720
sbuf %fresh : float32[128, 512] slots 2 @8192
psum %p : float32[128, 512] @0
psum %q : float32[128, 512] slots 2 @2048
psum %w : bfloat16[128, 512] @6144
"""
FILL = "\n".join(
    f"memset dst=%{name}<0, 128>[0; 1:{size}] value=#0"
    for name, size in {"a": 512, "b": 512, "n": 512, "f": 512, "k": 512, "v": 1, "e": 8}.items()
)


@dataclass(frozen=True)
class Case:
    """A kernel that keeps a rule, and one that breaks it; `outer` stands before the kernel."""

    rule: str
    good: str
    bad: str
    chip: str = "trainium2"
    lnc: int = 1
    ranks: int = 4
    tiles: str = TILES
    semaphores: str = ""
    good_outer: str = ""
    bad_outer: str = ""
    bad_chip: str = ""
    bad_lnc: int = 0
    bad_ranks: int = 0
    bad_tiles: str = ""
    fill: str = FILL

    def text(self, *, good: bool) -> str:
        chip = self.chip if good else self.bad_chip or self.chip
        lnc = self.lnc if good else self.bad_lnc or self.lnc
        tiles = self.tiles if good else self.bad_tiles or self.tiles
        ranks = self.ranks if good else self.bad_ranks or self.ranks
        outer = self.good_outer if good else self.bad_outer
        body = self.good if good else self.bad
        return (
            f'program "p" target {chip} lnc {lnc} ranks {ranks} {{\nregister $r limit 3\n'
            f"register $s\n{BUFFERS}{outer}\n"
            f'kernel "k" {{\n{self.semaphores}\n{tiles}\n{self.fill}\n{body}\n}}\n}}'
        )


HELD = (
    "sbuf %h : float32[32, 8] @0\n"
    'kernel "filling" {{ sbuf %u : float32[32, 8] @16\nsbuf %s : float32[32, 8] @64\n{} }}'
)
"""A tile of the program that a kernel fills, beside or over a tile of its own."""
FILLS_LAST = (
    "memset dst=%u<0, 32>[0; 1:8] value=#0\n"
    "reciprocal dst=%s<0, 32>[0; 1:8] data=%u<0, 32>[0; 1:8]\n"
    "memset dst=%h<0, 32>[0; 1:8] value=#0"
)
FILLS_FIRST = (
    "memset dst=%u<0, 32>[0; 1:8] value=#0\n"
    "memset dst=%h<0, 32>[0; 1:8] value=#0\n"
    "reciprocal dst=%s<0, 32>[0; 1:8] data=%u<0, 32>[0; 1:8]"
)


def both(rule: str, line: str, good: dict[str, str], bad: dict[str, str], **more: str) -> Case:
    """A case whose two kernels differ in words of one line."""
    return Case(rule, line.format(**good), line.format(**bad), **more)


A, B, V, P = (
    f"%{name}<0, 128>[0; 1:{size}]" for name, size in zip("abvp", (512, 512, 1, 512), strict=True)
)
N, F, K, W = (f"%{name}<0, 128>[0; 1:512]" for name in "nfkw")
ST = "%n<0, 128>[0; 1:128]"
ST8 = "%f<0, 128>[0; 1:128]"
COPY = f"tensor_copy dst={A} src={{0}}"
MM = f"nc_matmul dst={P} stationary={ST} moving={N}"
TABLE = "%x[0; 512:128, 1:512]"
ROWS = "%i[0; 1:128]"
ALL = "((0, 1, 2, 3))"
REDUCE = "all_reduce dsts=({0}) srcs=(%x[0; 1:65536]) groups={1}"
WHOLE_Y = "%y[0; 1:65536]"
COUNTED = TILES + "sbuf %c : uint32[1, 16] @12288"
UNEVEN = (
    "memset dst=%c<0, 1>[0; 1:16] value=#0\n"
    f"{{}} dsts=({WHOLE_Y}) srcs=(%x[0; 1:65536]) groups={ALL} counts=%c<0, 1>[0; 1:{{}}]"
)
S = "semaphore !s"


def split(*bodies: str) -> str:
    """Kernels beside each other."""
    kernels = "\n".join(f'kernel "s{i}" {{\n{body}\n}}' for i, body in enumerate(bodies))
    return f'split "s" {{\n{kernels}\n}}'


def halves(*copied: str) -> str:
    """Kernels beside each other that copy into a result."""
    return split(*(f"loop i in 8 {{ dma_copy dst=%y[{each}] src=%x[0; 1:8] }}" for each in copied))


def beside(start: str) -> str:
    """Kernels beside each other: the second one reads from `start` on what the first may write."""
    copies = (("0", "%x[0; 1:8]"), ("8", f"%y[{start}; 1:8]"))
    return split(*(f"dma_copy dst=%y[{to}; 1:8] src={source}" for to, source in copies))


def near(after: str) -> str:
    """Kernels that run at a time, the second of which stores where the first one may."""
    return (
        'kernel "n1" { dma_copy dst=%y[0; 1:8] src=%x[0; 1:8] }\n'
        'kernel "n2" overlaps 1 { dma_copy queue=1 dst=%y[0; 1:8] src=%x[8; 1:8]'
        f" after=({after}) }}"
    )


TILE = "sbuf %t : float32[1, 1]\n"
ON_TILE = "memset dst=%t[0] value=#0"
RESIDENT = "sbuf %o : float32[1, 1] @9000\n"
ON_RESIDENT = "memset dst=%o[0] value=#0"

CASES = [
    Case("unique names", COPY.format(B), COPY.format(B), bad_outer="kernel \"j\" { loop i in 2 {"
         " loop i in 2 { memset dst=%y[0] value=#0 } } }"),
    Case("calls", "", "", good_outer="function @f(hbm %g : float32[128, 512]) { }",
         bad_outer="function @f(hbm %g : float32[128, 512]) { }\ncall @f()"),
    Case("calls", "", "", bad_outer="call @f(%x)"),
    Case("calls", "", "", bad_outer="function @f() { call @f() }"),
    Case("declared", "", "", good_outer="alias %y = %x", bad_outer="alias %y = %u"),
    Case("variables", f"loop i in 4 {{ {COPY.format('%b<0, 128>[128*i; 0:4, 1:128]')} }}",
         COPY.format("%b<0, 128>[128*i; 0:4, 1:128]")),
    Case("variables", f"loop k in 4 {{ {MM} start=first(k) stop=last(k) }}",
         f"loop k in 4 {{ {MM} start=first(j) stop=last(k) }}"),
    Case("nesting", "", "", bad_outer="register_move dst=$r src=#1"),
    Case("nesting", "", 'kernel "inner" { }'),
    Case("ranks", "", "", bad_ranks=65537),
    Case("roles", "", "", good_outer="sbuf %o : float32[1, 1]",
         bad_outer="sbuf %o : float32[1, 1] result"),
    Case("splits", "", "", lnc=2, bad_lnc=1, good_outer=halves("16*i; 1:8", "16*i + 8; 1:8"),
         bad_outer=halves("16*i; 1:8", "16*i + 8; 1:8")),
    Case("written once", "", "", lnc=2, good_outer=halves("16*i; 1:8", "16*i + 8; 1:8"),
         bad_outer=halves("16*i; 1:8", "16*i + 119; 1:8")),
    Case("written once", "", "", lnc=2, good_outer=halves("512*i; 1:8", "512*i + 4096; 1:8"),
         bad_outer=halves("512*i; 1:8", "512*i + 3584; 1:8")),
    Case("cores apart", "", "", lnc=2, good_outer=beside("16"), bad_outer=beside("7")),
    Case("cores alone", "", "", lnc=2, good_outer=split(f"{TILE}{ON_TILE}", f"{TILE}{ON_TILE}"),
         bad_outer=split(f"{TILE}{ON_TILE}", "host dsts=() srcs=() function=\"f\"")),
    Case("cores alone", "", "", lnc=2,
         good_outer=RESIDENT + split(ON_RESIDENT, f"{TILE}{ON_TILE}"),
         bad_outer=RESIDENT + split(f"{TILE}{ON_TILE}", ON_RESIDENT)),
    Case("cores' registers", "", "", lnc=2, good_outer=split(*["register_move dst=$r src=#1"] * 2),
         bad_outer=split("register_move dst=$r src=#1", "register_move dst=$s src=$r")),
    Case("cores' registers", "", "", lnc=2, good_outer=split("register_move dst=$r src=#1", ""),
         bad_outer=split("register_move dst=$r src=#1", "") + "if $r { } else { }"),
    Case("target", "", "", bad_lnc=3),
    Case("target", "", "", chip="trainium1", bad_lnc=2),
    Case("target", "", "", bad_chip="inferentia1"),
    Case("target", "", "", bad_chip="abacus"),
    *(both("start partition", "tensor_copy dst=%a<0, {n}>[0; 1:8] src=%b<{p}, {n}>[0; 1:8]",
           {"n": n, "p": good}, {"n": n, "p": bad})
      for n, good, bad in (("65", "0", "32"), ("64", "64", "32"), ("33", "64", "32"),
                           ("32", "96", "16"), ("1", "32", "1"))),
    both("start partition", "loop i in 2 {{ tensor_copy dst=%a<{f}*i, 32>[0; 1:8]"
         " src=%b<0, 32>[0; 1:8] }}", {"f": "32"}, {"f": "16"}),
    both("partitions", "loop i in {n} {{ tensor_copy dst=%a<32*i, 32>[0; 1:8]"
         " src=%b<0, 32>[0; 1:8] }}", {"n": "4"}, {"n": "5"}),
    both("bounds", "loop i in {n} {{ tensor_copy dst=%a<0, 128>[128*i; 1:128]"
         " src=%b<0, 128>[0; 1:128] }}", {"n": "4"}, {"n": "5"}),
    both("bounds", "register_load dst=$r src=%k[0; 1:1]\n"
         "dma_copy dst=%a[0; 1:128] src=%x[{f}*$r; 1:128] descriptors=hwdge",
         {"f": "21802"}, {"f": "21803"}),
    Case("bounds", "memset dst=%b<0, 128>[511; -1:512] value=#0",
         "memset dst=%b<0, 128>[510; -1:512] value=#0"),
    Case("access pattern", COPY.format("%b<0, 128>[0; 256:2, 128:2, 64:2, 1:64]"),
         COPY.format("%b<0, 128>[0; 256:2, 128:2, 64:2, 32:2, 1:32]")),
    Case("access pattern", "memset dst=%big<0, 128>[0; 40000:1, 32767:2, 1:8] value=#0",
         "memset dst=%big<0, 128>[0; 40000:1, 32768:2, 1:8] value=#0", fill="",
         tiles="sbuf %big : int8[128, 70000]"),
    Case("access pattern", "memset dst=%big<0, 128>[0; 1:65535] value=#0",
         "memset dst=%big<0, 128>[0; 1:65536] value=#0", fill="",
         tiles="sbuf %big : int8[128, 70000]"),
    *(Case("capacity", "", "", chip=chip, tiles=f"sbuf %t : int8[128, {size}] @8", fill="",
           bad_tiles=f"sbuf %t : int8[128, {size}] @9")
      for chip, size in (("trainium1", 180_216), ("trainium2", 212_976), ("trainium3", 245_744))),
    Case("capacity", "", "", tiles="psum %t : float32[128, 512] slots 8 @0", fill="",
         bad_tiles="psum %t : float32[128, 512] slots 9 @0"),
    Case("capacity", "", "", tiles="sbuf %t : int8[64, 1] partition 64", fill="",
         bad_tiles="sbuf %t : int8[65, 1] partition 64"),
    Case("alignment", "", "", tiles="sbuf %t : float32[128, 1] @4", fill="",
         bad_tiles="sbuf %t : float32[128, 1] @6"),
    Case("slots", "", "", tiles="sbuf %t : float32[128, 2] slots 2 stride 8", fill="",
         bad_tiles="sbuf %t : float32[128, 2] slots 2 stride 4"),
    Case("writable", "dma_copy dst=%a<0, 2>[0; 1:1] src=%c[0; 1:2]",
         "dma_copy dst=%c[0; 1:2] src=%a<0, 2>[0; 1:1]",
         good_outer='hbm %c : float32[2] constant data "0102030401020304"',
         bad_outer='hbm %c : float32[2] constant data "0102030401020304"'),
    Case("constants", "", "", good_outer='hbm %c : int8[2] constant data "0102"',
         bad_outer='hbm %c : int8[2] constant data "01"'),
    Case("constants", "", "", bad_outer='hbm %c : int8[2] data "0102"'),
    Case("overlap", "", "", good_outer="hbm %o : float32[1] argument @524800",
         bad_outer="hbm %o : float32[1] argument @524796"),
    *(Case("overlap", f"{first}\n{second}", f"{first}\n{third}\n{fourth}", fill="",
           tiles="sbuf %s : float32[32, 8] @0\nsbuf %t : float32[32, 8] @16")
      for first, second, third, fourth in (
          ("memset dst=%s<0, 32>[0; 1:8] value=#0", "memset dst=%t<0, 32>[0; 1:8] value=#0",
           "memset dst=%t<0, 32>[0; 1:8] value=#0",
           "reciprocal dst=%s<0, 32>[0; 1:8] data=%s<0, 32>[0; 1:8]"),)),
    Case("overlap",
         "memset dst=%s<0, 32>[0; 1:8] value=#0\nmemset dst=%t<0, 32>[0; 1:8] value=#0\n"
         "reciprocal dst=%t<0, 32>[0; 1:8] data=%t<0, 32>[0; 1:8]\n"
         "memset dst=%s<0, 32>[0; 1:8] value=#0\n"
         "reciprocal dst=%s<0, 32>[0; 1:8] data=%s<0, 32>[0; 1:8]",
         "memset dst=%s<0, 32>[0; 1:8] value=#0\nmemset dst=%t<0, 32>[0; 1:8] value=#0\n"
         "reciprocal dst=%s<0, 32>[0; 1:8] data=%s<0, 32>[0; 1:8]",
         fill="", tiles="sbuf %s : float32[32, 8] @0\nsbuf %t : float32[32, 8] @16"),
    Case("overlap",
         "loop i in 2 { memset dst=%s<0, 32>[0; 1:8] value=#0\n"
         "memset dst=%t<0, 32>[0; 1:8] value=#0 }",
         "memset dst=%s<0, 32>[0; 1:8] value=#0\n"
         "loop i in 2 { reciprocal dst=%s<0, 32>[0; 1:8] data=%s<0, 32>[0; 1:8]\n"
         "memset dst=%t<0, 32>[0; 1:8] value=#0 }",
         fill="", tiles="sbuf %s : float32[32, 8] @0\nsbuf %t : float32[32, 8] @16"),
    *(Case("overlap", read, read, good_outer=HELD.format(FILLS_LAST),
           bad_outer=HELD.format(FILLS_FIRST), fill="", tiles="sbuf %o : float32[32, 8] @128")
      for read in ("reciprocal dst=%o<0, 32>[0; 1:8] data=%h<0, 32>[0; 1:8]",)),
    Case("matmul shape", MM, MM.replace("[0; 1:128]", "[0; 1:129]").replace("%p<0, 128>",
         "%p<0, 128>")),
    Case("matmul shape", MM, MM.replace("%n<0, 128>[0; 1:512]", "%n<0, 64>[0; 1:512]")),
    Case("matmul shape", MM, MM.replace("%p<0, 128>", "%p<0, 64>")),
    Case("matmul shape",
         "nc_matmul dst=%p<0, 128>[0; 1:128] stationary=%f<0, 128>[0; 128:2, 1:128]"
         " moving=%f<0, 128>[0; 128:2, 1:128] perf_mode=double_row",
         "nc_matmul dst=%p<0, 128>[0; 1:128] stationary=%f<0, 128>[0; 1:128]"
         " moving=%f<0, 128>[0; 1:128] perf_mode=double_row"),
    Case("matmul tile",
         "nc_matmul dst=%p<0, 128>[0; 1:512] stationary=%n<64, 64>[0; 1:128]"
         " moving=%n<64, 64>[0; 1:512] tile_position=(64, 0) tile_size=(64, 128)",
         "nc_matmul dst=%p<0, 128>[0; 1:512] stationary=%n<64, 64>[0; 1:128]"
         " moving=%n<64, 64>[0; 1:512] tile_position=(32, 0) tile_size=(64, 128)"),
    Case("matmul tile", MM, MM + " tile_size=(128, 128)"),
    Case("PSUM bank", MM.replace("%p<0, 128>[0;", "%q{1}<0, 128>[0;"),
         MM.replace("%p<0, 128>[0;", "%t<0, 128>[256;"),
         tiles=TILES + "psum %t : float32[128, 1024] @8192"),
    Case("PSUM bank", MM, "nc_matmul dst=%p<0, 128>[0; 1:128] stationary=%n<0, 128>[0; 1:128]"
         " moving=%n<0, 128>[0; 1:128]",
         bad_tiles=TILES.replace("%p : float32[128, 512] @0", "%p : float32[128, 512] @8320")
         .replace("@8320", "@12160")),
    *(both("matmul types", f"nc_matmul dst={P} stationary={{st}} moving={{mv}}",
           {"st": good[0], "mv": good[1]}, {"st": bad[0], "mv": bad[1]})
      for good, bad in (((ST, F), ("%a<0, 128>[0; 1:128]", N)),
                        (("%a<0, 128>[0; 1:128]", B), (ST, A)),
                        ((ST8, F), ("%k<0, 128>[0; 1:128]", N)))),
    Case("matmul types", MM, MM.replace(P, W)),
    Case("matmul types", MM.replace(P, W), MM.replace(P, W), chip="trainium3",
         bad_chip="trainium1"),
    Case("matmul types", f"nc_matmul dst={P} stationary={ST8} moving={F}",
         f"nc_matmul dst={P} stationary={ST8} moving=%g<0, 128>[0; 1:512]", chip="trainium3",
         tiles=TILES + "sbuf %g : float8_e4m3fn[128, 512] @12288",
         fill=FILL + "\nmemset dst=%g<0, 128>[0; 1:512] value=#0"),
    Case("MX types", "nc_matmul_mx dst=%p<0, 64>[0; 1:64] stationary=%m<0, 32>[0; 1:64]"
         " moving=%m<0, 32>[0; 1:64] stationary_scale=%u<0, 32>[0; 1:64]"
         " moving_scale=%u<0, 32>[0; 1:64]",
         "nc_matmul_mx dst=%p<0, 64>[0; 1:64] stationary=%m<0, 32>[0; 1:64]"
         " moving=%m<0, 32>[0; 1:64] stationary_scale=%u<0, 32>[0; 1:64]"
         " moving_scale=%m<0, 32>[0; 1:64]", chip="trainium3",
         tiles="sbuf %m : float8_e5m2_x4[32, 64] @0\nsbuf %u : uint8[32, 64] @256\n"
         "psum %p : float32[64, 64] @0",
         fill="memset dst=%m<0, 32>[0; 1:64] value=#0\nmemset dst=%u<0, 32>[0; 1:64] value=#0"),
    Case("transposes", f"tensor_transpose dst=%w<0, 128>[0; 1:128] data={ST}",
         f"tensor_transpose dst=%p<0, 128>[0; 1:128] data={ST}"),
    Case("transposes", f"tensor_transpose dst=%w<0, 128>[0; 1:128] data={ST8}",
         f"tensor_transpose dst=%p<0, 128>[0; 1:128] data={ST8}"),
    Case("transposes", "vector_transpose dst=%a<0, 8>[0; 1:32] data=%b<0, 32>[0; 1:8]",
         "vector_transpose dst=%a<0, 8>[0; 1:33] data=%b<0, 33>[0; 1:8]"),
    Case("transposes", "vector_transpose dst=%a<0, 8>[0; 1:32] data=%b<0, 32>[0; 1:8]",
         "vector_transpose dst=%a<0, 32>[0; 1:8] data=%b<0, 32>[0; 1:8]"),
    Case("generation", f"exponential dst={A} src={B}", f"exponential dst={A} src={B}",
         chip="trainium3", bad_chip="trainium2"),
    Case("generation", COPY.format(B) + " engine=scalar", COPY.format(B) + " engine=scalar",
         bad_chip="inferentia2"),
    Case("generation", f"activation dst={A} op=exp data={B} bias=#1.0",
         f"activation dst={A} op=exp data={B} bias=#1.0", bad_chip="trainium1"),
    Case("generation", f"dma_copy dst={A} src={TABLE} descriptors=hwdge",
         f"dma_copy dst={A} src={TABLE} descriptors=hwdge", bad_chip="trainium1"),
    Case("generation", f"dma_copy dst={A} src={TABLE} priority=1",
         f"dma_copy dst={A} src={TABLE} priority=1", chip="trainium3", bad_chip="trainium2"),
    Case("engine", COPY.format(B) + " engine=gpsimd", COPY.format(B) + " engine=sync"),
    Case("engine", f"tensor_tensor dst={A} data1={A} data2={B} op=power engine=gpsimd",
         f"tensor_tensor dst={A} data1={A} data2={B} op=power"),
    Case("engine", f"tensor_scalar dst={A} data={B} op0=multiply operand0=#2.0 op1=add"
         " operand1=#1.0 engine=scalar",
         f"tensor_scalar dst={A} data={B} op0=add operand0=#2.0 op1=add operand1=#1.0"
         " engine=scalar"),
    Case("engine", f"tensor_scalar dst={A} data={B} op0=rsqrt engine=gpsimd",
         f"tensor_scalar dst={A} data={B} op0=abs engine=gpsimd"),
    Case("memories", MM, MM.replace(P, A)),
    Case("memories", f"{MM}\n{COPY.format(P)}", f"{MM}\n{COPY.format(P)} engine=gpsimd"),
    Case("memories", f"dma_copy dst=%y[0; 512:128, 1:512] src={A}",
         f"{MM}\ndma_copy dst=%y[0; 512:128, 1:512] src={P}"),
    Case("memories", f"{MM}\ntensor_tensor dst={A} data1={P} data2={B} op=add",
         f"{MM}\ntensor_tensor dst={A} data1={P} data2={P} op=add"),
    Case("descriptors", "register_move dst=$r src=#1\n"
         "dma_copy dst=%a[0; 1:8] src=%x[$r; 1:8] descriptors=hwdge".replace("$r;", "1*$r;"),
         "register_move dst=$r src=#1\ndma_copy dst=%a[0; 1:8] src=%x[1*$r; 1:8]"),
    Case("descriptors", f"dma_copy dst={A} src={TABLE} descriptors=swdge engine=gpsimd",
         f"dma_copy dst={A} src={TABLE} descriptors=hwdge engine=vector"),
    Case("queues", f"dma_copy queue=15 dst={A} src={TABLE}",
         f"dma_copy queue=16 dst={A} src={TABLE}"),
    Case("queues", f"dma_copy priority=3 dst={A} src={TABLE}",
         f"dma_copy priority=4 dst={A} src={TABLE}", chip="trainium3"),
    Case("pairs of cores", "core_barrier data=%y[0; 1:8]", "core_barrier data=%y[0; 1:8]",
         lnc=2, bad_lnc=1),
    *(
        Case("pairs of cores", f"sendrecv src={A} dst={B} send_to_rank=1 recv_from_rank=1",
             f"sendrecv src={A} dst={B} send_to_rank={to} recv_from_rank={of}", lnc=2)
        for to, of in ((2, 2), (2, 1), (0, 1))
    ),
    Case("shapes", COPY.format(B), COPY.format("%b<0, 128>[0; 1:511]")),
    Case("shapes", COPY.format(B), "tensor_copy dst=%a<0, 32>[0; 1:8] src=%b<0, 64>[0; 1:8]"),
    Case("shapes", f"tensor_scalar dst={A} data={B} op0=add operand0={V}",
         f"tensor_scalar dst={A} data={B} op0=add operand0={A}"),
    Case("reductions",
         "tensor_reduce dst=%e<0, 128>[0; 1:8] op=add data=%b<0, 128>[0; 64:8, 1:64]",
         "tensor_reduce dst=%e<0, 128>[0; 1:8] op=add data=%b<0, 128>[0; 64:8, 1:64] axes=2"),
    Case("reductions", f"tensor_reduce dst={V} op=add data={B}",
         f"tensor_reduce dst={V} op=add data={B} axes=2"),
    Case("element types", COPY.format(K), "tensor_copy dst=%z<0, 128>[0; 1:2]"
         " src=%a<0, 128>[0; 1:2]"),
    Case("element types", f"tensor_copy_predicated dst={A} src={B} predicate={K}",
         f"tensor_copy_predicated dst={A} src={B} predicate={A}"),
    Case("element types", f"tensor_copy_predicated dst={A} src={B} predicate={K}",
         f"tensor_copy_predicated dst={A} src={N} predicate={K}"),
    Case("element types", f"tensor_copy dst=%t<0, 128>[0; 1:512] src={A}",
         f"tensor_copy dst=%t<0, 128>[0; 1:512] src={A}", chip="trainium3",
         bad_chip="trainium2", tiles=TILES + "sbuf %t : float8_e4m3fn[128, 512] @12288"),
    Case("operators", f"tensor_reduce dst={V} op=maximum data={B}",
         f"tensor_reduce dst={V} op=equal data={B}"),
    Case("operators", f"tensor_scalar dst={K} data={K} op0=bitwise_and operand0=#7",
         f"tensor_scalar dst={A} data={K} op0=bitwise_and operand0=#7"),
    Case("operators", f"tensor_scalar dst={K} data={K} op0=bitwise_and operand0=#7 op1=invert",
         f"tensor_scalar dst={K} data={K} op0=bitwise_and operand0=#7 op1=add operand1=#1.0"),
    Case("operators", f"tensor_tensor dst={A} data1={A} data2={B} op=add",
         f"tensor_tensor dst={A} data1={A} data2={B} op=square"),
    Case("reduced types", f"activation_reduce dst={A} op=exp data={B} reduce_res={V}",
         f"activation_reduce dst={A} op=exp data={B} reduce_res=%k<0, 128>[0; 1:1]"),
    *(Case("groups", REDUCE.format(WHOLE_Y, good), REDUCE.format(WHOLE_Y, bad))
      for good, bad in ((ALL, "((0, 1, 2))"), ("((0, 2), (1, 3))", "((0, 2), (2, 3))"),
                        ("((0), (1), (2), (3))", "((0, 1, 2), (3))"))),
    Case("groups", f"collective_permute dsts=({WHOLE_Y}) srcs=(%x[0; 1:65536])"
         " pairs=((0, 1), (1, 2))",
         f"collective_permute dsts=({WHOLE_Y}) srcs=(%x[0; 1:65536]) pairs=((0, 1), (2, 1))"),
    Case("collectives", REDUCE.format(WHOLE_Y, ALL), REDUCE.format("%y[0; 1:4]", ALL)),
    Case("collectives", f"all_gather dsts=({WHOLE_Y}) srcs=(%x[0; 1:16384]) groups={ALL}",
         f"all_gather dsts=({WHOLE_Y}) srcs=(%x[0; 1:16384]) groups={ALL} dimension=1"),
    Case("collectives", f"reduce_scatter dsts=(%y[0; 1:16384]) srcs=(%x[0; 1:65536]) groups={ALL}",
         f"reduce_scatter dsts=({WHOLE_Y}) srcs=(%x[0; 1:65536]) groups={ALL}"),
    Case("collectives", f"all_to_all dsts=({WHOLE_Y}) srcs=(%x[0; 1:65536]) groups={ALL}",
         f"all_to_all dsts=({B}) srcs=({A}) groups={ALL}"),
    Case("collectives", REDUCE.format(WHOLE_Y, ALL) + " stream=3",
         REDUCE.format(WHOLE_Y, ALL) + " stream=4"),
    Case("collectives", REDUCE.format(WHOLE_Y, ALL), REDUCE.format(A, ALL)),
    Case("collectives", f"collective_permute_implicit dsts=({B}) srcs=({A}) groups={ALL}",
         f"collective_permute_implicit dsts=({B}) srcs=({A}) groups={ALL} op=add"),
    Case("collectives", UNEVEN.format("all_to_all_v", 12), UNEVEN.format("all_to_all_v", 8),
         tiles=COUNTED),
    Case("uneven sizes", UNEVEN.format("all_gather_v", 12), UNEVEN.format("all_gather_v", 12),
         tiles=COUNTED, lnc=2, bad_lnc=1),
    Case("uneven sizes", UNEVEN.format("all_to_all_v", 16) + " has_places=true",
         UNEVEN.format("all_to_all_v", 16) + " has_places=true", tiles=COUNTED, lnc=2,
         chip="trainium3", bad_chip="trainium2"),
    Case("uninitialised", COPY.format(B), COPY.format("%fresh<0, 128>[0; 1:512]")),
    Case("uninitialised", "memset dst=%fresh<0, 32>[0; 1:512] value=#0\n"
         "tensor_copy dst=%a<0, 32>[0; 1:512] src=%fresh<0, 32>[0; 1:512]",
         "memset dst=%fresh<0, 32>[0; 1:512] value=#0\n"
         "tensor_copy dst=%a<0, 64>[0; 1:512] src=%fresh<0, 64>[0; 1:512]"),
    Case("uninitialised", "memset dst=%fresh{1}<0, 128>[0; 1:512] value=#0\n"
         "loop i in 3 { memset dst=%fresh{i}<0, 128>[0; 1:512] value=#0\n"
         + COPY.format("%fresh{i + 1}<0, 128>[0; 1:512]") + " }",
         "loop i in 3 { memset dst=%fresh{i}<0, 128>[0; 1:512] value=#0\n"
         + COPY.format("%fresh{i + 1}<0, 128>[0; 1:512]") + " }"),
    Case("uninitialised", "loop i in 4 { memset dst=%fresh<0, 128>[128*i; 1:128] value=#0 }\n"
         + COPY.format("%fresh<0, 128>[0; 1:512]"),
         "loop i in 3 { memset dst=%fresh<0, 128>[128*i; 1:128] value=#0 }\n"
         + COPY.format("%fresh<0, 128>[0; 1:512]")),
    Case("registers", "register_move dst=$s src=#1\nif $s { }", "if $s { }"),
    Case("registers", "register_load dst=$r src=%k[0; 1:1]\nloop i in $r { }",
         "loop i in $r { register_move dst=$r src=i }"),
    Case("accumulation", f"loop k in 4 {{ {MM} start=first(k) stop=last(k) }}",
         f"loop k in 4 {{ {MM} start=false stop=last(k) }}"),
    Case("accumulation", f"loop k in 3 {{ {MM} start=first(k) stop=false }}\n{MM} start=false",
         f"loop k in 3 {{ {MM} start=first(k) stop=false }}\n{MM}"),
    Case("accumulation", f"{MM} stop=false\n{MM} start=false\n{COPY.format(P)}",
         f"{MM} stop=false\n{COPY.format(P)}\n{MM} start=false"),
    Case("accumulation", f"memset dst={P} value=#0\n{MM}",
         f"memset dst={P} value=#0\n{MM} start=false"),
    Case("accumulation", MM, f"{MM} stop=false"),
    Case("accumulation", f"loop n in 4 {{ {MM} }}\n{MM} start=false",
         f"loop n in 4 {{ {MM} stop=false }}"),
    Case("semaphores", "semaphore_event signals=(!s += 1)\nsemaphore_event engine=vector"
         " waits=(!s >= 1)",
         "semaphore_event signals=(!s += 1)\nsemaphore_event engine=vector waits=(!s >= 2)",
         semaphores=S),
    Case("semaphores", "loop i in 4 { semaphore_event signals=(!s += 2)\n"
         "semaphore_event engine=vector waits=(!s >= 2*i + 2) }",
         "loop i in 4 { semaphore_event signals=(!s += 2)\n"
         "semaphore_event engine=vector waits=(!s >= 3*i + 2) }", semaphores=S),
    Case("semaphores", "semaphore_event signals=(!s += 1)\nsemaphore_event waits=(!s >= 1)",
         "semaphore_event signals=(!s += 1)", semaphores=S),
    Case("semaphores", "semaphore_event signals=(!s += 1)\nsemaphore_event waits=(!s >= 1)",
         "semaphore_event signals=(!s += 0)\nsemaphore_event waits=(!s >= 0)", semaphores=S),
    Case("neighbours", "", "", good_outer=near("@sync_queue0 - 1"), bad_outer=near("@sync - 1")),
    Case("overlaps", "", "", good_outer=near("@sync_queue0 - 1"),
         bad_outer=near("@sync_queue0 - 1, @vector - 2")),
    Case("deadlock", "semaphore_event signals=(!s += 1)\nsemaphore_event waits=(!s >= 1)",
         "semaphore_event waits=(!s >= 1)\nsemaphore_event signals=(!s += 1)", semaphores=S),
    Case("deadlock", "loop i in 3 { semaphore_event waits=(!t >= i) signals=(!s += 1)\n"
         "semaphore_event engine=vector waits=(!s >= i + 1) signals=(!t += 1) }",
         "loop i in 3 { semaphore_event waits=(!t >= i + 1) signals=(!s += 1)\n"
         "semaphore_event engine=vector waits=(!s >= i + 1) signals=(!t += 1) }",
         semaphores=S + "\nsemaphore !t"),
]  # fmt: skip
