"""Owner of a source file: the user, a library, or torch and Python."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl
import pytest
from collecting import COLLECT
from command import traceq
from linting import bundled_rules

import traceq as api
from traceq.errors import ConfigError
from traceq.linter.config import own_names, read_config
from traceq.linter.library_findings import with_libraries
from traceq.linter.run import Ran
from traceq.model.finding import Place
from traceq.model.names import describe_frames
from traceq.model.owners import Owners
from traceq.testing import draw, load_drawn

if TYPE_CHECKING:
    from pathlib import Path

LLAMA = """
host   [train.py(9): main                                                      ]
host    [transformers/models/llama/modeling_llama.py(62): forward             ]
host     [torch/nn/functional.py(3): silu]  [model.py(4): hook        ]
host      [aten::silu         ]              [aten::mm               ]
host        [cudaLaunchKernel>1]               [cudaLaunchKernel>2]
gpu 7             [silu<1     ]                           [gemm<2     ]
"""


def own(*names: str, owners: Owners | None = None) -> list[bool]:
    frames = describe_frames(pl.Series(names), owners or Owners())
    return frames["own"].to_list()


def test_a_package_called_as_a_library_is_own_if_a_forward_is_in_it() -> None:
    assert own("hydra/main.py(9): decorated_main") == [False]
    assert own("hydra/net.py(9): forward", "hydra/main.py(9): main") == [True, True]
    # Some libraries do have modules.
    assert own("timm/vit.py(9): forward") == [False]


def test_every_folder_of_collect_that_runs_in_the_program_is_the_recorders() -> None:
    folders = {file.parent.name for file in COLLECT.glob("*/*.py")} - {
        "launcher",
        "overhead",
    }

    frames = [f"/a/collect/{folder}/x.py(9): wrapped" for folder in sorted(folders)]
    assert frames
    assert own(*frames) == [False] * len(frames)


def test_what_torch_geometric_writes_for_a_layer_is_its_own() -> None:
    written = "/var/t/torch_geometric.nn.conv.gat_conv_GATConv_edge_updater_jr3zw5uk.py"
    (result,) = describe_frames(
        pl.Series([f"{written}(35): edge_collect"]), Owners()
    ).iter_rows(named=True)

    assert not result["own"]
    assert result["library"] == (
        "torch_geometric/nn.conv.gat_conv_GATConv_edge_updater.py"
    )


def test_what_the_user_says_goes_before_names_and_paths() -> None:
    owners = Owners(said=frozenset({"transformers"}))

    assert own("transformers/trainer.py(1): train", owners=owners) == [True]
    fork = "/env/lib/python3.11/site-packages/transformers/trainer.py(1): train"
    assert own(fork, owners=owners) == [True]
    assert own("<string>(1): <lambda>", owners=owners) == [False]


def test_what_collect_saw_goes_before_the_lists() -> None:
    seen = Owners(own=frozenset({"timm", "random"}), installed=frozenset({"mylib"}))

    assert own("timm/vit.py(9): forward", owners=seen) == [True]
    assert own("random.py(9): shuffle", owners=seen) == [True]
    assert own("mylib/net.py(9): forward", owners=seen) == [False]
    # Torch is never the user's, even where it lies in the repository.
    torch = Owners(own=frozenset({"torch"}))
    assert own("torch/nn/modules/linear.py(1): forward", owners=torch) == [False]


def test_an_op_inside_a_library_has_both_the_users_function_and_the_librarys() -> None:
    ops = load_drawn(LLAMA).ops.sort("ts")

    assert ops.select(pl.col("name", "file", "via").cast(pl.String)).rows() == [
        (
            "aten::silu",
            "train.py",
            "forward (transformers/models/llama/modeling_llama.py:62)",
        ),
        # The library calls the user's function: that one is the place.
        ("aten::mm", "model.py", None),
    ]


def test_what_is_said_to_be_own_changes_the_tables_that_are_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEQ_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(draw(LLAMA)))

    first = api.load(file)
    document = api.load(file, own=["transformers"])
    again = api.load(file)

    where = pl.col("name") == "aten::silu"
    assert [
        trace.ops.filter(where)["file"].item() for trace in (first, document, again)
    ] == [
        "train.py",
        "transformers/models/llama/modeling_llama.py",
        "train.py",
    ]


def test_own_code_is_names_packages_or_a_folder_of_them(tmp_path: Path) -> None:
    (tmp_path / "src" / "hydra").mkdir(parents=True)
    (tmp_path / "src" / "tool.py").touch()
    (tmp_path / "lib" / "rich").mkdir(parents=True)
    (tmp_path / "lib" / "rich" / "__init__.py").touch()

    result = own_names(["click", "src", "lib/rich", "train.py"], tmp_path)

    assert result == {"click", "src", "hydra", "tool", "rich", "train"}


def test_own_code_of_the_configuration_is_a_list(tmp_path: Path) -> None:
    file = tmp_path / "traceq.toml"
    file.write_text('own-code = ["hydra"]')
    assert read_config(file).own_code == {"hydra"}

    file.write_text('own-code = "hydra"')
    with pytest.raises(ConfigError, match="own-code must be a list of texts"):
        read_config(file)


@pytest.mark.real
def test_the_command_line_says_what_is_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.json").write_text(json.dumps(draw(LLAMA)))
    sql = "SELECT file FROM ops WHERE name = 'aten::silu'"

    without = traceq("query", "trace.json", sql, "--format", "csv").out
    said = traceq(
        *("query", "trace.json", sql, "--format", "csv"), "--own", "transformers"
    ).out
    (tmp_path / "traceq.toml").write_text('own-code = ["transformers"]')
    configured = traceq("query", "trace.json", sql, "--format", "csv").out

    assert without.split() == ["file", "train.py"]
    assert said == configured
    assert "modeling_llama.py" in said


def test_a_finding_of_a_rule_that_knows_no_library_names_it_all_the_same() -> None:
    trace = load_drawn(LLAMA)
    rule = bundled_rules()["LCH001"]
    finding = rule().finding("slow", subject="x", ops=[0])
    placed = replace(finding, place=Place("train.py", 9, "main"))
    ran = with_libraries(Ran((finding, placed), (), ()), trace)

    # What is about the whole program is in no library.
    assert [item.place.via for item in ran.findings] == [
        None,
        "forward (transformers/models/llama/modeling_llama.py:62)",
    ]
    assert ran.findings[1].fingerprint != placed.fingerprint


PROGRAM = """
import json, sys
sys.path.insert(0, {agent!r})
sys.path.insert(0, "src")
import hydra, helper
import packages
print(json.dumps(packages.packages()))
"""


def test_collect_tells_own_packages_from_installed_ones_by_name(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "src" / "hydra").mkdir(parents=True)
    (tmp_path / "src" / "hydra" / "__init__.py").touch()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "helper.py").touch()
    script = tmp_path / "scripts" / "train.py"
    script.write_text(PROGRAM.format(agent=str(COLLECT / "agent")))

    out = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    document = json.loads(out)

    assert {"hydra", "helper", "train"} <= {*document["own"]}
    assert "json" in document["installed"]
    assert not {*document["own"]} & {*document["installed"]}
    assert "/" not in out
