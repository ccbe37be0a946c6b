"""Files of NKI 0.x as text of the present dialect. What is not rewritten stays as it is written,
comments and layout too; a statement that is rewritten is one anew."""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from neuronjax.nki.legacy.isa import SIGNATURES
from neuronjax.nki.legacy.language import NEUTRAL
from neuronjax.nki.migration.indices import Affine, UntranslatedError, affine, limits
from neuronjax.nki.migration.watching import Seen, Watch
from neuronjax.program.operators import UNARY, AluOp

_BINARY = {op.value for op in AluOp} - {op.value for op in UNARY}
_OPERATORS: Mapping[type[ast.AST], str] = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide",
}  # fmt: skip
_COMPARISONS: Mapping[type[ast.AST] | None, str] = {
    ast.GtE: "greater_equal", ast.Gt: "greater", ast.LtE: "less_equal", ast.Lt: "less",
    ast.Eq: "equal",
}  # fmt: skip
_OF_NUMPY = {"max": "maximum", "min": "minimum", "sum": "add"}
_REDUCTIONS = ("max", "min", "sum", "prod", "mean", "all")


UNRUN = "it does not run for these arguments"
"""What is said of statements of which nothing is known."""


@dataclass(frozen=True)
class Remark:
    """What was not translated, or wants a look."""

    line: int
    text: str


@dataclass
class Blocks:
    """A tensor with block dimensions: where it is declared now, and which of these are left."""

    blocks: int
    declaration: ast.Assign
    uses: list[tuple[tuple[ast.For, ...], ast.Subscript]] = field(default_factory=list)
    #: Loops over whose iterations it is reduced, whose body it does not lie in.
    reduced: set[str] = field(default_factory=set)
    #: The loops about it, and which block dimensions are left.
    loops: tuple[ast.For, ...] = ()
    kept: tuple[int, ...] = ()
    fill: str = ""


