from collections.abc import Callable

INTERFACE: int

def return_freed(size: int, /) -> None: ...

class Scanner:
    def __init__(
        self,
        separator: bytes,
        classify: Callable[[bytes], int],
        tables: list[tuple[int, int, list[tuple[bytes, int, int, bool, bool]]]],
        seed: int,
        /,
    ) -> None: ...
    def feed(
        self, block: bytes, start: int, end: int, /
    ) -> tuple[int, int, list[tuple[int, bytes]]]: ...
    def take(self, table: int, /) -> tuple[object, object]: ...
    def heads(self) -> list[str]: ...
    def texts(self, table: int, column: int, /) -> list[str]: ...
