"""The text of a file, of which statements are replaced and all else stays as it is written."""

from __future__ import annotations

import ast
from collections.abc import Sequence


class Text:
    """A file and its changes, by where they begin and end in bytes, as Python's trees count."""

    def __init__(self, source: str) -> None:
        self._bytes = source.encode()
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line.encode()))
        self._changes: dict[tuple[int, int], str] = {}
        self._gone: set[tuple[int, int]] = set()

    def changed(self) -> str:
        """The file with its changes."""
        out, last = [], 0
        for (start, end), text in sorted(self._changes.items()):
            out += [self._bytes[last:start].decode(), text]
            last = end
        return "".join([*out, self._bytes[last:].decode()])

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where a node begins and ends."""
        line, column, end_line, end_column = (
            getattr(node, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")
        )
        return self._starts[line - 1] + column, self._starts[end_line - 1] + end_column

    def segment(self, node: ast.AST) -> str:
        """A node as it is written."""
        start, end = self.span(node)
        return self._bytes[start:end].decode()

    def is_gone(self, node: ast.stmt) -> bool:
        """Whether a statement was taken out."""
        return self.span(node) in self._gone

    def is_changed(self, node: ast.stmt) -> bool:
        """Whether a statement was replaced or taken out."""
        return self.is_gone(node) or self.span(node) in self._changes

    def replace(self, node: ast.stmt, lines: Sequence[str]) -> None:
        """Writes lines in the place of a statement; none: takes it out."""
        start, end = self.span(node)
        if lines:
            self._changes[start, end] = ("\n" + " " * node.col_offset).join(lines)
            return
        begin, stop = self._starts[node.lineno - 1], self._starts[node.end_lineno or node.lineno]
        is_alone = not (self._bytes[begin:start] + self._bytes[end:stop]).strip()
        self._changes[(begin, stop) if is_alone else (start, end)] = "" if is_alone else "pass"
        self._gone.add((start, end))

    def take_out_lines(self, node: ast.expr) -> None:
        """Takes out the lines that a node is on."""
        lines = self._starts[node.lineno - 1], self._starts[node.end_lineno or node.lineno]
        self._changes[lines] = ""

    def insert_before(self, node: ast.stmt, line: str) -> None:
        """Writes a line before a statement, behind those that were."""
        begin = self._starts[node.lineno - 1]
        known = self._changes.get((begin, begin), "")
        self._changes[begin, begin] = f"{known}{' ' * node.col_offset}{line}\n"

    def fill(self, body: Sequence[ast.stmt]) -> None:
        """Writes `pass` where all statements of a body are gone and nothing is before the last."""
        if body and all(map(self.is_gone, body)):
            begin = self._starts[body[-1].lineno - 1]
            if (begin, begin) not in self._changes:
                self.insert_before(body[-1], "pass")
