"""Allowed content of each field of a trace, and the replacement for the rest.

Names of code stay: files and functions, modules, operators, kernels. All other text
stays only if it has a form that torch, CUDA or the driver writes.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from traceq.formats.facts import RECORDER, RECORDERS
from traceq.formats.sanitize.regions import CODE
from traceq.model import schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from traceq.formats.sanitize.paths import Paths
    from traceq.formats.sanitize.regions import Regions

_NUMBER = re.compile(r"-?(?:0x[0-9a-fA-F]{1,16}|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)")
_VERSION = re.compile(r"\d+(?:\.\d+)*")
_GPU = re.compile(
    r"(?:(?:NVIDIA|AMD|Intel|Tesla|GeForce|Quadro|TITAN|RTX|GRID|Instinct|Radeon|gfx)\b"
    r"|gfx\d|[A-Z]{1,3}\d{2,4}[A-Z]?\b)[\w()/.+-]{0,30}"
    r"(?: [A-Z\d(\[][\w()\[\]/.+-]{0,30}){0,8}"
)
_BACKEND = re.compile(
    r"(?:cuda|cpu|xpu|hpu|nccl|gloo|mpi|ucc|xccl|hccl|undefined|[:,])*"
)
_OPERATOR = re.compile(
    rf"(?:autograd::engine::evaluate_function: )?(?:struct |class )?{CODE}"
)
_COPY = re.compile(
    r"(?:Memcpy|Memset)(?: [DHPA]to[DHPA])?(?: \([A-Z]\w+(?: -> [A-Z]\w+)?\))?"
    r"|(?:Copy|Fill)(?:Host|Device|To|Buffer|Image|Rect|Aligned)*|__amd_rocclr_\w+"
)
_CALL = re.compile(r"\w+")
_FRAME = re.compile(r"[^\n]+\(\d+\): [\w.<>]+")
_CALLER = re.compile(rf"{_FRAME.pattern}(@\d*@[\w./]*)?")
_OTHER_FRAME = re.compile(rf"nn\.Module: {CODE}|<[\w .-]+>")
_PROCESS = re.compile(r"python[\d.]*|pt_main_thread|(?:GPU|Device) \d+|")
_THREAD = re.compile(
    r"stream \d+ ?|thread \d+ \((?:python[\d.]*|pt_\w+)\)|Device \d+|thread \d+|"
)
_THREAD_NUMBER = re.compile(r"thread \d+\b")
_LABELS = re.compile(r"CPU|(?:GPU|XPU|HPU) \d+|")
_LANE = re.compile(
    r"\d*|Spans|Traces|(?:CPU|CUDA) functions|(?:Trace )?PyTorch Profiler"
    r"|stream \d+(?: \d+)?"
)
_COLLECTIVE = re.compile(
    r"(?:all|reduce|gather|scatter|broadcast|to|send|recv|barrier|wait|base|into|tensor"
    r"|out|coalesced|start|end|sparse|single|v|p2p|_)+",
    re.IGNORECASE,
)
_QUOTED_LIST = re.compile(r"\[[-\d, .]*\]")
# Texts of a process group that say nothing of whoever made it.
_GROUPS = {
    "Collective name": _COLLECTIVE,
    "Process Group Name": re.compile(r"\d+|mesh_\w{1,8}"),
    "Process Group Description": re.compile(r"default_pg|undefined|mesh_\w{1,8}"),
    "Comms Id": re.compile(r"[0-9a-fA-Fx]{1,40}"),
    "dtype": re.compile(r"[A-Z][A-Za-z]{1,12}\d{0,2}\w{0,8}"),
}
_DTYPE = re.compile(
    r"|(?:c10|at|torch)::\w+(?:<\w+>)?"
    r"|(?:const |unsigned |signed |long |short )*(?:char|int|long|short|float|double"
    r"|bool|void|half)"
    r"|(?:Scalar|Tensor|Generic|Optional|Int|Double|Float|Bool|Sym|Complex|String|Device"
    r"|Generator|Layout|Dtype|None|Tuple|Dict|Stream|Storage|MemoryFormat)+(?:List)?"
)
# Numbers, truth values and lists of them; words that operators take as options.
_VALUE = re.compile(
    r"[-+\[\]()., \deE]*|[\[\](), ]*(?:(?:True|False|None|inf|-inf|nan)[\[\](), ]*)*"
    r"|(?:cuda|cpu|xpu|hip)(?::\d+)?|none|mean|sum|trunc|floor|tanh|constant|reflect"
    r"|replicate|circular|[a-zA-Z]{1,8}(?:,[a-zA-Z]{0,8})*->[a-zA-Z]{0,8}"
)
_LITERAL = {
    "Lazy Function Loading",
    "Runtime Triggered Module Loading",
    "Command Buffer Full",
    "Activity Buffer Request",
    "Buffer Flush",
    "Instrumentation",
    "Resource",
    "Unrecognized",
    "Stream Wait Event",
    "Stream Sync",
    "Context Sync",
    "Event Sync",
    "PyTorch Profiler (0)",
    "Iteration Start: PyTorch Profiler",
    "Record Window End",
    "[memory]",
    "[OutOfMemory]",
    "process_name",
    "process_labels",
    "process_sort_index",
    "thread_name",
    "thread_sort_index",
}
_KERNELS = {"kernel", "Kernel", "mtia_ccp_events"}
_COPIES = {"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"}
_OPERATORS = {"cpu_op", "Operator", ""}
_RUNTIME = {
    *("cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime", "xpu_driver"),
    *("mtia_runtime", "privateuse1_runtime", "privateuse1_driver"),
}
_REGIONS = {"user_annotation", "User", "gpu_user_annotation", "gpu_user_Annotation"}
_CATEGORIES = {
    *(_KERNELS | _COPIES | _OPERATORS | _RUNTIME | _REGIONS),
    *("python_function", "cpu_instant_event", "overhead", "cuda_sync", "Trace"),
}
_NUMBERS = {
    column.arg
    for table in schema.TABLES.values()
    for column in table.columns.values()
    if column.arg and column.dtype != schema.TEXT
} | {"sort_index"}


def _is_number(value: Any) -> bool:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        return bool(_NUMBER.fullmatch(value))
    return value is None or isinstance(value, (bool, int, float))


def _numbers(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return numbers and lists of them; anything else in a list is empty."""
    if isinstance(value, list):
        return [_numbers(entry) for entry in value]
    return value if _is_number(value) else []


