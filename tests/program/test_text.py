"""Text that is read back without loss, and complaints about text that cannot be read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from neuronjax.errors import ProgramSyntaxError
from neuronjax.program.instruction import Instruction
from neuronjax.program.operand import Immediate
from neuronjax.program.program import Program
from neuronjax.program.table import INSTRUCTIONS
from neuronjax.program.text import format, parse
from tests.program.strategies import FEW, programs, single


@pytest.mark.parametrize("mnemonic", INSTRUCTIONS)
def test_every_instruction_is_read_back(mnemonic: str) -> None:
    @FEW
    @given(single(INSTRUCTIONS[mnemonic]))
    def check(program: Program) -> None:
        text = format(program)
        assert parse(text) == program
        assert format(parse(text)) == text

    check()


@settings(FEW, max_examples=12)
@given(programs())
def test_programs_are_read_back(program: Program) -> None:
    assert parse(format(program)) == program


def test_a_truth_is_a_number() -> None:
    assert Immediate(True) == Immediate(1)


HEAD = 'program "p" target trainium2 lnc 1 {\n'
BUFFERS = "register $r\nhbm %x : float32[8]\n"


@pytest.mark.parametrize(
    ("text", "where", "reason"),
    [
        ("", "line 1, column 1", "expected 'program', found 'the end of the text'"),
        ('program "p', "line 1, column 9", "expected a string"),
        ('program "\\q"', "line 1, column 9", "the string cannot be read"),
        (HEAD, "line 2, column 1", "expected an instruction"),
        (HEAD + "} }", "line 2, column 3", "expected the end"),
        (HEAD + "  jump }", "line 2, column 3", "there is no instruction 'jump'"),
        (HEAD + "hbm %x : int7[8] }", "line 2, column 10", "'int7' is not an element type"),
        (HEAD + "hbm %x : int8[0] }", "line 2, column 1", "sizes must be positive"),
        (HEAD + "sbuf %x : int8[] }", "line 2, column 1", "needs a partition dimension"),
        (HEAD + 'hbm %x : int8[1] data "0" }', "line 2, column 23", "hexadecimal"),
        (HEAD + "hbm %x : int8[1]\nhbm %x : int8[1] }", "line 3, column 1", "declared twice"),
        (HEAD + "register $r register $r }", "line 2, column 13", "declared twice"),
        (HEAD + "loop i in x { } }", "line 2, column 11", "expected an integer"),
        (HEAD + "loop i in 0 { } }", "line 2, column 6", "0 trips"),
        (HEAD + "if $r { } }", "line 2, column 5", "register 'r' is not declared"),
        (HEAD + "call @f(%x) }", "line 2, column 10", "buffer 'x' is not declared"),
        (HEAD + "iota }", "line 2, column 1", "iota lacks dst, pattern"),
        (HEAD + "iota colour=3 }", "line 2, column 6", "iota has no field 'colour'"),
        (HEAD + BUFFERS + "memset dst=%x[0;1:0] value=#1 }", "line 4, column 17", "size 0"),
        (HEAD + BUFFERS + "memset dst=%x[0] as int8 }", "line 4, column 12", "another width"),
        (HEAD + BUFFERS + "memset dst=%x[0] value=1 }", "line 4, column 18", "takes Immediate"),
        (HEAD + BUFFERS + "memset value=#x }", "line 4, column 15", "expected a number"),
        (
            HEAD + BUFFERS + "memset engine=fast }",
            "line 4, column 15",
            "'fast' is not allowed here",
        ),
        (HEAD + BUFFERS + "memset engine=true }", "line 4, column 8", "takes one of tensor"),
        (HEAD + BUFFERS + "rng engine=vector engine=vector }", "line 4, column 19", "twice"),
        (HEAD + "semaphore_event waits=(!s >= 1) }", "line 2, column 25", "not declared"),
    ],
)
def test_errors_say_where(text: str, where: str, reason: str) -> None:
    with pytest.raises(ProgramSyntaxError) as caught:
        parse(text)
    assert str(caught.value).startswith(where + ": ")
    assert reason in str(caught.value)


def test_comments_and_spaces_mean_nothing() -> None:
    text = HEAD + BUFFERS + "  memset dst=%x[0; 1:8] value=#-inf // all of it\n}"
    assert format(parse(text)) == format(parse(text.replace(" ", "  ")))


def test_mnemonics_are_no_keywords() -> None:
    keywords = {"loop", "while", "if", "call", "kernel", "hbm", "sbuf", "psum", "semaphore"}
    assert not keywords & set(INSTRUCTIONS)
    assert all(issubclass(kind, Instruction) for kind in INSTRUCTIONS.values())
