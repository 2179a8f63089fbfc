"""Damaged exports of Nsight Systems are read or refused, whatever is in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from nsys_mutated import mutated
from nsys_tables import write_export
from recordings import path_of

from traceq.errors import InputError
from traceq.formats.chrome import read
from traceq.inputs.load_trace import load

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("export") / "whole.sqlite"
    write_export(file, read(path_of("copies_fixed.trace.json.gz")))
    return file


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_export_is_read_or_refused_in_a_sentence(
    whole: Path, tmp_path: Path, seed: int
) -> None:
    file = tmp_path / "report.sqlite"
    mutated(whole, file, seed)
    sentence = ""
    try:
        load(file, cache=False)
    except InputError as error:
        sentence = str(error)
    assert "\n" not in sentence
