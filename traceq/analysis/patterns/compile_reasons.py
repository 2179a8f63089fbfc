"""Reasons of recompilations and graph breaks: torch's messages, turned into advice.

The messages are those of torch 2.6 to 2.13, from its log and from its counters.
"""

from __future__ import annotations

import re

from msgspec import Struct

# Text that torch quotes after a guard: the program's line, then hints.
_QUOTED = re.compile(r"\s{2,}#\s*(?P<code>.*)$", re.DOTALL)
_VERSION = r"^\d+/\d+: "
_NUMBERS = r"expected .*$|==.*$"
# Characters of a reason that are read, and that are shown.
_MOST_READ = 500
_LONGEST = 120
_PER_CALL = "each value has a version of its own"


class Reason(Struct, frozen=True):
    """The reason of a recompilation or of a graph break."""

    text: str
    """In a few words, after a colon."""
    advice: str
    key: str
    """Key of the reason, the same whichever numbers the message has."""


# A guard that failed: what torch prints, what it means, and what to do about it.
_GUARDS = (
    (
        r"tensor '(?P<x>.+?)' size mismatch at index (?P<dim>\d+)\. expected"
        r" (?P<old>\d+), actual (?P<new>\d+)",
        "the size of dim {dim} of `{x}` changes ({old}, then {new})",
        "call torch._dynamo.mark_dynamic({x}, {dim}) before the first call, or pad"
        " it to a few sizes",
    ),
    (
        r"tensor '(?P<x>.+?)' stride mismatch at index (?P<dim>\d+)",
        "the stride of dim {dim} of `{x}` changes",
        "pass `{x}` in one layout: {x}.contiguous() where it is a view",
    ),
    (
        r"tensor '(?P<x>.+?)' dtype mismatch\. expected (?P<old>\w+),"
        r" actual (?P<new>\w+)",
        "the dtype of `{x}` changes ({old}, then {new})",
        "pass `{x}` in one dtype: cast it where it is made",
    ),
    (
        r"tensor '(?P<x>.+?)' requires_grad mismatch",
        "`{x}` needs a gradient in some calls and none in others",
        "give `{x}` the same requires_grad in all calls: detach() it where no gradient"
        " is wanted, or call the rest under torch.no_grad()",
    ),
    (
        r"tensor '(?P<x>.+?)' rank mismatch\. expected (?P<old>\d+),"
        r" actual (?P<new>\d+)",
        "`{x}` has {old} dims, then {new}",
        "give `{x}` as many dims in all calls: unsqueeze what lacks one",
    ),
    (
        r"tensor '(?P<x>.+?)' (?P<what>dispatch key set|device|Tensor device index)"
        r"[\w ]*mismatch",
        "the {what} of `{x}` changes",
        "pass `{x}` from one device and in one mode (inference_mode, autocast)",
    ),
    (
        r"GLOBAL_STATE changed: (?P<what>[\w()]+)",
        "torch's global state changes ({what})",
        "a version for each state is intended where one is for training and one for"
        " evaluation; else set the state once, before compiled code",
    ),
    (
        r"^len\((?P<x>.+?)\) == (?P<old>\d+)",
        "the length of `{x}` changes",
        "pass as many entries in all calls, or one tensor instead of a list",
    ),
    (
        r"^(?P<x>.+?) == (?P<old>True|False|'.*?'|None)\s*$",
        "`{x}` changes",
        f"`{{x}}` is a constant of compiled code, {_PER_CALL}: call with one, or"
        " compile a function for each",
    ),
    (
        r"^(?P<x>.*\..+?) == (?P<old>-?\d+)\s*$",
        "the number `{x}` changes",
        f"attributes of modules are constants, {_PER_CALL}: keep it in a tensor, or set"
        " torch._dynamo.config.allow_unspec_int_on_nn_module = True",
    ),
    (
        r"^(?P<x>.+?) == (?P<old>-?[\d.eE+-]+)\s*$",
        "the number `{x}` changes",
        f"a Python number is a constant of compiled code, {_PER_CALL}: pass it as a"
        " tensor",
    ),
    (
        r"^___check_(?:obj|type)_id\((?P<x>[^,]+),|Cache line invalidated because"
        r" (?P<gone>\S+)",
        "another object is passed as `{x}`",
        "make functions, modules and other objects that compiled code uses once, before"
        " the loop",
    ),
    (
        r"(?P<x>L\[.+?\]|\w+)\.size\(\)\[(?P<dim>\d+)\]",
        "a condition on the size of dim {dim} of `{x}` fails",
        "sizes for which the condition differs have a version each: pad to sizes for"
        " which it holds",
    ),
)
_UNKNOWN_GUARD = (
    "keep what the guard names the same in all calls; a size can be marked with"
    " torch._dynamo.mark_dynamic, a number passed as a tensor"
)

