"""The part of hydra that the program uses: its configuration and ``instantiate``."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable


class Config(dict):
    """A dictionary with attributes; ``${name}`` stands for another value."""

    root: Config

    def __getattr__(self, name: str) -> object:
        value = self[name]
        if isinstance(value, dict):
            value = self[name] = Config(value) if type(value) is dict else value
        if not isinstance(value, str):
            return value
        if other := re.fullmatch(r"\$\{([\w.]+)\}", value):
            value = Config.root
            for part in other[1].split("."):
                value = getattr(value, part)
            return value
        return float(value) if re.fullmatch(r"[\d.]+e-?\d+", value) else value

    def __setattr__(self, name: str, value: object) -> None:
        self[name] = value


def main(config_path: str, *, strict: bool) -> Callable:
    """Call the function with the configuration, and the values of the command line."""
    del strict
    folder = Path(config_path).parent

    def decorate(function: Callable) -> Callable:
        values = yaml.safe_load(Path(config_path).read_text())
        for group in values.pop("defaults"):
            for name, choice in group.items():
                text = (folder / name / f"{choice}.yaml").read_text()
                values.update(yaml.safe_load(text))
        for word in sys.argv[1:]:
            name, value = word.split("=")
            values[name] = yaml.safe_load(value)
        Config.root = Config(values)
        return lambda: function(Config.root)

    return decorate


def _instantiate(config: Config) -> object:
    module, name = config["class"].rsplit(".", 1)
    parameters = {key: getattr(config.params, key) for key in config.params}
    return getattr(importlib.import_module(module), name)(**parameters)


utils = SimpleNamespace(instantiate=_instantiate)
