"""Code for 64-bit Arm against the words GNU as makes of the same assembly.

The pieces were also run in an emulator of the architecture against C functions; this host need not
be an Arm one, so here the words are compared.
"""

import pytest

from neuronjax.pjrt import code_aarch64 as code

PIECES = {
    "getter": code.getter([(16, 24, 8), (48, 32, 4), (52, 36, 1)]),
    "jump": code.jump(0x123456789ABCDEF0),
    "if_flag": code.if_flag(53, code.RETURN_NULL, 0x1000),
    "if_object": code.if_object(0x1000),
    "count_down": code.count_down(0, 8, 0x1000),
    "store_pointer": code.store_pointer(0xCAFEBABE12345678, 40),
    "store_true": code.store_true(24),
    "call_back": code.call_back(24, 32),
    "bracket": code.bracket(1, 2, 3, 4, 5, 6),
}

ASSEMBLED = {
    "getter": """
        f9400809  ldr x9, [x0, #16]
        f940092a  ldr x10, [x9, #16]
        f9000c0a  str x10, [x0, #24]
        b940312a  ldr w10, [x9, #48]
        b900200a  str w10, [x0, #32]
        3940d12a  ldrb w10, [x9, #52]
        3900900a  strb w10, [x0, #36]
        d2800000  mov x0, #0x0
        d65f03c0  ret
    """,
    "jump": """
        d29bde10  mov x16, #0xdef0
        f2b35790  movk x16, #0x9abc, lsl #16
        f2cacf10  movk x16, #0x5678, lsl #32
        f2e24690  movk x16, #0x1234, lsl #48
        d61f0200  br x16
    """,
    "if_flag": """
        f9400809  ldr x9, [x0, #16]
        3940d52a  ldrb w10, [x9, #53]
        b400006a  cbz x10, 0x14
        d2800000  mov x0, #0x0
        d65f03c0  ret
        d2820010  mov x16, #0x1000
        f2a00010  movk x16, #0x0, lsl #16
        f2c00010  movk x16, #0x0, lsl #32
        f2e00010  movk x16, #0x0, lsl #48
        d61f0200  br x16
    """,
    "if_object": """
        f9400809  ldr x9, [x0, #16]
        b5000069  cbnz x9, 0x10
        d2800000  mov x0, #0x0
        d65f03c0  ret
        d2820010  mov x16, #0x1000
        f2a00010  movk x16, #0x0, lsl #16
        f2c00010  movk x16, #0x0, lsl #32
        f2e00010  movk x16, #0x0, lsl #48
        d61f0200  br x16
    """,
    "count_down": """
        f9400809  ldr x9, [x0, #16]
        f940012a  ldr x10, [x9]
        cb0a0129  sub x9, x9, x10
        91002129  add x9, x9, #0x8
        c85ffd2a  ldaxr x10, [x9]
        d100054a  sub x10, x10, #0x1
        c80bfd2a  stlxr w11, x10, [x9]
        35ffffab  cbnz w11, 0x10
        b400006a  cbz x10, 0x2c
        d2800000  mov x0, #0x0
        d65f03c0  ret
        d2820010  mov x16, #0x1000
        f2a00010  movk x16, #0x0, lsl #16
        f2c00010  movk x16, #0x0, lsl #32
        f2e00010  movk x16, #0x0, lsl #48
        d61f0200  br x16
    """,
    "store_pointer": """
        d28acf0a  mov x10, #0x5678
        f2a2468a  movk x10, #0x1234, lsl #16
        f2d757ca  movk x10, #0xbabe, lsl #32
        f2f95fca  movk x10, #0xcafe, lsl #48
        f900140a  str x10, [x0, #40]
    """,
    "store_true": """
        d280002a  mov x10, #0x1
        3900600a  strb w10, [x0, #24]
    """,
    "call_back": """
        a9bf7bfd  stp x29, x30, [sp, #-16]!
        f9400c09  ldr x9, [x0, #24]
        f9401001  ldr x1, [x0, #32]
        d2800000  mov x0, #0x0
        d63f0120  blr x9
        a8c17bfd  ldp x29, x30, [sp], #16
        d2800000  mov x0, #0x0
        d65f03c0  ret
    """,
    "bracket": """
        a9bc7bfd  stp x29, x30, [sp, #-64]!
        a90153f3  stp x19, x20, [sp, #16]
        aa0003f3  mov x19, x0
        d2800050  mov x16, #0x2
        f2a00010  movk x16, #0x0, lsl #16
        f2c00010  movk x16, #0x0, lsl #32
        f2e00010  movk x16, #0x0, lsl #48
        d63f0200  blr x16
        53007c00  lsr w0, w0, #0
        b40000a0  cbz x0, 0x38
        d2800000  mov x0, #0x0
        a94153f3  ldp x19, x20, [sp, #16]
        a8c47bfd  ldp x29, x30, [sp], #64
        d65f03c0  ret
        d2800070  mov x16, #0x3
        f2a00010  movk x16, #0x0, lsl #16
        f2c00010  movk x16, #0x0, lsl #32
        f2e00010  movk x16, #0x0, lsl #48
        d63f0200  blr x16
        aa0003f4  mov x20, x0
        910083e0  add x0, sp, #0x20
        9100a3e1  add x1, sp, #0x28
        9100c3e2  add x2, sp, #0x30
        d2800090  mov x16, #0x4
        f2a00010  movk x16, #0x0, lsl #16
        f2c00010  movk x16, #0x0, lsl #32
        f2e00010  movk x16, #0x0, lsl #48
        d63f0200  blr x16
        aa1303e0  mov x0, x19
        d2800030  mov x16, #0x1
        f2a00010  movk x16, #0x0, lsl #16
        f2c00010  movk x16, #0x0, lsl #32
        f2e00010  movk x16, #0x0, lsl #48
        d63f0200  blr x16
        aa0003f3  mov x19, x0
        f94013e0  ldr x0, [sp, #32]
        f94017e1  ldr x1, [sp, #40]
        f9401be2  ldr x2, [sp, #48]
        d28000b0  mov x16, #0x5
        f2a00010  movk x16, #0x0, lsl #16
        f2c00010  movk x16, #0x0, lsl #32
        f2e00010  movk x16, #0x0, lsl #48
        d63f0200  blr x16
        aa1403e0  mov x0, x20
        d28000d0  mov x16, #0x6
        f2a00010  movk x16, #0x0, lsl #16
        f2c00010  movk x16, #0x0, lsl #32
        f2e00010  movk x16, #0x0, lsl #48
        d63f0200  blr x16
        aa1303e0  mov x0, x19
        a94153f3  ldp x19, x20, [sp, #16]
        a8c47bfd  ldp x29, x30, [sp], #64
        d65f03c0  ret
    """,
}
"""Word and disassembly, a line each."""


@pytest.mark.parametrize("piece", PIECES)
def test_words(piece: str) -> None:
    words = [line.split()[0] for line in ASSEMBLED[piece].strip().splitlines()]
    assert PIECES[piece] == b"".join(int(word, 16).to_bytes(4, "little") for word in words)