# A graph break: what its title or explanation says, and what to do about it.
_BREAKS = (
    (r"dynamo\.graph_break\(\)", "remove the call of torch._dynamo.graph_break()"),
    (
        r"Tensor\.item\(\)|_local_scalar_dense|aten\.item",
        "keep the value on the GPU, or set torch._dynamo.config.capture_scalar_outputs"
        " = True",
    ),
    (
        r"(?i)data-dependent (?:branching|control flow|jump)"
        r"|generic_jump TensorVariable",
        "write the branch in torch operations (torch.where, torch.cond), or take it"
        " outside compiled code",
    ),
    (
        r"(?i)dynamic shape operator",
        "use an operator whose result has a fixed size (torch.where(mask, a, b)), or"
        " set torch._dynamo.config.capture_dynamic_output_shape_ops = True",
    ),
    (
        r"builtin (?:operator )?`?print|call_function BuiltinVariable\(print\)",
        "print what compiled code returns, or add print to"
        " torch._dynamo.config.reorderable_logging_functions",
    ),
    (
        r"(?i)logging\.Logger|logger",
        "log outside compiled code, or add the method to"
        " torch._dynamo.config.ignore_logging_functions",
    ),
    (
        r"torch\.compiler\.disable|torch\._dynamo\.disable",
        "call what is not to be compiled before or after compiled code, or remove"
        " torch.compiler.disable",
    ),
)
_UNKNOWN_BREAK = (
    "write what it cannot compile in torch operations, or move it out of the compiled"
    " function; fullgraph=True shows every break as an error"
)


def guard_reason(failed: str) -> Reason:
    """Return the reason why a guard failed, from torch's text.

    >>> guard_reason("0/0: tensor 'x' dtype mismatch. expected Float, actual Half").text
    'the dtype of `x` changes (Float, then Half)'
    >>> guard_reason("self.n == 3").key
    'the number `self.n` changes'
    """
    guard = guard_text(failed)
    for pattern, text, advice in _GUARDS:
        match = re.search(pattern, guard)
        if match:
            named = _named(match)
            filled = text.format_map(named)
            return Reason(filled, advice.format_map(named), filled.partition(" (")[0])
    return Reason(_short(guard), _UNKNOWN_GUARD, re.sub(_NUMBERS, "", guard))


def break_reason(title: str, explanation: str = "", hint: str = "") -> Reason:
    """Return the reason of a graph break: torch's title, explanation and first hint.

    >>> break_reason("Dynamic shape operator").advice[:30]
    'use an operator whose result h'
    """
    short = _short(title.strip().rstrip(":"))
    for pattern, advice in _BREAKS:
        if re.search(pattern, f"{title[:_MOST_READ]}\n{explanation[:_MOST_READ]}"):
            return Reason(short, advice, short)
    advice = hint[:1].lower() + hint[1:].strip().rstrip(".") if hint else ""
    return Reason(short, _short(advice, 2 * _LONGEST) or _UNKNOWN_BREAK, short)


def guard_text(failed: str) -> str:
    """Return a guard as torch prints it, without quotes of the program.

    >>> guard_text("0/0: s.n == 0    # return y + s.n  # t/net.py:8 in forward")
    's.n == 0'
    """
    guard = re.sub(_VERSION, "", failed.strip()[:_MOST_READ])
    return _short(_QUOTED.sub("", guard))


def _named(match: re.Match[str]) -> dict[str, str]:
    groups = {name: text or "" for name, text in match.groupdict().items()}
    name = groups.get("x") or groups.get("gone") or "?"
    return {**groups, "x": _argument(name)}


def _argument(name: str) -> str:
    """Return an input as the program names it: ``x`` for ``L['x']``."""
    return _short(re.sub(r"\bL\['(\w+)'\]", r"\1", name))


def _short(text: str, most: int = _LONGEST) -> str:
    one_line = re.sub(r"\s+", " ", text).strip()
    return one_line if len(one_line) <= most else f"{one_line[:most].rstrip()} …"
