"""Options and arguments, declared in the signatures of commands.

``Annotated[TYPE, Option(...)]`` says what a user may write; the type says what becomes
of it: a flag, a number, one of an Enum's values, a path, or several in a list.
"""

from __future__ import annotations

import typing
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from click.shell_completion import CompletionItem

    Completes = Callable[[str], Iterable[tuple[str, str]]]


class Declared:
    """What an option or an argument is called and takes, as its command declares it."""

    def __init__(  # noqa: PLR0913 - a parameter has this many sides
        self,
        *names: str,
        help: str = "",  # noqa: A002 - as in click
        metavar: str | None = None,
        hidden: bool = False,
        at_least: float | None = None,
        exists: bool = False,
        file_okay: bool = True,
        dir_okay: bool = True,
        parser: Callable[[str], Any] | None = None,
        completes: Completes | None = None,
    ) -> None:
        """Declare it; without names it is called as the function's parameter is."""
        self.names = names
        self.help = help
        self.metavar = metavar
        self.hidden = hidden
        self.at_least = at_least
        self.path = click.Path(
            exists=exists, file_okay=file_okay, dir_okay=dir_okay, path_type=Path
        )
        self.parser = parser
        self.completes = completes

    def type_of(self, kind: Any) -> Any:  # noqa: ANN401 - of an annotation
        """Return how click reads a value."""
        if self.parser:
            return _Parsed(self.parser)
        if issubclass(kind, Enum):
            return click.Choice([one.value for one in kind])
        if issubclass(kind, Path):
            return self.path
        if self.at_least is not None:
            ranged: Any = click.IntRange if kind is int else click.FloatRange
            return ranged(min=self.at_least)
        return click.types.convert_type(kind)

    def completion(self) -> Any:  # noqa: ANN401 - as click wants it
        """Return how click completes a value, where the declaration says it."""
        if self.completes is None:
            return None
        completes = self.completes

        def complete(
            _context: click.Context, _parameter: click.Parameter, incomplete: str
        ) -> list[CompletionItem]:
            from click.shell_completion import CompletionItem

            return [
                CompletionItem(one, help=name) for one, name in completes(incomplete)
            ]

        return complete


class Option(Declared):
    """An option: --name VALUE."""


class Argument(Declared):
    """An argument, which is known by its place."""


class _Parsed(click.types.FuncParamType):  # type: ignore[type-arg]  # in new clicks
    """A value that a function reads; it stands for a file."""

    def shell_complete(
        self, _context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="file")]


def parameters_of(
    function: Callable[..., None],
) -> tuple[list[click.Parameter], Callable[..., None]]:
    """Return the parameters that a function declares, and what takes their values."""
    defaults = _defaults(function)
    kinds = typing.get_type_hints(function, include_extras=True)
    kinds.pop("return", None)
    declared = {key: _unwrapped(kind) for key, kind in kinds.items()}
    parameters = [
        _parameter(key, kind, said, defaults.get(key, ...))
        for key, (kind, said) in declared.items()
    ]

    def call(**given: Any) -> None:  # noqa: ANN401 - what the signature says
        function(
            **{
                key: _value(value, declared[key][0], defaults.get(key))
                for key, value in given.items()
            }
        )

    return parameters, call


def _defaults(function: Callable[..., None]) -> dict[str, Any]:
    """Return the defaults of a function's parameters."""
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    last = function.__defaults__ or ()
    return dict(zip(positional[len(positional) - len(last) :], last, strict=True)) | (
        function.__kwdefaults__ or {}
    )


def _unwrapped(kind: Any) -> tuple[Any, Declared]:  # noqa: ANN401 - an annotation
    """Return the type of a parameter, without None, and its declaration."""
    # Python 3.10 puts a union with None around what has None as its default.
    if typing.get_origin(kind) is typing.Union:
        kind = typing.get_args(kind)[0]
    kind, said = kind.__origin__, kind.__metadata__[0]
    if typing.get_origin(kind) in (UnionType, typing.Union):
        kind = next(one for one in typing.get_args(kind) if one is not NoneType)
    return kind, said


def _parameter(
    key: str,
    kind: Any,  # noqa: ANN401 - an annotation
    said: Declared,
    default: Any,  # noqa: ANN401 - of any type
) -> click.Parameter:
    required = default is ...
    several = typing.get_origin(kind)
    one, *others = typing.get_args(kind) or (kind,)
    settings: dict[str, Any] = {
        "type": said.type_of(one),
        "required": required,
        "metavar": said.metavar,
        "shell_complete": said.completion(),
    }
    if not required and several is None:
        settings["default"] = default.value if isinstance(default, Enum) else default
    if isinstance(said, Argument):
        settings["nargs"] = -1 if several is list else 1
        return _ExplainedArgument([key], help=said.help, **settings)
    if kind is bool:
        del settings["type"], settings["metavar"]
        settings["is_flag"] = True
    elif several is list:
        settings["multiple"] = True
    elif others:
        settings["nargs"] = 1 + len(others)
    names = said.names or (f"--{key.replace('_', '-')}",)
    return click.Option(
        [*names, key],
        help=said.help,
        hidden=said.hidden,
        show_default=not required and default is not None and kind is not bool,
        **settings,
    )


def _value(value: Any, kind: Any, default: Any) -> Any:  # noqa: ANN401 - any type
    """Return a value as the function's signature has it."""
    several = typing.get_origin(kind)
    if several is list:
        return list(value) if value else default
    if several is None and issubclass(kind, Enum):
        return kind(value)
    return value


class _ExplainedArgument(click.Argument):
    """An argument that the help lists and explains."""

    def __init__(self, names: list[str], *, help: str, **settings: Any) -> None:  # noqa: A002, ANN401
        super().__init__(names, **settings)
        self.said = help
        self.shown = str(self.metavar or names[0].upper())

    def get_help_record(self, _context: click.Context) -> tuple[str, str]:
        return self.shown, self.said

    def get_usage_pieces(self, _context: click.Context) -> list[str]:
        several = "..." if self.nargs == -1 else ""
        shown = self.shown if self.required else f"[{self.shown}]"
        return [shown + several]
