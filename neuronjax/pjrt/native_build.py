"""Compiles the description of ``native_ir.py`` with LLVM; needs llvmlite (extra ``native``).

``python -m neuronjax.pjrt.native_build`` writes ``native_code.json``, the code for the
architectures that jaxlib has wheels for. Hosts of any other kind compile at the start, if they have
llvmlite.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from typing import Any

from llvmlite import binding as llvm

from neuronjax.pjrt.native import CODE_FILE, RELOCATIONS, entries
from neuronjax.pjrt.native_ir import description

TARGETS = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}
"""Architecture -> LLVM triple. Code without calls of a library is the same on macOS, where x18 is
taken."""
_FEATURES = {"x86_64": "", "aarch64": "+reserve-x18"}


def compiled(ir: str, architecture: str) -> dict[str, Any]:
    """Bytes, offsets of functions, and the places that hold the address of the table."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple = TARGETS[architecture]
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu="generic",
        features=_FEATURES[architecture],
        opt=2,
        reloc="static",
        codemodel="large",
    )
    module = llvm.parse_assembly(ir)
    module.triple, module.data_layout = triple, str(machine.target_data)
    module.verify()
    sections = {
        (section.name() or b"").decode(): section.data()
        for section in llvm.ObjectFileRef.from_data(machine.emit_object(module)).sections()
    }
    text = ".ltext" if ".ltext" in sections else ".text"
    names = _symbols(sections[".symtab"], sections[".strtab"])
    return {
        "code": base64.b64encode(sections[text]).decode(),
        "functions": {name: at for _, (name, at) in sorted(names.items()) if name and at >= 0},
        "table": _table_places(sections[f".rela{text}"], names),
    }


def _symbols(table: bytes, texts: bytes) -> dict[int, tuple[str, int]]:
    """Number -> name and offset of a function; offset -1 if it is defined elsewhere."""
    found = {}
    for number, (name, info, _, section, value, _) in enumerate(
        struct.iter_unpack("<IBBHQQ", table)
    ):
        text = texts[name : texts.index(b"\0", name)].decode()
        is_function = info & 0xF == 2  # STT_FUNC
        found[number] = text, value if section and is_function else -1
    return found


def _table_places(table: bytes, names: dict[int, tuple[str, int]]) -> list[tuple[int, str, int]]:
    """Offset in the code, kind of the place, and what to add to the table's address."""
    kinds = {number: name for name, (number, _) in RELOCATIONS.items()}
    places = []
    for at, info, addend in struct.iter_unpack("<QQq", table):
        name, kind = names[info >> 32][0], info & 0xFFFFFFFF
        if name != "table" or kind not in kinds:
            raise ValueError(f"the code refers to {name!r} by a relocation of kind {kind}")
        places.append((at, kinds[kind], addend))
    return places


class Jitted:
    """Code for the architecture of this host, compiled now."""

    def __init__(self, ir: str, table: int) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module = llvm.parse_assembly(ir)
        machine = llvm.Target.from_default_triple().create_target_machine(opt=2, jit=True)
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.add_global_mapping(module.get_global_variable("table"), table)
        self._engine.finalize_object()
        self.addresses = {
            function.name: self._engine.get_function_address(function.name)
            for function in module.functions
        }


def main() -> None:
    ir = description(entries())
    record = {
        "description": hashlib.sha256(ir.encode()).hexdigest(),
        "llvm": ".".join(map(str, llvm.llvm_version_info)),
        "architectures": {architecture: compiled(ir, architecture) for architecture in TARGETS},
    }
    lines = [f'"{key}": {json.dumps(value)}' for key, value in record.items()]
    CODE_FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