@dataclass
class Rewriting:
    """The rewriting of one file."""

    source: str
    watch: Watch
    remarks: list[Remark] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.source)
        self._lines = self.source.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line.encode()))
        self._bytes = self.source.encode()
        self._changes: dict[tuple[int, int], str] = {}
        self._gone: set[tuple[int, int]] = set()
        self._names: dict[str, ast.expr] = {}
        self._masked: dict[str, dict[int, str]] = {}
        self._blocks: dict[str, Blocks] = {}
        self._before: list[str] = []
        self._limits: dict[int, str] = {}
        self._condition = ""
        self._temporaries = 0
        self._nl, self._nisa, self._has_isa = "nl", "nisa", False

    def text(self) -> str:
        """The file in the present dialect."""
        for node in self.tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._import(node)
            elif isinstance(node, ast.FunctionDef) and self.watch.saw(node):
                self._function(node)
        out, last = [], 0
        for (start, end), text in sorted(self._changes.items()):
            out += [self._bytes[last:start].decode(), text]
            last = end
        text = "".join([*out, self._bytes[last:].decode()])
        if f"{self._nisa}." in text and not self._has_isa:
            first = next(n for n in self.tree.body if isinstance(n, ast.Import | ast.ImportFrom))
            lines = text.splitlines(keepends=True)
            lines.insert(first.lineno - 1, f"import nki.isa as {self._nisa}\n")
            text = "".join(lines)
        return text

    # Places in the text

    def _span(self, node: ast.AST) -> tuple[int, int]:
        line, column, end_line, end_column = (
            getattr(node, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")
        )
        return self._starts[line - 1] + column, self._starts[end_line - 1] + end_column

    def _replace(self, node: ast.stmt, lines: Sequence[str]) -> None:
        start, end = self._span(node)
        if lines:
            self._changes[start, end] = ("\n" + " " * node.col_offset).join(lines)
            return
        begin, stop = self._starts[node.lineno - 1], self._starts[node.end_lineno or node.lineno]
        is_alone = not (self._bytes[begin:start] + self._bytes[end:stop]).strip()
        self._changes[(begin, stop) if is_alone else (start, end)] = "" if is_alone else "pass"
        self._gone.add((start, end))

    def _insert_before(self, node: ast.stmt, line: str) -> None:
        begin = self._starts[node.lineno - 1]
        known = self._changes.get((begin, begin), "")
        self._changes[begin, begin] = f"{known}{' ' * node.col_offset}{line}\n"

    # Statements

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.ImportFrom):
            if node.module == "neuronxcc":
                self._replace(node, ["import nki"])
            elif node.module and node.module.startswith("neuronxcc.nki"):
                self._replace(node, [])
            return
        given = [
            f"{alias.name.removeprefix('neuronxcc.')} as {alias.asname}" if alias.asname
            else alias.name.removeprefix("neuronxcc.")
            for alias in node.names
        ]  # fmt: skip
        if any(alias.name.startswith("neuronxcc.") for alias in node.names):
            self._replace(node, [f"import {', '.join(given)}"])
        for alias in node.names:
            self._has_isa |= alias.name.endswith("nki.isa")
            self._nl = alias.asname or self._nl if alias.name.endswith("nki.language") else self._nl
            self._nisa = (
                alias.asname or self._nisa if alias.name.endswith("nki.isa") else self._nisa
            )

    def _function(self, node: ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            if "compiler." in ast.unparse(decorator):
                start, end = self._starts[decorator.lineno - 1], decorator.end_lineno
                self._changes[start, self._starts[end or decorator.lineno]] = ""
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
                    blocks = self._blocks.get(node.value.id)
                    if blocks is not None:
                        blocks.uses.append((loops, node))
            self._note_reductions(statement)

    def _note(self, statement: ast.Assign) -> None:
        """Finds a tensor with block dimensions."""
        target, value = statement.targets[0], statement.value
        if isinstance(target, ast.Name) and self.watch.of(value).kind == "blocks":
            shape = _argument(value, 0, "shape")
            assert isinstance(shape, ast.Tuple | ast.List)
            places = [n for n, size in enumerate(shape.elts) if _called(size) == "par_dim"]
            self._blocks[target.id] = Blocks(places[0] if places else 0, statement)

    def _names_index(self, statement: ast.stmt) -> bool:
        """Whether a statement gives names to indices and masks, which expressions have instead."""
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return False
        target, value = statement.targets[0], statement.value
        is_grid = _called(getattr(value, "value", value)) == "mgrid"
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
        known = dict(self._names)
        for name, index in named:
            self._names[ast.unparse(name)] = _expanded(index, known)
        return bool(named)

    def _is_instruction(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Call) and self._module(node.func) == "nisa"

    def _is_index(self, node: ast.expr) -> bool:
        return self.watch.of(node).kind == "index"

    def _note_reductions(self, statement: ast.stmt) -> None:
        if not isinstance(statement, ast.Assign) or _called(statement.value) != "loop_reduce":
            return
        (target,) = statement.targets
        name = getattr(getattr(target, "value", None), "id", "")
        if name in self._blocks:
            indices = _argument(statement.value, 2, "loop_indices")
            blocks = self._blocks[name]
            blocks.reduced |= {getattr(n, "id", "") for n in ast.walk(indices)}
            operator = self._operator(_argument(statement.value, 1, "op"))
            blocks.fill = repr(NEUTRAL[operator.rpartition(".")[2]])

    def _place(self) -> None:
        """Declares tensors with block dimensions in the innermost loop about all of their uses."""
        for name, blocks in self._blocks.items():
            if not blocks.uses:
                continue
            common: list[ast.For] = []
            for loops in zip(*(path for path, _ in blocks.uses), strict=False):
                variable = getattr(loops[0].target, "id", "")
                if any(loop is not loops[0] for loop in loops) or variable in blocks.reduced:
                    break
                common.append(loops[0])
            variables = [getattr(loop.target, "id", "") for loop in common]
            indices = [_entries(use)[: blocks.blocks] for _, use in blocks.uses]
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
                self._replace(blocks.declaration, [])
                for line in self._declaration(name, blocks):
                    self._insert_before(common[-1].body[0], line)

    def _declaration(self, name: str, blocks: Blocks) -> list[str]:
        value = blocks.declaration.value
        shape = _argument(value, 0, "shape")
        assert isinstance(shape, ast.Tuple | ast.List)
        sizes = [ast.unparse(_inner(size)) for size in shape.elts]
        seen = self.watch.of(value)
        kept = [sizes[dim] for dim in blocks.kept]
        own = sizes[blocks.blocks :]
        lines = [self._array(name, [own[0], *kept, *(own[1:] or ["1"])], seen)]
        fill = blocks.fill
        if not fill and seen.memory == "sbuf" and _called(value) in ("zeros", "full", "ones"):
            given = {"zeros": "0.0", "ones": "1.0"}
            fill = given.get(_called(value)) or ast.unparse(_argument(value, 1, "fill_value"))
        return [*lines, f"{self._nisa}.memset({name}, {fill})"] if fill else lines

    def _array(self, name: str, sizes: Sequence[str], seen: Seen) -> str:
        """The declaration of a tile."""
        kinds = f"dtype={self._nl}.{seen.dtype}, buffer={self._nl}.{seen.memory}"
        return f"{name} = {self._nl}.ndarray(({', '.join(sizes)}), {kinds})"

    def _statements(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            if isinstance(statement, ast.For | ast.If | ast.With | ast.While):
                self._statements(statement.body)
                self._statements(getattr(statement, "orelse", []))
                continue
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self._import(statement)
                continue
            if self._span(statement) in self._gone or self._span(statement) in self._changes:
                continue
            self._before, self._limits, self._condition = [], {}, ""
            if self._names_index(statement):
                self._replace(statement, [])
                continue
            if not self.watch.ran(statement):
                self.remarks.append(Remark(statement.lineno, UNRUN))
                continue
            try:
                lines = self._statement(statement)
            except UntranslatedError as error:
                self.remarks.append(Remark(statement.lineno, str(error)))
                continue
            if self._condition:
                lines = [f"if {self._condition}:", *(f"    {line}" for line in lines)]
            if self._before or lines != [self._segment(statement)]:
                self._replace(statement, [*self._before, *lines])
        if body and all(self._span(statement) in self._gone for statement in body):
            last = body[-1]
            begin = self._starts[last.lineno - 1]
            self._insert_before(last, "pass") if (begin, begin) not in self._changes else None

    def _segment(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._bytes[start:end].decode()

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
            return [f"return {self._expression(node.value)}"]
        return [self._segment(node)]

    def _assign(self, target: ast.expr, value: ast.expr) -> list[str]:
        if isinstance(target, ast.Name) and target.id in self._blocks:
            blocks = self._blocks[target.id]
            return [] if blocks.loops or not blocks.uses else self._declaration(target.id, blocks)
        self._take_mask(value)
        if isinstance(target, ast.Name):
            seen = self.watch.of(value)
            if seen.kind != "tile":
                return [f"{target.id} = {self._expression(value)}"]
            self._masked[target.id] = dict(self._limits)
            return self._made(target.id, value, seen)
        if not isinstance(target, ast.Subscript):
            return [f"{self._segment(target)} = {self._expression(value)}"]
        memories = self.watch.of(target.value).memory, self.watch.of(value).memory
        if memories == ("sbuf", "psum") and self._is_instruction(value):
            place, made = self._subscript(target), self._expression(value)
            return [f"{self._nisa}.tensor_copy({place}, {made})"]
        return self._written(self._subscript(target), value)

    def _made(self, name: str, value: ast.expr, seen: Seen) -> list[str]:
        """A tile that gets a name."""
        if isinstance(value, ast.Call) and self._is_instruction(value):
            return [self._tile(name, seen), *self._written(name, value)]
        return [f"{name} = {self._expression(value)}"]

    def _tile(self, name: str, seen: Seen) -> str:
        sizes = list(map(str, seen.shape if len(seen.shape) > 1 else (*seen.shape, 1)))
        for axis, limit in self._limits.items():
            if axis < len(sizes):
                sizes[axis] = f"min({sizes[axis]}, {limit})"
        return self._array(name, sizes, seen)

    def _written(self, place: str, value: ast.expr) -> list[str]:
        """What writes a value to a place."""
        call = value if isinstance(value, ast.Call) else None
        called = _called(call.func) if call else ""
        module = self._module(call.func) if call else ""
        if call and module == "nisa":
            return [self._instruction(call, place)]
        if call and called == "load":
            source = self._expression(_argument(call, 0, "src"))
            return [f"{self._nisa}.dma_copy(dst={place}, src={source})"]
        if call and called == "loop_reduce":
            operator = self._operator(_argument(call, 1, "op"))
            operand = self._expression(_argument(call, 0, "x"))
            return [f"{self._nisa}.tensor_tensor({place}, {place}, {operand}, op={operator})"]
        if call and called == "copy" and module == "nl":
            return [f"{self._nisa}.tensor_copy({place}, {self._expression(call.args[0])})"]
        pair = self._pair(value)
        if pair is not None:
            return [self._binary(place, *pair)]
        if self.watch.of(value).kind != "tile":
            return [f"{self._nisa}.memset({place}, {self._expression(value)})"]
        return [f"{self._nisa}.tensor_copy({place}, {self._expression(value)})"]

    def _pair(self, value: ast.expr) -> tuple[str, ast.expr, ast.expr] | None:
        """Operator and operands of a value that is made of two."""
        if isinstance(value, ast.BinOp) and type(value.op) in _OPERATORS:
            return _OPERATORS[type(value.op)], value.left, value.right
        if isinstance(value, ast.Call) and len(value.args) == 2:
            name = _called(value.func)
            if self._module(value.func) == "nl" and name in _BINARY:
                return name, value.args[0], value.args[1]
        return None

    def _binary(self, place: str, name: str, left: ast.expr, right: ast.expr) -> str:
        shapes = [self.watch.of(operand) for operand in (left, right)]
        texts = [self._expression(operand) for operand in (left, right)]
        operator = f"{self._nl}.{name}"
        if name == "divide":
            return f"{self._nisa}.tensor_copy({place}, {operator}({', '.join(texts)}))"
        columns = [seen.kind != "tile" or _is_column(seen, other)
                   for seen, other in zip(shapes, shapes[::-1], strict=True)]  # fmt: skip
        if columns == [False, False]:
            return f"{self._nisa}.tensor_tensor({place}, {texts[0]}, {texts[1]}, op={operator})"
        tile, scalar = texts if columns[1] else texts[::-1]
        reverse = "" if columns[1] else ", reverse0=True"
        given = f"{place}, {tile}, op0={operator}, operand0={scalar}{reverse}"
        return f"{self._nisa}.tensor_scalar({given})"

    def _add(self, target: ast.expr, value: ast.expr) -> list[str]:
        self._take_mask(value)
        seen = self.watch.of(value)
        if seen.kind != "tile":
            return [f"{self._segment(target)} += {self._expression(value)}"]
        place = (
            self._subscript(target) if isinstance(target, ast.Subscript) else self._segment(target)
        )
        call = value if isinstance(value, ast.Call) else None
        if call and _called(call.func) == "nc_matmul":
            return [self._instruction(call, place)]
        if call and _called(call.func) == "matmul":
            x, y = (
                self._expression(_argument(call, 0, "x")),
                self._expression(_argument(call, 1, "y")),
            )
            if "transpose_x=True" not in ast.unparse(call):
                x = self._name(f"{self._nl}.copy({self._nl}.transpose({x}))")
            return [f"{self._nisa}.nc_matmul({place}, {x}, {y})"]
        given = f"{place}, {place}, {self._expression(value)}, op={self._nl}.add"
        return [f"{self._nisa}.tensor_tensor({given})"]

    def _expression_call(self, call: ast.Call) -> list[str]:
        self._take_mask(call)
        if _called(call.func) == "store" and self._module(call.func) == "nl":
            place = self._expression(_argument(call, 0, "dst"))
            value = self._expression(_argument(call, 1, "value"))
            return [f"{self._nl}.store({place}, {value})"]
        return [self._expression(call)]

    # Expressions

    def _take_mask(self, value: ast.expr) -> None:
        for node in ast.walk(value):
            if isinstance(node, ast.keyword) and node.arg == "mask":
                is_truth = self.watch.ran(ast.Expr(value)) and not self.watch.of(node.value).kind
                if is_truth and not isinstance(node.value, ast.Constant):
                    self._condition = ast.unparse(node.value)
                else:
                    self._limits |= limits(node.value, self._names)
            if isinstance(node, ast.Name):
                self._limits |= self._masked.get(node.id, {})

    def _module(self, function: ast.expr) -> str:
        if not isinstance(function, ast.Attribute):
            return ""
        owner = ast.unparse(function.value)
        if owner in (self._nisa, "nki.isa"):
            return "nisa"
        return "nl" if owner in (self._nl, "nki.language") else ""

    def _operator(self, node: ast.expr) -> str:
        name = _called(node)
        return f"{self._nl}.{_OF_NUMPY.get(name, name)}"

    def _name(self, text: str) -> str:
        """A name for a value that is made before the statement."""
        self._temporaries += 1
        self._before.append(f"part{self._temporaries} = {text}")
        return f"part{self._temporaries}"

    def _expression(self, node: ast.expr) -> str:
        seen = self.watch.of(node)
        if seen.kind in ("index", "mask"):
            raise UntranslatedError(f"the index {ast.unparse(node)} where no tensor is indexed")
        if isinstance(node, ast.Subscript) and self.watch.of(node.value).kind in ("tile", "blocks"):
            return self._subscript(node)
        if isinstance(node, ast.Name) and seen.kind == "tile" and self._limits:
            is_cut = self._masked.get(node.id) == self._limits
            return node.id if is_cut else f"{node.id}{self._cut(seen)}"
        pair = self._pair(node) if seen.kind == "tile" and isinstance(node, ast.BinOp) else None
        if pair is not None:
            return f"{self._nl}.{pair[0]}({self._expression(pair[1])}, {self._expression(pair[2])})"
        if isinstance(node, ast.UnaryOp) and seen.kind == "tile":
            return f"{self._nl}.negative({self._expression(node.operand)})"
        if isinstance(node, ast.Call):
            return self._call(node, seen)
        if isinstance(node, ast.Tuple | ast.List):
            parts = [self._expression(part) for part in node.elts]
            if parts != [self._segment(part) for part in node.elts]:
                inner = ", ".join(parts) + ("," if len(parts) == 1 else "")
                return f"({inner})" if isinstance(node, ast.Tuple) else f"[{inner}]"
        return self._segment(node)

    def _cut(self, seen: Seen) -> str:
        if all(axis >= len(seen.shape) for axis in self._limits):
            return ""
        cuts = [
            f":min({size}, {self._limits[axis]})" if axis in self._limits and size > 1 else ":"
            for axis, size in enumerate(seen.shape)
        ]
        return f"[{', '.join(cuts)}]"

    def _call(self, node: ast.Call, seen: Seen) -> str:
        if self._module(node.func) == "nisa" and _called(node.func) in SIGNATURES:
            self._temporaries += 1
            name = f"part{self._temporaries}"
            self._before += [self._tile(name, seen), self._instruction(node, name)]
            return name
        dropped = ("mask", "lazy_initialization")
        arguments = [self._expression(argument) for argument in node.args]
        for keyword in node.keywords:
            if keyword.arg in dropped or (keyword.arg == "dtype" and _is_none(keyword.value)):
                continue
            if keyword.arg == "buffer" and isinstance(keyword.value, ast.Call):
                arguments.append(f"buffer={self._nl}.{_owner(keyword.value)}")
                continue
            arguments.append(f"{keyword.arg}={self._expression(keyword.value)}")
        is_reduction = _called(node.func) in _REDUCTIONS and self._module(node.func) == "nl"
        inner = (
            self._reduced_within(node.args[0], _argument(node, 1, "axis")) if is_reduction else None
        )
        if inner is not None:
            return f"{self._segment(node.func)}({inner[0]}, axis={inner[1]})"
        if is_reduction and len(seen.shape) > 1 and "keepdims" not in " ".join(arguments):
            arguments.append("keepdims=True")
        function = self._segment(node.func)
        if _called(node.func) == "par_dim":
            return arguments[0]
        if isinstance(node.func, ast.Attribute) and self.watch.of(node.func.value).kind == "tile":
            owner = self._expression(node.func.value)
            if node.func.attr == "broadcast_to":
                return f"{self._nl}.broadcast_to({owner}, {', '.join(arguments)})"
            function = f"{owner}.{node.func.attr}"
        if _called(node.func) in ("zeros",) and seen.memory == "psum":
            function, arguments = (
                f"{self._nl}.ndarray",
                [argument for argument in arguments if not argument.startswith("name=")],
            )
        text = f"{function}({', '.join(arguments)})"
        is_row = _called(node.func) == "load" and text.count(":") == 1 and len(seen.shape) == 2
        return f"{self._nl}.expand_dims({text}, 1)" if is_row else text

    def _reduced_within(self, source: ast.expr, axis: ast.expr) -> tuple[str, list[int]] | None:
        """What is reduced with its dimensions that are reduced last, and their numbers then; None:
        they are the last ones."""
        given, rank = ast.literal_eval(ast.unparse(axis)), len(self.watch.of(source).shape)
        wanted = sorted(a % rank for a in (given if isinstance(given, list | tuple) else [given]))
        if wanted == list(range(rank - len(wanted), rank)) or not isinstance(source, ast.Subscript):
            return None
        order = [*(axis for axis in range(rank) if axis not in wanted), *wanted]
        walk = self._pattern(source, ast.unparse(source.value), _entries(source), [], order)
        return walk, [rank - len(wanted) + number for number in range(len(wanted))]

    def _instruction(self, call: ast.Call, place: str) -> str:
        name = _called(call.func)
        if name == "memset":
            return f"{self._nisa}.memset({place}, {self._expression(_argument(call, 1, 'value'))})"
        if name == "affine_select":
            return self._select(call, place)
        if name not in SIGNATURES:
            raise UntranslatedError(f"nisa.{name}")
        parameters = [part.partition("=")[0] for part in SIGNATURES[name].split(", ")]
        given = dict(zip(parameters, call.args, strict=False))
        given |= {keyword.arg or "": keyword.value for keyword in call.keywords}
        out = [f"dst={place}"]
        for parameter, value in given.items():
            is_default = _is_none(value) or "unknown_engine" in ast.unparse(value)
            if parameter in ("mask", "dtype", "dst") or is_default:
                continue
            if parameter in ("op", "op0", "op1", "reduce_op"):
                out.append(f"{parameter}={self._operator(value)}")
            elif parameter == "axis":
                inner = self._reduced_within(given["data"], value)
                if inner is not None:
                    out = [entry for entry in out if not entry.startswith("data=")]
                    out.append(f"data={inner[0]}")
                out.append(f"axis={inner[1] if inner else ast.unparse(value)}")
            else:
                out.append(f"{parameter}={self._expression(value)}")
        return f"{self._nisa}.{name}({', '.join(out)})"

    def _select(self, call: ast.Call, place: str) -> str:
        """`affine_select`, whose predicate is a pattern, a factor and an offset now."""
        predicate = _argument(call, 0, "pred")
        if isinstance(predicate, ast.Name):
            predicate = self._names.get(predicate.id, predicate)
        operator = type(predicate.ops[0]) if isinstance(predicate, ast.Compare) else None
        if not isinstance(predicate, ast.Compare) or operator not in _COMPARISONS:
            raise UntranslatedError(f"the predicate {ast.unparse(predicate)}")
        left = affine(predicate.left, self._names)
        room = left.plus(affine(predicate.comparators[0], self._names), -1)
        tile, other = _argument(call, 1, "on_true_tile"), _argument(call, 2, "on_false_value")
        pairs = [f"[{run.step}, {run.size}]" for axis, run in sorted(room.axes.items()) if axis]
        rows, chosen = room.axes.get(0), self._expression(tile)
        if self.watch.of(tile).memory == "psum":
            chosen = f"{self._nl}.copy({chosen})"
        given = [
            place, f"pattern=[{', '.join(pairs)}]",
            f"channel_multiplier={rows.step if rows else 0}",
            f"on_true_tile={chosen}",
            f"on_false_value={self._expression(other)}",
            f"cmp_op={self._nl}.{_COMPARISONS[operator]}", f"offset={room.base}",
        ]  # fmt: skip
        return f"{self._nisa}.affine_select({', '.join(given)})"

    def _subscript(self, node: ast.Subscript) -> str:
        """A part of a tensor."""
        if not isinstance(node.value, ast.Name | ast.Call | ast.Attribute | ast.Subscript):
            raise UntranslatedError(ast.unparse(node))
        owner = (
            self._expression(node.value) if not isinstance(node.value, ast.Name) else node.value.id
        )
        entries = _entries(node)
        if any(isinstance(entry, ast.Constant) and entry.value is Ellipsis for entry in entries):
            seen = self.watch.of(node.value)
            is_tile = seen.kind == "tile" and len(entries) == 1
            return f"{owner}{self._cut(seen)}" if is_tile else self._segment(node)
        blocks = self._blocks.get(owner) if isinstance(node.value, ast.Name) else None
        first: list[str] = []
        if blocks is not None:
            first = [ast.unparse(entries[dim]) for dim in blocks.kept]
            entries = entries[blocks.blocks :]
        texts, order = list[str](), list[int]()
        try:
            for entry in entries:
                if isinstance(entry, ast.Slice):
                    texts.append(ast.unparse(entry))
                    continue
                index = affine(entry, self._names)
                texts.append(self._slice_of(index))
                order += index.axes
            if order != sorted(order) or len(order) > sum(":" in part for part in texts):
                raise UntranslatedError(f"{ast.unparse(node)}, which turns dimensions")
        except UntranslatedError:
            return self._pattern(node, owner, entries, first)
        if blocks is not None:
            texts = [*(texts[:1] or [":"]), *first, *texts[1:]]
        return f"{owner}[{', '.join(texts)}]"

    def _pattern(
        self,
        node: ast.Subscript,
        owner: str,
        entries: list[ast.expr],
        blocks: list[str],
        order: Sequence[int] = (),
    ) -> str:
        """A walk over a tensor that no slices describe, for the sizes that it was seen with."""
        whole = self.watch.of(node.value)
        own = whole.shape[len(whole.shape) - len(entries) :]
        shapes = [self.watch.of(entry).shape for entry in entries]
        sizes = np.broadcast_shapes(*shapes)
        if blocks or len(own) != len(entries) or not sizes:
            raise UntranslatedError(ast.unparse(node))
        strides = [math.prod(own[dim + 1 :]) for dim in range(len(own))]
        terms, steps = list[str](), [0] * len(sizes)
        for entry, stride in zip(entries, strides, strict=True):
            seen = self.watch.of(entry)
            if isinstance(entry, ast.Slice) or len(seen.factors) > len(steps):
                raise UntranslatedError(ast.unparse(node))
            base = affine(entry, self._names).base
            if base != "0":
                terms.append(base if stride == 1 else f"({base}) * {stride}")
            for axis, factor in enumerate(seen.factors, len(steps) - len(seen.factors)):
                steps[axis] += factor * stride
        pairs = [
            f"[{step}, {self._size(axis, str(size))}]"
            for axis, (step, size) in enumerate(zip(steps, sizes, strict=True))
        ]
        pairs = [pairs[axis] for axis in order] or pairs
        offset = " + ".join(terms) or "0"
        return f"{owner}.ap([{', '.join(pairs)}], offset={offset})"

    def _size(self, axis: int, size: str) -> str:
        limit = self._limits.get(axis)
        return size if limit is None or size == "1" else f"min({size}, {limit})"

    def _slice_of(self, index: Affine) -> str:
        if not index.axes:
            return index.base
        if len(index.axes) > 1:
            raise UntranslatedError("an index of several axes")
        ((axis, run),) = index.axes.items()
        base, size = index.base, self._size(axis, run.size)
        if run.step == 1:
            return f"0:{size}" if base == "0" else f"{base}:{base} + {size}"
        if run.step is None or run.step < 1:
            raise UntranslatedError("an index whose steps are no numbers, or run backwards")
        return f"{base}:{base} + {run.step} * ({size} - 1) + 1:{run.step}"


def _entries(node: ast.Subscript) -> list[ast.expr]:
    return list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]


def _called(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _owner(call: ast.Call) -> str:
    """`sbuf` of `ncc.sbuf.mod_alloc(…)`."""
    return _called(call.func.value) if isinstance(call.func, ast.Attribute) else "sbuf"


def _expanded(node: ast.expr, names: Mapping[str, ast.expr]) -> ast.expr:
    """An expression with what names stand for in their place."""
    names = dict(names)

    class Expanded(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return names.get(name.id, name)

    made: ast.expr = Expanded().visit(copy.deepcopy(node))
    return made


def _inner(size: ast.expr) -> ast.expr:
    return size.args[0] if isinstance(size, ast.Call) and _called(size) == "par_dim" else size


def _argument(call: ast.expr, place: int, name: str) -> ast.expr:
    assert isinstance(call, ast.Call)
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    return call.args[place]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_column(seen: Seen, other: Seen) -> bool:
    """Whether it has one number a partition, and the other one several."""
    return (
        seen.kind == "tile" and len(seen.shape) > 1 and set(seen.shape[1:]) == {1}
        and other.kind == "tile" and set(other.shape[1:]) != {1} and seen.dtype == "float32"
    )  # fmt: skip
