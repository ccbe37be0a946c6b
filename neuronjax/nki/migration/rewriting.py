"""Files of NKI 0.x as text of the present dialect. What is not rewritten stays as it is written,
comments and layout too; a statement that is rewritten is one anew."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from neuronjax.nki.legacy.language import NEUTRAL
from neuronjax.nki.migration.indices import UntranslatedError
from neuronjax.nki.migration.syntax import argument, expanded, indices_of, inner, name_called
from neuronjax.nki.migration.text import Text
from neuronjax.nki.migration.watching import Seen, Watch
from neuronjax.nki.migration.writer import Blocks, Writer

UNRUN = "it does not run for these arguments"
"""What is said of statements of which nothing is known."""


@dataclass(frozen=True)
class Remark:
    """What was not translated, or wants a look."""

    line: int
    text: str


@dataclass
class Rewriting:
    """The rewriting of one file."""

    source: str
    watch: Watch
    remarks: list[Remark] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.source)
        self._text = Text(self.source)
        self._writer = Writer(self._text, self.watch)
        self._has_isa = False

    def text(self) -> str:
        """The file in the present dialect."""
        for node in self.tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
            elif isinstance(node, ast.FunctionDef) and self.watch.saw(node):
                self._function(node)
        text = self._text.changed()
        if f"{self._writer.nisa}." in text and not self._has_isa:
            first = next(n for n in self.tree.body if isinstance(n, ast.Import | ast.ImportFrom))
            lines = text.splitlines(keepends=True)
            lines.insert(first.lineno - 1, f"import nki.isa as {self._writer.nisa}\n")
            text = "".join(lines)
        return text

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.ImportFrom):
            if node.module == "neuronxcc":
                self._text.replace(node, ["import nki"])
            elif node.module and node.module.startswith("neuronxcc.nki"):
                self._text.replace(node, [])
            return
        given = [
            f"{alias.name.removeprefix('neuronxcc.')} as {alias.asname}" if alias.asname
            else alias.name.removeprefix("neuronxcc.")
            for alias in node.names
        ]  # fmt: skip
        if any(alias.name.startswith("neuronxcc.") for alias in node.names):
            self._text.replace(node, [f"import {', '.join(given)}"])
        for alias in node.names:
            self._has_isa |= alias.name.endswith("nki.isa")
            if alias.asname and alias.name.endswith("nki.language"):
                self._writer.nl = alias.asname
            if alias.asname and alias.name.endswith("nki.isa"):
                self._writer.nisa = alias.asname

    def _function(self, node: ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            if "compiler." in ast.unparse(decorator):
                self._text.take_out_lines(decorator)
        self._find(node.body, ())
        self._place()
        self._statements(node.body)

    def _find(self, body: Sequence[ast.stmt], loops: tuple[ast.For, ...]) -> None:
        """Finds index names, and tensors with block dimensions and their uses."""
        for statement in body:
            if isinstance(statement, ast.For):
                self._find(statement.body, (*loops, statement))
                continue
            if isinstance(statement, ast.If | ast.With | ast.While):
                self._find([*statement.body, *getattr(statement, "orelse", [])], loops)
                continue
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                self._note(statement)
            for node in ast.walk(statement):
                if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
                    blocks = self._writer.blocks.get(node.value.id)
                    if blocks is not None:
                        blocks.uses.append((loops, node))
            self._note_reductions(statement)

    def _note(self, statement: ast.Assign) -> None:
        """Finds a tensor with block dimensions."""
        target, value = statement.targets[0], statement.value
        if isinstance(target, ast.Name) and self.watch.of(value).kind == "blocks":
            shape = argument(value, 0, "shape")
            assert isinstance(shape, ast.Tuple | ast.List)
            places = [n for n, size in enumerate(shape.elts) if name_called(size) == "par_dim"]
            self._writer.blocks[target.id] = Blocks(places[0] if places else 0, statement)

    def _names_index(self, statement: ast.stmt) -> bool:
        """Whether a statement gives names to indices and masks, which expressions have instead."""
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return False
        target, value = statement.targets[0], statement.value
        is_grid = name_called(getattr(value, "value", value)) == "mgrid"
        named: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(target, ast.Tuple) and is_grid:
            named = [
                (name, ast.copy_location(ast.Subscript(value, ast.Constant(number)), value))
                for number, name in enumerate(target.elts)
            ]
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            if all(map(self._is_index, value.elts)):
                named = list(zip(target.elts, value.elts, strict=True))
        elif isinstance(target, ast.Name) and (
            self.watch.of(value).kind in ("index", "mask")
            or (isinstance(value, ast.Subscript) and is_grid)
        ):
            named = [(target, value)]
        known = dict(self._writer.names)
        for name, index in named:
            self._writer.names[ast.unparse(name)] = expanded(index, known)
        return bool(named)

    def _is_index(self, node: ast.expr) -> bool:
        return self.watch.of(node).kind == "index"

    def _note_reductions(self, statement: ast.stmt) -> None:
        if not isinstance(statement, ast.Assign) or name_called(statement.value) != "loop_reduce":
            return
        (target,) = statement.targets
        name = getattr(getattr(target, "value", None), "id", "")
        if name in self._writer.blocks:
            indices = argument(statement.value, 2, "loop_indices")
            blocks = self._writer.blocks[name]
            blocks.reduced |= {getattr(n, "id", "") for n in ast.walk(indices)}
            operator = self._writer.operator(argument(statement.value, 1, "op"))
            blocks.fill = repr(NEUTRAL[operator.rpartition(".")[2]])

    def _place(self) -> None:
        """Declares tensors with block dimensions in the innermost loop about all of their uses."""
        for name, blocks in self._writer.blocks.items():
            if not blocks.uses:
                continue
            common: list[ast.For] = []
            for loops in zip(*(path for path, _ in blocks.uses), strict=False):
                variable = getattr(loops[0].target, "id", "")
                if any(loop is not loops[0] for loop in loops) or variable in blocks.reduced:
                    break
                common.append(loops[0])
            variables = [getattr(loop.target, "id", "") for loop in common]
            indices = [indices_of(use)[: blocks.blocks] for _, use in blocks.uses]
            blocks.kept = tuple(
                dim
                for dim in range(blocks.blocks)
                if not all(
                    getattr(entry[dim], "id", "") in variables
                    and ast.unparse(entry[dim]) == ast.unparse(indices[0][dim])
                    for entry in indices
                )
            )
            blocks.loops = tuple(common)
            if common:
                self._text.replace(blocks.declaration, [])
                for line in self._declaration(name, blocks):
                    self._text.insert_before(common[-1].body[0], line)

    def _declaration(self, name: str, blocks: Blocks) -> list[str]:
        value = blocks.declaration.value
        shape = argument(value, 0, "shape")
        assert isinstance(shape, ast.Tuple | ast.List)
        sizes = [ast.unparse(inner(size)) for size in shape.elts]
        seen = self.watch.of(value)
        kept = [sizes[dim] for dim in blocks.kept]
        own = sizes[blocks.blocks :]
        lines = [self._writer.array(name, [own[0], *kept, *(own[1:] or ["1"])], seen)]
        fill = blocks.fill
        if not fill and seen.memory == "sbuf" and name_called(value) in ("zeros", "full", "ones"):
            given = {"zeros": "0.0", "ones": "1.0"}
            fill = given.get(name_called(value)) or ast.unparse(argument(value, 1, "fill_value"))
        return [*lines, f"{self._writer.nisa}.memset({name}, {fill})"] if fill else lines

    def _statements(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            if isinstance(statement, ast.For | ast.If | ast.With | ast.While):
                self._statements(statement.body)
                self._statements(getattr(statement, "orelse", []))
                continue
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self._import(statement)
                continue
            if self._text.is_changed(statement):
                continue
            self._writer.begin()
            if self._names_index(statement):
                self._text.replace(statement, [])
                continue
            if not self.watch.ran(statement):
                self.remarks.append(Remark(statement.lineno, UNRUN))
                continue
            try:
                lines = self._statement(statement)
            except UntranslatedError as error:
                self.remarks.append(Remark(statement.lineno, str(error)))
                continue
            if self._writer.condition:
                lines = [f"if {self._writer.condition}:", *(f"    {line}" for line in lines)]
            if self._writer.before or lines != [self._text.segment(statement)]:
                self._text.replace(statement, [*self._writer.before, *lines])
        self._text.fill(body)

    def _statement(self, node: ast.stmt) -> list[str]:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            return self._assign(node.targets[0], node.value)
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            return self._assign(node.target, node.value)
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            return self._add(node.target, node.value)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            return self._expression_call(node.value)
        if isinstance(node, ast.Return) and node.value is not None:
            return [f"return {self._writer.expression(node.value)}"]
        return [self._text.segment(node)]

    def _assign(self, target: ast.expr, value: ast.expr) -> list[str]:
        if isinstance(target, ast.Name) and target.id in self._writer.blocks:
            blocks = self._writer.blocks[target.id]
            return [] if blocks.loops or not blocks.uses else self._declaration(target.id, blocks)
        self._writer.take_mask(value)
        if isinstance(target, ast.Name):
            seen = self.watch.of(value)
            if seen.kind != "tile":
                return [f"{target.id} = {self._writer.expression(value)}"]
            self._writer.masked[target.id] = dict(self._writer.limits)
            return self._made(target.id, value, seen)
        if not isinstance(target, ast.Subscript):
            return [f"{self._text.segment(target)} = {self._writer.expression(value)}"]
        memories = self.watch.of(target.value).memory, self.watch.of(value).memory
        if memories == ("sbuf", "psum") and self._writer.is_instruction(value):
            place, made = self._writer.subscript(target), self._writer.expression(value)
            return [f"{self._writer.nisa}.tensor_copy({place}, {made})"]
        return self._written(self._writer.subscript(target), value)

    def _made(self, name: str, value: ast.expr, seen: Seen) -> list[str]:
        """A tile that gets a name."""
        if isinstance(value, ast.Call) and self._writer.is_instruction(value):
            return [self._writer.tile(name, seen), *self._written(name, value)]
        return [f"{name} = {self._writer.expression(value)}"]

    def _written(self, place: str, value: ast.expr) -> list[str]:
        """What writes a value to a place."""
        call = value if isinstance(value, ast.Call) else None
        called = name_called(call.func) if call else ""
        module = self._writer.module(call.func) if call else ""
        if call and module == "nisa":
            return [self._writer.instruction(call, place)]
        if call and called == "load":
            source = self._writer.expression(argument(call, 0, "src"))
            return [f"{self._writer.nisa}.dma_copy(dst={place}, src={source})"]
        if call and called == "loop_reduce":
            operator = self._writer.operator(argument(call, 1, "op"))
            operand = self._writer.expression(argument(call, 0, "x"))
            return [
                f"{self._writer.nisa}.tensor_tensor({place}, {place}, {operand}, op={operator})"
            ]
        if call and called == "copy" and module == "nl":
            return [
                f"{self._writer.nisa}.tensor_copy({place}, {self._writer.expression(call.args[0])})"
            ]
        pair = self._writer.pair(value)
        if pair is not None:
            return [self._binary(place, *pair)]
        if self.watch.of(value).kind != "tile":
            return [f"{self._writer.nisa}.memset({place}, {self._writer.expression(value)})"]
        return [f"{self._writer.nisa}.tensor_copy({place}, {self._writer.expression(value)})"]

    def _binary(self, place: str, name: str, left: ast.expr, right: ast.expr) -> str:
        shapes = [self.watch.of(operand) for operand in (left, right)]
        texts = [self._writer.expression(operand) for operand in (left, right)]
        operator = f"{self._writer.nl}.{name}"
        if name == "divide":
            return f"{self._writer.nisa}.tensor_copy({place}, {operator}({', '.join(texts)}))"
        columns = [seen.kind != "tile" or _is_column(seen, other)
                   for seen, other in zip(shapes, shapes[::-1], strict=True)]  # fmt: skip
        if columns == [False, False]:
            return (
                f"{self._writer.nisa}.tensor_tensor({place}, {texts[0]}, {texts[1]}, op={operator})"
            )
        tile, scalar = texts if columns[1] else texts[::-1]
        reverse = "" if columns[1] else ", reverse0=True"
        given = f"{place}, {tile}, op0={operator}, operand0={scalar}{reverse}"
        return f"{self._writer.nisa}.tensor_scalar({given})"

    def _add(self, target: ast.expr, value: ast.expr) -> list[str]:
        self._writer.take_mask(value)
        seen = self.watch.of(value)
        if seen.kind != "tile":
            return [f"{self._text.segment(target)} += {self._writer.expression(value)}"]
        place = (
            self._writer.subscript(target)
            if isinstance(target, ast.Subscript)
            else self._text.segment(target)
        )
        call = value if isinstance(value, ast.Call) else None
        if call and name_called(call.func) == "nc_matmul":
            return [self._writer.instruction(call, place)]
        if call and name_called(call.func) == "matmul":
            x, y = (
                self._writer.expression(argument(call, 0, "x")),
                self._writer.expression(argument(call, 1, "y")),
            )
            if "transpose_x=True" not in ast.unparse(call):
                x = self._writer.name(f"{self._writer.nl}.copy({self._writer.nl}.transpose({x}))")
            return [f"{self._writer.nisa}.nc_matmul({place}, {x}, {y})"]
        given = f"{place}, {place}, {self._writer.expression(value)}, op={self._writer.nl}.add"
        return [f"{self._writer.nisa}.tensor_tensor({given})"]

    def _expression_call(self, call: ast.Call) -> list[str]:
        self._writer.take_mask(call)
        if name_called(call.func) == "store" and self._writer.module(call.func) == "nl":
            place = self._writer.expression(argument(call, 0, "dst"))
            value = self._writer.expression(argument(call, 1, "value"))
            return [f"{self._writer.nl}.store({place}, {value})"]
        return [self._writer.expression(call)]


def _is_column(seen: Seen, other: Seen) -> bool:
    """Whether it has one number a partition, and the other one several."""
    return (
        seen.kind == "tile" and len(seen.shape) > 1 and set(seen.shape[1:]) == {1}
        and other.kind == "tile" and set(other.shape[1:]) != {1} and seen.dtype == "float32"
    )  # fmt: skip
