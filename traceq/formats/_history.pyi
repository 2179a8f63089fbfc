INTERFACE: int

def events(
    data: bytes,
    begin: int,
    end: int,
    known: dict[bytes, int],
    places: int,
    implicit: bool,
    /,
) -> tuple[int, bytes, list[tuple[bytes, bool, bytes]]]: ...
