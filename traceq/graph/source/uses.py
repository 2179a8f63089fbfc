"""Uses of a value that a program reads at a line, by its source.

Names are followed through the assignments of their function, and through the calls of a
function that returns the value. Nothing is run: the source is only parsed.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

UNUSED, LOGGED, COLLECTED = "unused", "logged", "collected"
ADDED = "added"
"""To a number, or to a tensor on the GPU."""
ACCUMULATED = "accumulated"
"""To what may be a tensor on the CPU."""
ACTED, SIZE, INDEX, LOOPED, METRIC = "acted", "size", "index", "looped", "metric"
FINITE, STOPS, GUARDS, CHECKS = "finite", "stops", "guards", "checks"
DECIDES, COMPUTED, RETURNED = "decides", "computed", "returned"
LOSS, REDUCED = "loss", "reduced"
REPLACED = "replaced"
"""Elements that a mask selects, which are assigned through the same mask."""
SELDOM = "seldom"
"""Beside another use: it is done in some steps alone."""
UNKNOWN = "unknown"

_METHODS = ("item", "tolist", "cpu", "numpy")
_CASTS = ("float", "int", "bool", "complex")
_SIZES = re.compile(
    r"^(range|arange|linspace|eye|zeros|ones|empty|full|rand|randn|randint|randperm"
    r"|new_(zeros|ones|empty|full)|view|reshape|expand|repeat|split|split_with_sizes"
    r"|chunk|narrow|pad|pack_padded_sequence|islice|slice|one_hot|tril_indices"
    r"|triu_indices|topk|interpolate|unfold|repeat_interleave|tile)$"
)
_LOGS = re.compile(
    r"^(print|pprint|log|log_\w+|\w+_log|info|debug|warn|warning|error|critical"
    r"|add_scalars?|add_histogram|scalar|set_postfix(_str)?|set_description(_str)?"
    r"|write|writerow|record\w*|report\w*|track\w*|log[A-Z]\w*|update|dumps?)$"
)
_COLLECTS = ("append", "extend", "appendleft")
_METER = re.compile(r"meter|metric|logger|writer|stats|avg|tracker", re.IGNORECASE)
_METRICS = re.compile(
    r"(accuracy|f1|auc|precision|recall|average_precision|jaccard|r2|bleu)\w*"
    r"_score|^(roc_curve|confusion_matrix|compute_metrics|classification_report"
    r"|spearmanr|pearsonr|edit_distance|levenshtein|wer|cer)$"
)
_LOSSES = re.compile(
    r"loss|criterion|cross_entropy|^(nll|mse|bce|l1|smooth_l1)\b", re.IGNORECASE
)
# Functions of an agent that return what an environment is stepped with.
_ACTION = re.compile(r"(^|_)(act|actions?)$", re.IGNORECASE)
_ENVIRONMENT = re.compile(r"(^|_)v?envs?($|_|\d)|environment|simulator", re.IGNORECASE)
# Functions of the host that make another value of one.
_PASSES = re.compile(
    r"^(round|float|int|bool|str|abs|len|sum|max|min|mean|format|repr|zip|enumerate"
    r"|list|tuple|sorted|reversed|set|dict|array|asarray|sqrt|log2|log10|exp|isnan"
    r"|isinf|isfinite|any|all|stack|concatenate|cat|argmax|argmin|squeeze|ceil|floor"
    r"|median|divmod|pow|clip|copy|deepcopy|astype|flatten|ravel|nan_to_num)$"
)
_TENSOR_OPS = re.compile(
    r"^(tensor|as_tensor|from_numpy|full_like|clamp|clamp_min|clamp_max|where|lerp"
    r"|pow|mul|div|sub|add|backward|[a-z]\w*[a-z0-9]_)$"
)
_FINITE = ("isnan", "isfinite", "isinf")
_ASKS = ("any", "sum", "numel", "nonzero", "count_nonzero")
_DEEPEST = 6
MOST_STEPS = 300_000
"""Nodes that are gone through for one source: about a second."""
_NEVER = 10**9
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.Module, ast.ClassDef)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Uses:
    """The uses of values in a source, for its syntax tree."""

    tree: ast.AST
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    _steps: int = 0
    _calls: dict[str, list[ast.Call]] = field(default_factory=dict)
    """The calls of the source by the name of what is called."""
    _names: dict[tuple[ast.AST, str], list[ast.Name]] = field(default_factory=dict)
    """The occurrences of names, by the function around them."""
    _every_nth: dict[ast.If, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in ast.walk(self.tree):
            self.parents |= dict.fromkeys(ast.iter_child_nodes(node), node)
            if isinstance(node, ast.Call):
                self._calls.setdefault(_last_name(node), []).append(node)
            elif isinstance(node, ast.Name):
                self._note(node)

    def _note(self, name: ast.Name) -> None:
        """Note a name for all functions around it."""
        scope: ast.AST | None = name
        while scope is not None:
            if isinstance(scope, _SCOPES):
                self._names.setdefault((scope, name.id), []).append(name)
            scope = self.parents.get(scope)

    def _is_too_long(self, steps: int = 1) -> bool:
        """Count steps, and return whether there are too many of this source."""
        self._steps += steps
        return self._steps > MOST_STEPS

    def of_read(self, scope: ast.AST, line: int, method: str = "") -> frozenset[str]:
        """Return what is done with what a function reads on the host at a line.

        The method is how it is read, if that is known. Nothing is returned where the
        line has no read, and UNKNOWN beside other uses where some could not be
        followed.
        """
        reads = self._reads(scope, line, method)
        uses: set[str] = set()
        for read in reads:
            uses |= self._of(read, 0, set())
        return frozenset(uses) if reads else self._implied(scope, line)

    def of_index(self, scope: ast.AST, line: int) -> frozenset[str]:
        """Return what is done with what a function indexes at a line."""
        uses: set[str] = set()
        for node in self._at(scope, line, ast.Subscript, ast.Call):
            selects = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)
            if isinstance(node, ast.Subscript) and self._is_replaced(node):
                uses |= {REPLACED}
            elif selects or _last_name(node) == "masked_select":
                uses |= self._of_selected(node)
        return frozenset(uses)

    def _at(self, scope: ast.AST, line: int, *kinds: type[ast.AST]) -> list[ast.expr]:
        """Return the expressions of a function at a line, the shortest first."""
        if self._is_too_long():
            return []
        nodes = [
            node
            for node in _inside(scope)
            if not self._is_too_long()
            and isinstance(node, kinds)
            and isinstance(node, ast.expr)
            and node.lineno <= line <= (node.end_lineno or node.lineno)
        ]
        return sorted(nodes, key=lambda node: (node.end_lineno or 0) - node.lineno)

    def _reads(self, scope: ast.AST, line: int, method: str) -> list[ast.expr]:
        calls = [
            (node, _last_name(node), isinstance(node.func, ast.Attribute))
            for node in self._at(scope, line, ast.Call)
            if isinstance(node, ast.Call)
        ]
        named: list[ast.expr] = [
            node
            for node, name, of_object in calls
            if (name in _METHODS if of_object else name in _CASTS)
            and (not method or name == method or name in _CASTS)
        ]
        # What spans many lines may read at another one.
        begins = [node for node in named if _line_of_call(node) == line]
        return begins or named

    def _implied(self, scope: ast.AST, line: int) -> frozenset[str]:
        """Return the use of a tensor that Python itself reads at a line."""
        for node in _inside(scope):
            if self._is_too_long():
                break
            test = getattr(node, "test", None)
            if isinstance(test, ast.expr) and _spans(test, line):
                return frozenset(_decision(node, test))
        for expr in self._at(scope, line, ast.Call, ast.Subscript):
            if isinstance(expr, ast.Call) and _SIZES.match(_last_name(expr)):
                return frozenset({SIZE})
            if isinstance(expr, ast.Subscript) and not isinstance(
                expr.slice, ast.Constant
            ):
                cut = any(isinstance(part, ast.Slice) for part in ast.walk(expr.slice))
                return frozenset({SIZE if cut else INDEX})
        return frozenset()

    def _of_selected(self, node: ast.expr) -> set[str]:
        """Return whether elements that a mask selects are reduced, or go to a loss."""
        parent = self.parents.get(node)
        if isinstance(parent, ast.Attribute) and parent.attr in ("mean", "sum"):
            return {REDUCED}
        while isinstance(parent, (ast.Attribute, ast.keyword, ast.Subscript)) or (
            isinstance(parent, ast.Call) and parent.func is node
        ):
            node, parent = parent, self.parents.get(parent)  # type: ignore[assignment]
        if isinstance(parent, ast.Call) and node is not parent.func:
            name = _last_name(parent)
            if name in ("mean", "sum"):
                return {REDUCED}
            if _LOSSES.search(name):
                return {LOSS}
        return {UNKNOWN}

    def _is_replaced(self, node: ast.Subscript) -> bool:
        """Return whether elements are assigned by the index that they are read by."""
        above: ast.AST | None = node
        while above is not None and not isinstance(above, ast.stmt):
            above = self.parents.get(above)
        targets: list[ast.expr] = []
        if isinstance(above, ast.AugAssign):
            targets = [above.target]
        elif isinstance(above, ast.Assign) and isinstance(node.ctx, ast.Load):
            targets = above.targets
        return any(
            isinstance(target, ast.Subscript) and _first_of(target) == _first_of(node)
            for target in targets
        )

    def _of(self, node: ast.AST, depth: int, seen: set[tuple[int, str]]) -> set[str]:
        """Return the uses of an expression's value."""
        while not self._is_too_long():
            parent = self.parents.get(node)
            use = self._use(node, parent, depth, seen)
            if use is not None:
                return use | self._how_often(node)
            assert parent is not None  # noqa: S101 - _use returns where there is none
            node = parent
        return {UNKNOWN}

    def _use(  # noqa: C901, PLR0911, PLR0912 - a case for each kind of node
        self,
        node: ast.AST,
        parent: ast.AST | None,
        depth: int,
        seen: set[tuple[int, str]],
    ) -> set[str] | None:
        """Return the use of a node in its parent; None if it goes on into that."""
        match parent:
            case ast.Attribute():
                around = self.parents.get(parent)
                called = isinstance(around, ast.Call) and around.func is parent
                return {COMPUTED} if called and parent.attr == "backward" else None
            case ast.Call() if parent.func is not node:
                return _of_call(parent)
            case ast.Subscript() if parent.slice is node:
                return {INDEX}
            case ast.Slice():
                return {SIZE}
            case ast.FormattedValue():
                return {LOGGED}
            case ast.If() | ast.While() | ast.IfExp() | ast.Assert() if (
                parent.test is node
            ):
                return _decision(parent, parent.test)
            case ast.If() | ast.While() | ast.Assert():
                return {UNKNOWN}
            case ast.For() | ast.AsyncFor():
                return {LOOPED}
            case ast.comprehension():
                return {LOOPED} if parent.iter is node else {DECIDES}
            case ast.Expr():
                return {UNUSED}
            case ast.Return() | ast.Yield():
                return self._of_result(parent, node, depth, seen)
            case ast.AugAssign():
                return self._of_sum(parent, depth, seen)
            case ast.Assign() | ast.AnnAssign() | ast.NamedExpr():
                return self._of_targets(parent, node, depth, seen)
            case (
                ast.BinOp()
                | ast.BoolOp()
                | ast.Compare()
                | ast.UnaryOp()
                | ast.Tuple()
                | ast.List()
                | ast.Set()
                | ast.Dict()
                | ast.ListComp()
                | ast.SetComp()
                | ast.DictComp()
                | ast.GeneratorExp()
                | ast.Starred()
                | ast.keyword()
                | ast.JoinedStr()
                | ast.IfExp()
                | ast.Call()
                | ast.Subscript()
                | ast.Await()
            ):
                return None
        return {UNKNOWN}

    def _how_often(self, node: ast.AST) -> set[str]:
        """Return SELDOM if a node runs in every nth step alone."""
        above = self.parents.get(node)
        while above is not None and not isinstance(above, _FUNCTIONS):
            if (
                isinstance(above, ast.If)
                and above.test is not node
                and self._is_every_nth(above)
            ):
                return {SELDOM}
            if self._is_too_long():
                break
            node, above = above, self.parents.get(above)
        return set()

    def _is_every_nth(self, branch: ast.If) -> bool:
        if branch not in self._every_nth:
            self._every_nth[branch] = any(
                isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)
                for part in ast.walk(branch.test)
            )
        return self._every_nth[branch]

    def _of_sum(
        self, parent: ast.AugAssign, depth: int, seen: set[tuple[int, str]]
    ) -> set[str]:
        if not isinstance(parent.op, (ast.Add, ast.Sub)):
            return {UNKNOWN}
        added = {ADDED if self._takes_tensors(parent.target) else ACCUMULATED}
        if isinstance(parent.target, ast.Name):
            used = self._of_name(parent.target, parent, depth, seen)
            return added | (used - {UNUSED, COLLECTED})
        return added

    def _takes_tensors(self, target: ast.expr) -> bool:
        """Return whether a target is set to numbers, or to tensors on the GPU, alone.

        Of what has elements, as a list, these are its elements.
        """
        while isinstance(target, ast.Subscript):
            target = target.value
        name = _name_of(target)
        scope = self._scope(target) if isinstance(target, ast.Name) else self.tree
        if name is None or self._is_too_long():
            return False
        values = [
            node.value
            for node in ast.walk(scope)
            if isinstance(node, (ast.Assign, ast.AnnAssign))
            and node.value is not None
            and name in map(_name_of, _targets(node))
        ]
        return bool(values) and all(map(_takes_tensor, values))

    def _of_targets(
        self,
        parent: ast.Assign | ast.AnnAssign | ast.NamedExpr,
        node: ast.AST,
        depth: int,
        seen: set[tuple[int, str]],
    ) -> set[str]:
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        uses: set[str] = set()
        for target in targets:
            if isinstance(target, ast.Tuple):
                uses |= {UNKNOWN}
            elif isinstance(target, ast.Subscript) and isinstance(
                target.value, ast.Name
            ):
                uses |= self._of_name(target.value, parent, depth, seen)
            elif isinstance(target, ast.Name):
                uses |= self._of_name(target, parent, depth, seen)
            else:
                uses |= {UNKNOWN}
        if isinstance(parent, ast.NamedExpr):
            uses |= self._of(parent, depth, seen) if node is parent.value else set()
        return uses

    def _of_name(
        self,
        name: ast.Name,
        since: ast.AST,
        depth: int,
        seen: set[tuple[int, str]],
    ) -> set[str]:
        """Return the uses of a name from an assignment to the next one."""
        scope = self._scope(since)
        key = (id(since), name.id)
        if depth >= _DEEPEST or key in seen:
            return {UNKNOWN} if depth >= _DEEPEST else set()
        seen.add(key)
        same = self._names.get((scope, name.id), [])
        if self._is_too_long(len(same)):
            return {UNKNOWN}
        end = getattr(since, "end_lineno", 0) or 0
        until = min(self._sets_again(same, since), default=_NEVER)
        loads = [
            node
            for node in same
            if isinstance(node.ctx, ast.Load) and end < node.lineno <= until
        ]
        uses: set[str] = set()
        for load in loads:
            if self._is_receiver(load):
                continue
            uses |= self._of(load, depth + 1, seen)
        return uses or {UNUSED if not loads else UNKNOWN}

    def _sets_again(self, same: list[ast.Name], since: ast.AST) -> Iterator[int]:
        """Yield the last lines of statements that certainly set a name again.

        Those are of the same block: one in a branch may not run.
        """
        block, end = self.parents.get(since), getattr(since, "end_lineno", 0) or 0
        for node in same:
            if isinstance(node.ctx, ast.Store) and node.lineno > end:
                above: ast.AST = node
                while not isinstance(above, ast.stmt) and above in self.parents:
                    above = self.parents[above]
                if _in_one_block(block, since, above):
                    yield getattr(above, "end_lineno", 0) or node.lineno

    def _is_receiver(self, load: ast.Name) -> bool:
        """Return whether a value of a dict or list is only added to."""
        parent = self.parents.get(load)
        if isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store):
            return True
        return isinstance(parent, ast.Attribute) and parent.attr in (
            *_COLLECTS,
            "update",
        )

    def _of_result(
        self,
        parent: ast.Return | ast.Yield,
        node: ast.AST,
        depth: int,
        seen: set[tuple[int, str]],
    ) -> set[str]:
        """Return the uses of what a function returns where this file calls it."""
        function = self._scope(parent)
        if not isinstance(function, _FUNCTIONS) or isinstance(parent, ast.Yield):
            return {RETURNED}
        if _ACTION.search(function.name):
            return {ACTED}
        key = (id(function), "return")
        if depth >= _DEEPEST or key in seen:
            return {RETURNED}
        seen.add(key)
        uses: set[str] = set()
        for call in self._calls.get(function.name, []):
            around = self.parents.get(call)
            if isinstance(node, ast.Tuple) and isinstance(around, ast.Assign):
                uses |= {RETURNED}
            else:
                uses |= self._of(call, depth + 1, seen)
        return uses or {RETURNED}

    def _scope(self, node: ast.AST) -> ast.AST:
        while not isinstance(node, _SCOPES) and node in self.parents:
            node = self.parents[node]
        return node


