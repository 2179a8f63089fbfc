"""Exceptions of traceq, in one hierarchy.

::

    TraceqError          the command ends with its message and exit status 2
    ├── InputError       a file that cannot be read as what it should be
    ├── UsageError       a request that makes no sense for this trace
    ├── ConfigError      a configuration that cannot be followed
    ├── PackError        a folder of rules that cannot be used
    └── InstallError     a copy of traceq that lacks a part of itself

Every message is one sentence that names the file and ends in what to do. Any
other exception that reaches the user is a bug and shows its traceback.
"""

from __future__ import annotations


class TraceqError(Exception):
    """Something that traceq can explain to the user in one sentence."""


class InputError(TraceqError):
    """A file that cannot be read as what it should be."""


class UsageError(TraceqError):
    """A request that makes no sense for this trace."""


class ConfigError(TraceqError):
    """A configuration that cannot be followed."""


class PackError(TraceqError):
    """A folder of rules that cannot be used."""


class InstallError(TraceqError):
    """A copy of traceq that lacks a part of itself."""
