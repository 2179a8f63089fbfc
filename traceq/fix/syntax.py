"""Syntax of a source file: calls by the full name of what they call, and their text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst
from libcst import metadata as about

from traceq.fix.edit import RefusedError, Replacement, line_starts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from traceq.fix.source import Source
    from traceq.model.finding import Place

_MODULE_LEVEL = "<module>"


class Code:
    """A parsed file: nodes, their places in its text, and what names mean."""

    def __init__(self, source: Source) -> None:
        self.source, self.file, self.text = source, source.file, source.text
        # The positions of nodes do not count a byte order mark.
        self._offset = len(self.text) - len(self.text.removeprefix("\ufeff"))
        try:
            module = cst.parse_module(self.text[self._offset :])
            wrapper = about.MetadataWrapper(module, unsafe_skip_copy=True)
            self._positions = wrapper.resolve(about.PositionProvider)
            self._names = wrapper.resolve(about.QualifiedNameProvider)
            self._parents = wrapper.resolve(about.ParentNodeProvider)
        except (cst.ParserSyntaxError, RecursionError, ValueError) as error:
            msg = f"{self.file} cannot be parsed: {type(error).__name__}"
            raise RefusedError(msg) from None
        self.module = wrapper.module
        self._starts = line_starts(self.text[self._offset :])
        self.calls = [node for node in self._positions if isinstance(node, cst.Call)]
        self.calls.sort(key=self.start)

    def nodes(self, kind: type[cst.CSTNode]) -> list[cst.CSTNode]:
        """Return the nodes of a kind, in order."""
        return sorted(
            (node for node in self._positions if isinstance(node, kind)),
            key=self.start,
        )

    def start(self, node: cst.CSTNode) -> int:
        """Return where a node begins in the text."""
        place = self._positions[node].start
        return self._offset + self._starts[place.line - 1] + place.column

    def end(self, node: cst.CSTNode) -> int:
        """Return where a node ends in the text."""
        place = self._positions[node].end
        return self._offset + self._starts[place.line - 1] + place.column

    def lines(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the first and the last line of a node."""
        place = self._positions[node]
        return place.start.line, place.end.line

    def written(self, node: cst.CSTNode) -> str:
        """Return a node as it is written."""
        return self.text[self.start(node) : self.end(node)]

    def name(self, node: cst.CSTNode) -> str:
        """Return the full name of what an expression means, if an import tells it."""
        names = self._names.get(node, ())
        names = names() if callable(names) else names
        if len(names) != 1:
            return ""
        (one,) = names
        return one.name if one.source is about.QualifiedNameSource.IMPORT else ""

    def calls_of(self, names: Collection[str]) -> list[cst.Call]:
        """Return the calls of functions or classes with these full names."""
        return [call for call in self.calls if self.name(call.func) in names]

    def parents(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the nodes around a node, innermost first."""
        above: cst.CSTNode | None = self._parents.get(node)
        while above is not None:
            yield above
            above = self._parents.get(above)

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """Return the innermost function around a node."""
        return next(
            (
                parent
                for parent in self.parents(node)
                if isinstance(parent, cst.FunctionDef)
            ),
            None,
        )

    def target(self, node: cst.CSTNode) -> str:
        """Return what a value is assigned to, as written; empty if to nothing."""
        above = next(self.parents(node), None)
        if isinstance(above, cst.Assign) and len(above.targets) == 1:
            return self.written(above.targets[0].target)
        if isinstance(above, cst.AnnAssign):
            return self.written(above.target)
        return ""

    def at(self, place: Place) -> list[cst.Call]:
        """Return the calls at the place of a finding: on its line, or in its function.

        A call stands on each line that it is written over; of a statement over several
        lines, the line that is recorded may be any of them.
        """
        if place.line is None:
            msg = "the recording has no line for it"
            raise RefusedError(msg)
        if place.exact:
            return [
                call
                for call in self.calls
                if self._lines_of_statement(call)[0]
                <= place.line
                <= self._lines_of_statement(call)[1]
            ]
        function = self.function_at(place)
        return [call for call in self.calls if function in set(self.parents(call))]

    def function_at(self, place: Place) -> cst.CSTNode:
        """Return the function that begins at the place of a finding."""
        if place.function == _MODULE_LEVEL:
            return self.module
        begins = place.begins if place.exact else place.line
        named = [
            node
            for node in self.nodes(cst.FunctionDef)
            if isinstance(node, cst.FunctionDef) and node.name.value == place.function
        ]
        for node in reversed(named):
            first = [self.lines(decorator)[0] for decorator in (node, *node.decorators)]
            if begins in first or (begins is None and self._holds(node, place)):
                return node
        msg = (
            f"{self.file} has no function {place.function} at line"
            f" {begins or place.line}"
        )
        raise RefusedError(msg)

    def _holds(self, node: cst.CSTNode, place: Place) -> bool:
        first, last = self.lines(node)
        return place.line is not None and first <= place.line <= last

    def _lines_of_statement(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the lines of the simple statement around a node, else its own."""
        for above in self.parents(node):
            if isinstance(above, cst.BaseSmallStatement):
                return self.lines(above)
            if isinstance(above, cst.BaseCompoundStatement):
                break
        return self.lines(node)

    # Replacements.

    def replaced(self, node: cst.CSTNode, text: str) -> Replacement:
        """Return the replacement of a node."""
        return Replacement(self.file, self.start(node), self.end(node), text)

    def span(self, start: int, end: int, text: str) -> Replacement:
        """Return the replacement of a part of the text."""
        return Replacement(self.file, start, end, text)

    def inserted(self, position: int, text: str) -> Replacement:
        """Return the insertion of a text, with the line ends of the file."""
        ends = "\r\n" if "\r\n" in self.text else "\n"
        return Replacement(self.file, position, position, text.replace("\n", ends))


def keyword(call: cst.Call, name: str) -> cst.Arg | None:
    """Return the argument of a call that is passed by this keyword."""
    return next(
        (arg for arg in call.args if arg.keyword and arg.keyword.value == name), None
    )


def positional(call: cst.Call) -> list[cst.Arg]:
    """Return the arguments that are passed by position."""
    return [arg for arg in call.args if arg.keyword is None and not arg.star]


def is_literal(arg: cst.Arg | None, *values: str) -> bool:
    """Return whether an argument is one of these names, as ``False``."""
    return (
        arg is not None
        and isinstance(arg.value, cst.Name)
        and arg.value.value in values
    )


def refuse_stars(code: Code, call: cst.Call) -> None:
    """Raise if a call takes arguments from a list or a dict that is not written out."""
    if any(arg.star for arg in call.args):
        line = code.lines(call)[0]
        msg = f"the call at line {line} of {code.file} has * or ** arguments"
        raise RefusedError(msg)


def with_keyword(
    code: Code, call: cst.Call, name: str, value: str
) -> list[Replacement]:
    """Return a call with one more keyword, written as its other arguments are."""
    new = f"{name}={value}"
    if not call.args:
        return [code.inserted(code.end(call) - 1, new)]
    last = call.args[-1]
    end = code.end(last)
    if isinstance(last.value, cst.GeneratorExp) and not last.value.lpar:
        # Beside another argument it needs parentheses of its own.
        start = code.start(last)
        return [
            code.inserted(start, "("),
            code.inserted(end, ")"),
            code.inserted(end, f", {new}"),
        ]
    first, _ = code.lines(last)
    own_line = first > code.lines(call)[0] and _begins_line(code, last)
    comma = isinstance(last.comma, cst.Comma)
    if isinstance(last.comma, cst.Comma):
        end = code.end(last.comma)
    rest, _, _ = code.text[end:].partition("\n")
    note = rest.strip()
    indent = _indent(code, last)
    if comma and own_line and (not note or note.startswith("#")):
        return [code.inserted(end + len(rest.rstrip("\r")), f"\n{indent}{new},")]
    if comma:
        return [code.inserted(end, f" {new},")]
    if own_line and not note:
        return [code.inserted(end, f",\n{indent}{new}")]
    return [code.inserted(end, f", {new}")]


def _begins_line(code: Code, node: cst.CSTNode) -> bool:
    return not _before(code, node).strip()


def _indent(code: Code, node: cst.CSTNode) -> str:
    before = _before(code, node)
    return before[: len(before) - len(before.lstrip())]


def _before(code: Code, node: cst.CSTNode) -> str:
    """Return the part of a node's line before it."""
    start = code.start(node)
    return code.text[:start].replace("\r", "\n").rpartition("\n")[2]