def _in_one_block(parent: ast.AST | None, first: ast.AST, second: ast.AST) -> bool:
    """Return whether two statements of a parent are in the same branch of it."""
    blocks = (getattr(parent, name, None) for name in ("body", "orelse", "finalbody"))
    return any(
        isinstance(block, list) and first in block and second in block
        for block in blocks
    )


def _of_call(call: ast.Call) -> set[str] | None:
    """Return the use of an argument of a call; None if the result is what is used."""
    name = _last_name(call)
    receiver = _receiver(call)
    if name == "step" and _ENVIRONMENT.search(receiver):
        return {ACTED}
    for kind, pattern in ((METRIC, _METRICS), (LOGGED, _LOGS), (SIZE, _SIZES)):
        if pattern.search(name):
            return {kind}
    if name in _COLLECTS:
        return {COLLECTED}
    if name == "add" and _METER.search(receiver):
        return {LOGGED}
    # `math.exp` and `np.exp` are of the host, as is `torch.tensor` of the GPU.
    if _PASSES.match(name) or receiver in ("math", "np", "numpy"):
        return None
    return {COMPUTED} if _TENSOR_OPS.match(name) else {UNKNOWN}


def _decision(node: ast.AST, test: ast.expr) -> set[str]:
    """Return what a condition decides, by its test and what it guards."""
    names = {
        part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "")
        for part in ast.walk(test)
    }
    if names.intersection(_FINITE) or _compares_itself(test):
        return {FINITE}
    body = getattr(node, "body", [])
    body = body if isinstance(body, list) else []
    if isinstance(node, ast.Assert) or any(isinstance(s, ast.Raise) for s in body):
        return {CHECKS}
    if isinstance(node, ast.While) or any(isinstance(s, ast.Break) for s in body):
        return {STOPS}
    if isinstance(node, ast.If) and not node.orelse and names.intersection(_ASKS):
        leaves = any(isinstance(s, (ast.Return, ast.Continue)) for s in body)
        negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        return {GUARDS} if leaves == negated else {DECIDES}
    return {DECIDES}


