"""Build the native extension where there is a compiler, and do without else.

It works with every CPython from 3.10 on (the limited API). TRACEQ_BUILD_PURE=1
leaves it out, for the wheel that installs everywhere.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PACKAGE = Path("traceq/native")
_EXTENSION = "_native"


class CompiledHook(BuildHookInterface):
    """Adds it to wheels, and puts it beside its sources in a checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build it before the wheel is made."""
        if os.environ.get("TRACEQ_BUILD_PURE") or sysconfig.get_config_var(
            "Py_GIL_DISABLED"
        ):
            return
        folder = Path(self.root if version == "editable" else mkdtemp()) / _PACKAGE
        try:
            file = _built(Path(self.root) / _PACKAGE, folder)
        except Exception as error:  # noqa: BLE001 - no compiler, no headers, no room
            self.app.display_warning(
                f"compiled code was not built ({error}): traceq works without"
                " it, and takes longer"
            )
            return
        if version != "editable":
            build_data["force_include"][str(file)] = str(_PACKAGE / file.name)
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp310-abi3-{platform}"


def _built(sources: Path, folder: Path) -> Path:
    """Compile the extension, and return its file; raise whatever goes wrong."""
    from setuptools import Distribution, Extension  # noqa: PLC0415 - where needed

    # A product and a sum are rounded one after the other, as Polars does, on processors
    # that could do both at once, too: results are the same to the last digit.
    flags = [] if os.name == "nt" else ["-ffp-contract=off"]
    extension = Extension(
        _EXTENSION,
        sorted(map(str, sources.glob("*.c"))),
        depends=sorted(map(str, sources.glob("*.h"))),
        py_limited_api=True,
        extra_compile_args=flags,
    )
    command = Distribution({"ext_modules": [extension]}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(folder), mkdtemp()
    command.ensure_finalized()
    command.run()
    return folder / command.get_ext_filename(_EXTENSION)
