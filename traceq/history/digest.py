"""Digest of a run: the data that outlives its files.

Numbers are per step; times are nanoseconds and sizes bytes. Stored as JSON: a field may
be added at any time, ``VERSION`` is raised when one is renamed or removed.
"""

from __future__ import annotations

import zlib
from typing import Literal

import msgspec
from msgspec import Struct

VERSION = 1
# A digest of a large model is 30 kB; more than this is not one of ours.
_LARGEST = 8 << 20

StepFrom = Literal["measured", "estimated", "recorded"]


class StepTime(Struct, frozen=True):
    """Duration of a step, with its spread."""

    ns: float
    """The mean; as recorded, the median."""
    deviation_ns: float
    """Standard deviation of single steps; 0 if it is not known."""
    count: int
    """Number of steps."""
    source: StepFrom
    """Measured without the profiler, estimated without it, or as recorded."""


class Cause(Struct, frozen=True):
    """A part of the account of the step, as ``moving memory``."""

    name: str
    ns: float


class DigestFinding(Struct, frozen=True):
    """All findings of one fingerprint."""

    fingerprint: str
    code: str
    name: str
    """Name of the rule, as implicit-device-sync."""
    where: str
    """File and function, or module, without the line."""
    subject: str
    count: int
    saves_ns: int
    cost_bytes: int


class Work(Struct, frozen=True):
    """GPU work of one op in one module and function, with the waits around it."""

    phase: str
    module: str
    """Path of the module without numbers of layers; empty outside of modules."""
    where: str
    """File and function."""
    op: str
    role: str
    """``compute``, ``cast`` or ``copy``."""
    kernel: str
    """Family of the kernel that takes most of it."""
    calls: float
    kernels: float
    gpu_ns: float
    idle_ns: float
    """Idle time of the GPU before its kernels."""
    syncs: float
    sync_ns: float
    """Idle time of the GPU after its syncs."""


class Held(Struct, frozen=True):
    """Memory of one category that is live at the peak, by the line that made it."""

    category: str
    where: str
    size: int


class Memory(Struct, frozen=True):
    """Peak of the GPU's memory; of several ranks the highest."""

    allocated: int
    reserved: int | None = None
    held: tuple[Held, ...] = ()
    """Live memory at the peak, largest first; empty without a memory snapshot."""


class Digest(Struct, frozen=True, kw_only=True):
    """All that is kept of one run."""

    version: int = VERSION
    traceq: str
    """Version of traceq that made the digest."""
    name: str
    """The path that was given."""
    series: str
    """Name of what is measured: runs of one series are compared."""
    at_ns: int
    """Unix time of the commit, else of the recording: the order of runs."""
    commit: str = ""
    dirty: bool = False
    """True if files differed from the commit."""
    gpu: str = ""
    ranks: int = 1
    versions: dict[str, str] = {}
    """Versions of torch, CUDA, the driver, and others that the recording names."""
    step: StepTime | None = None
    by: str = ""
    """Bound of the step: gpu or host."""
    busy_ns: float | None = None
    idle_ns: float | None = None
    causes: tuple[Cause, ...] = ()
    """Account of the step, longest first."""
    kernels: float | None = None
    syncs: float | None = None
    findings: tuple[DigestFinding, ...] = ()
    work: tuple[Work, ...] = ()
    """Work by module, function and op, most GPU time first."""
    memory: Memory | None = None


_decoder = msgspec.json.Decoder(Digest)


def packed(digest: Digest) -> bytes:
    """Return the bytes that are stored."""
    return zlib.compress(msgspec.json.encode(digest), 9)


def unpacked(content: bytes) -> Digest:
    """Return the digest of stored bytes; raise ``ValueError`` if they are none."""
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(content, _LARGEST)
        if not reader.eof:
            msg = "it is cut, or too large"
            raise ValueError(msg)
        digest = _decoder.decode(text)
    except (zlib.error, msgspec.MsgspecError, TypeError) as error:
        raise ValueError(str(error)) from None
    if digest.version != VERSION:
        msg = f"it has version {digest.version}, not {VERSION}"
        raise ValueError(msg)
    return digest