def _compares_itself(test: ast.expr) -> bool:
    return any(
        isinstance(part, ast.Compare)
        and isinstance(part.ops[0], ast.NotEq)
        and _name_of(part.left) is not None
        and _name_of(part.left) == _name_of(part.comparators[0])
        for part in ast.walk(test)
    )


def _first_of(node: ast.Subscript) -> str:
    """Return the index of the first dimension, as text that can be compared."""
    index = node.slice
    if isinstance(index, ast.Tuple) and index.elts:
        index = index.elts[0]
    return ast.dump(index)


def _targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _takes_tensor(value: ast.expr) -> bool:
    """Return whether a tensor on the GPU can be added to a value, or to its elements.

    That is a number, a list or dict, or a tensor that is made on a device.
    """
    if isinstance(value, ast.BinOp):
        sides = (value.left, value.right)
        of_list = any(isinstance(side, ast.List) for side in sides)
        return of_list or all(map(_takes_tensor, sides))
    if isinstance(value, (ast.List, ast.Dict, ast.ListComp, ast.DictComp)):
        return True
    if isinstance(value, ast.Constant):
        return isinstance(value.value, (int, float))
    if not isinstance(value, ast.Call):
        return False
    if _last_name(value) in ("float", "int", "dict", "list", "defaultdict", "Counter"):
        return True
    devices = [word.value for word in value.keywords if word.arg == "device"]
    if _last_name(value) == "to":
        devices += value.args[:1]
    named = [device for device in devices if isinstance(device, ast.Constant)]
    on_host = any(str(device.value).startswith("cpu") for device in named)
    return (bool(devices) and not on_host) or _last_name(value) == "cuda"


def _name_of(node: ast.expr) -> tuple[str, ...] | None:
    """Return a name, or an attribute of one, in parts."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return (node.value.id, node.attr)
    return None


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of functions in it."""
    waiting: list[ast.AST] = [*ast.iter_child_nodes(scope)]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)


def _spans(node: ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _line_of_call(call: ast.expr) -> int:
    """Return the line that Python reports while it runs a call of a method."""
    function = getattr(call, "func", None)
    if isinstance(function, ast.Attribute):
        return function.end_lineno or call.lineno
    return call.lineno


def _last_name(node: ast.AST) -> str:
    function = node.func if isinstance(node, ast.Call) else node
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _receiver(call: ast.Call) -> str:
    """Return the last name of what has a method, as ``env`` of ``self.env.step``."""
    if not isinstance(call.func, ast.Attribute):
        return ""
    value = call.func.value
    if isinstance(value, (ast.Call, ast.Subscript)):
        value = value.func if isinstance(value, ast.Call) else value.value
    if isinstance(value, ast.Attribute):
        return value.attr
    return value.id if isinstance(value, ast.Name) else ""