def _texts(form: re.Pattern[str]) -> Callable[[Any], Any]:
    def clean(value: Any) -> Any:  # noqa: ANN401 - JSON
        if isinstance(value, list):
            return [clean(entry) for entry in value]
        if isinstance(value, str):
            return value if form.fullmatch(value) else ""
        return value if _is_number(value) else ""

    return clean


_INPUTS = {
    "Input Dims": _numbers,
    "Input Strides": _numbers,
    "Input type": _texts(_DTYPE),
    "Concrete Inputs": _texts(_VALUE),
}
# Allowed texts of the objects in the header.
_HEADER_TEXTS = {
    "name": _GPU,
    "backend": _BACKEND,
    "nccl_version": _VERSION,
    "displayTimeUnit": re.compile("ms|ns"),
    RECORDER: RECORDERS,
}


def header_value(key: str, value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return an allowed value of the header, or of an object in it; or None."""
    if isinstance(value, str):
        return value if _HEADER_TEXTS.get(key, _VERSION).fullmatch(value) else None
    return value if _is_number(value) else None


def gpu_name(name: str) -> str:
    """Return the name of a GPU, or nothing if it is not one.

    >>> gpu_name("NVIDIA H200"), gpu_name("the one of alice")
    ('NVIDIA H200', '')
    """
    return name if _GPU.fullmatch(name) else ""


@dataclass
class Fields:
    """Writer of the fields of one trace's events."""

    paths: Paths
    regions: Regions
    _lanes: dict[str, str] = field(default_factory=dict)

    def frame(self, name: str) -> str:
        """Return the name of a Python call."""
        short = self.paths.frame(name)
        if _FRAME.fullmatch(short) or _OTHER_FRAME.fullmatch(short):
            return short
        file, function, _ = short.partition("): ")
        return f"{file}): function" if function else self.regions.name(name)

    def name(self, name: str, category: str) -> str:  # noqa: PLR0911 - one a kind
        """Return the name of an event."""
        if category == "python_function":
            return self.frame(name)
        if category in _KERNELS:
            return self.paths.text(name)
        if name in _LITERAL:
            return name
        if category in _COPIES:
            return name if _COPY.fullmatch(name) else "Memcpy"
        if category in _RUNTIME:
            return name if _CALL.fullmatch(name) else "unknown"
        if category in _OPERATORS and _is_operator(name, category):
            return name
        return self.regions.name(name)

    def outer(self, key: str, value: str) -> str | None:
        """Return the sanitized text of a field that is neither name nor arguments."""
        if key == "cat":
            return value if value in _CATEGORIES else "other"
        if key in ("pid", "tid"):
            return self._lane(value)
        if key == "caller":
            short = self.paths.frame(value)
            return short if _CALLER.fullmatch(short) else None
        if key in ("ph", "s"):
            return value if len(value) == 1 else None
        return value if _NUMBER.fullmatch(value.strip()) else None

    def argument(self, key: str, value: Any, event: str) -> Any:  # noqa: ANN401 - JSON
        """Return an argument of an event, or None if it is not known to be harmless."""
        if key in _INPUTS:
            return _INPUTS[key](value)
        if key in _NUMBERS:
            entries = value if isinstance(value, list) else [value]
            is_plain = _is_list(value) or all(map(_is_number, entries))
            return value if is_plain else None
        if not isinstance(value, str):
            return None
        if key == "Call stack":
            return ";".join(self.frame(frame) for frame in value.split(";"))
        if key in _GROUPS:
            return _of_group(key, value)
        return _of_metadata(key, value, event)

    def _lane(self, value: str) -> str:
        if _LANE.fullmatch(value):
            return value
        return self._lanes.setdefault(value, f"lane-{len(self._lanes) + 1}")


def _is_operator(name: str, category: str) -> bool:
    # Before torch 1.10 a region was an operator like any other.
    telling = category != "Operator" or "::" in name or "Backward" in name
    return telling and bool(_OPERATOR.fullmatch(name))


def _is_list(value: object) -> bool:
    """Return whether it is a list of numbers in quotes, as of a group's ranks."""
    return isinstance(value, str) and bool(_QUOTED_LIST.fullmatch(value))


def _of_group(key: str, value: str) -> str | None:
    """Return a text of a collective; another name is the same on all ranks."""
    if _GROUPS[key].fullmatch(value):
        return value
    if key == "Collective name":
        return None
    return f"group-{hashlib.sha256(value.encode()).hexdigest()[:8]}"


def _of_metadata(key: str, value: str, event: str) -> str | None:
    """Return the name or the label of a process or thread."""
    if (event, key) == ("process_labels", "labels"):
        return value if _LABELS.fullmatch(value) else None
    if (event, key) == ("process_name", "name"):
        return value if _PROCESS.fullmatch(value) else "process"
    if (event, key) == ("thread_name", "name"):
        match = _THREAD_NUMBER.match(value)
        thread = value if _THREAD.fullmatch(value) else None
        return thread or (match[0] if match else "thread")
    return None
