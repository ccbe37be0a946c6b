"""Limits of single instructions: a line that keeps them, and lines that break one each."""

from __future__ import annotations

from tests.program.rule_cases import FILL, TABLE, TILES, A, B, Case, N

T = "%{0}<0, 128>[0; 1:{1}]"
OUT6, OUT2, OUT8 = (T.format("b", size) for size in (6, 2, 8))
E8 = T.format("e", 8)
WORDS = T.format("k", 6)
MASK = "({})".format(", ".join(map(str, range(32))))
PAIR = (
    "sbuf %h : uint16[128, 64] @12288\nsbuf %m : float8_e4m3fn_x4[128, 128] @12416\n"
    "sbuf %u : uint8[128, 128] @12928\nsbuf %j : int32[128, 9] @13056"
)
MORE = TILES + PAIR
FILLED = FILL + "\nmemset dst=%h<0, 128>[0; 1:64] value=#0\nmemset dst=%j<0, 128>[0; 1:9] value=#0"

_LINES: dict[str, list[str]] = {
    f"bn_stats dst={OUT6} data={A}": [f"bn_stats dst={OUT2} data={A}"],
    f"bn_aggr dst={OUT2} data={OUT6}": [
        f"bn_aggr dst={OUT6} data={OUT6}", f"bn_aggr dst={OUT2} data={OUT8}",
    ],
    f"max8 dst={E8} src={A}": [f"max8 dst={E8} src={T.format('a', 7)}", f"max8 dst={OUT2} src={A}"],
    f"nc_find_index8 dst={T.format('k', 8)} data={A} vals={E8}": [
        f"nc_find_index8 dst={T.format('k', 7)} data={A} vals={E8}",
        f"nc_find_index8 dst={T.format('k', 8)} data={A} vals={OUT6}",
        f"nc_find_index8 dst={T.format('k', 8)} data={T.format('a', 7)} vals={E8}",
    ],
    f"nc_match_replace8 dst={A} data={B} vals={E8} imm=#0.0": [
        f"nc_match_replace8 dst={A} data={B} vals={OUT6} imm=#0.0",
    ],
    f"nc_stream_shuffle dst={A} src={B} mask={MASK}": [
        f"nc_stream_shuffle dst={A} src={B} mask={MASK.replace('31', '32')}",
        f"nc_stream_shuffle dst={A} src={B} mask=(0, 1)",
        f"nc_stream_shuffle dst={A} src={T.format('b', 7)} mask={MASK}",
        f"nc_stream_shuffle dst={A} src=%b<0, 64>[0; 1:512] mask={MASK}",
    ],
    f"iota dst={A} pattern=(1:512)": [
        f"iota dst={A} pattern=(1:511)", f"iota dst={A} pattern=(1:1, 1:1, 1:1, 1:1, 1:512)",
    ],
    f"affine_select dst={A} pattern=(1:512) channel_multiplier=0 on_true={B} on_false=#0.0": [
        f"affine_select dst={A} pattern=(1:8) channel_multiplier=0 on_true={B} on_false=#0.0",
    ],
    f"range_select dst={A} on_true={B} comp_op0=less comp_op1=equal bound0={T.format('v', 1)}"
    f" bound1={T.format('v', 1)}": [
        f"range_select dst={A} on_true={B} comp_op0=less comp_op1=equal bound0={T.format('v', 1)}"
        f" bound1={T.format('v', 1)} on_false=#0.0",
        f"range_select dst={A} on_true={B} comp_op0=less comp_op1=equal bound0={T.format('v', 1)}"
        f" bound1={T.format('v', 1)} on_false=#-1e300",
        f"range_select dst={A} on_true={B} comp_op0=less comp_op1=equal bound0={T.format('v', 1)}"
        f" bound1={T.format('v', 1)} range_start=16777000",
    ],
    f"local_gather dst={A} src={B} index={T.format('h', 32)}": [
        f"local_gather dst={A} src={B} index={T.format('h', 32)} elements_per_index=3",
        f"local_gather dst={A} src={B} index={T.format('h', 32)} valid_indices=513",
        "local_gather dst=%a<0, 8>[0; 1:8] src=%b<0, 8>[0; 1:8] index=%h<0, 8>[0; 1:1]",
    ],
    f"custom_op dst={A} function=floor srcs=({B})": [
        f"custom_op dst={A} function=floor srcs=({T.format('b', 8)})",
        f"custom_op dst={A} function=add srcs=({B}, %b<0, 64>[0; 1:512])",
    ],
    f"nonzero_with_count dst={T.format('j', 9)} src={E8}": [
        f"nonzero_with_count dst={T.format('j', 8)} src={E8}",
    ],
    f"topk values={T.format('n', 8)} indices={T.format('k', 8)} src={N} n=42": [
        f"topk values={T.format('n', 8)} indices={T.format('k', 8)} src={N} n=7",
        f"topk values={T.format('n', 8)} indices={T.format('k', 7)} src={N} n=42",
        f"topk values={T.format('n', 8)} indices={T.format('k', 8)} src={N} n=9000",
    ],
    "sequence_bounds dst=%a[0; 1:16] segment_ids=%b[0; 1:8]": [
        "sequence_bounds dst=%a[0; 1:15] segment_ids=%b[0; 1:8]",
    ],
    f"rand_get_state dst={WORDS}": [f"rand_get_state dst={T.format('k', 24)}"],
    f"rand_set_state seeds={WORDS}": [f"rand_set_state seeds={T.format('k', 5)}"],
    "set_rng_seed seed=%k[0; 1:1]": ["set_rng_seed seed=%k[0; 1:2]"],
    "register_load dst=$r src=%k[0; 1:1]": ["register_load dst=$r src=%k[0; 1:2]"],
    "register_move dst=$r src=#1\nregister_store dst=%k[0; 1:1] src=$r": [
        "register_move dst=$r src=#1\nregister_store dst=%k[0; 1:2] src=$r",
    ],
    f"dma_copy dst={A} src={TABLE}": [f"dma_copy dst={A} src=%x[0; 512:127, 1:512]"],
    "dma_transpose dst=%a<0, 16>[0; 1:128] src=%x[0; 16:128, 1:16]": [
        "dma_transpose dst=%a<0, 16>[0; 1:128] src=%x[0; 16:128, 1:15]",
        "dma_transpose dst=%a<0, 16>[0; 1:128] src=%x[0; 16:128, 1:16] axes=(0, 1)",
    ],
    f"dma_compute dst={A} srcs=({A}, {B})": [
        f"dma_compute dst={A} srcs=()", f"dma_compute dst={A} srcs=({A}, {OUT8})",
    ],
    f"dma_gather dst={A} table={TABLE} index={T.format('k', 1)}": [
        f"dma_gather dst={A} table={TABLE} index={T.format('k', 2)}",
        f"dma_gather dst={OUT8} table={TABLE} index={T.format('k', 1)}",
    ],
    f"dma_scatter table=%y[0; 512:128, 1:512] src={A} index={T.format('k', 1)}": [
        f"dma_scatter table=%y[0; 512:128, 1:512] src={A} index={T.format('k', 2)}",
    ],
    f"dma_gather_transpose dst=%a<0, 16>[0; 1:128] table={TABLE} index={T.format('k', 1)}": [
        f"dma_gather_transpose dst=%a<0, 16>[0; 1:128] table={TABLE} index={T.format('k', 1)}"
        " axes=(0, 1)",
    ],
}  # fmt: skip

LIMIT_CASES = [
    Case("limits", good, bad, tiles=MORE, fill=FILLED)
    for good, lines in _LINES.items()
    for bad in lines
] + [
    Case("limits",
         f"quantize_mx dst=%m<0, 128>[0; 1:128] src={N} dst_scale=%u<0, 128>[0; 1:128]",
         f"quantize_mx dst=%m<0, 128>[0; 1:127] src={N} dst_scale=%u<0, 128>[0; 1:128]",
         tiles=MORE, fill=FILLED, chip="trainium3"),
    *(
        Case("limits", *(
            f"sendrecv src={T.format(src, size)} dst={T.format(dst, size)} send_to_rank=1 "
            "recv_from_rank=1 dma_engine=gpsimd_dma"
            for size in (most, most + 1)
        ), lnc=2)
        for src, dst, most in (("a", "b", 256), ("n", "n", 256), ("f", "f", 256))
    ),
]  # fmt: skip
