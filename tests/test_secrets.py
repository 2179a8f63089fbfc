"""Secrets of a command line and of a log are not stored; what is harmless stays."""

from __future__ import annotations

import json
import shlex
import sys
import warnings
from typing import TYPE_CHECKING

import pytest
from collecting import collect, module
from command_lines import HARMLESS, SECRET

if TYPE_CHECKING:
    from pathlib import Path

redact = module("shared.redact")


def test_there_are_two_hundred_command_lines() -> None:
    assert len({*HARMLESS, *(line for line, _ in SECRET)}) >= 200


def test_no_secret_of_a_command_line_is_kept() -> None:
    retained = [
        line
        for line, word in SECRET
        if word in " ".join(redact.arguments(shlex.split(line)))
    ]

    assert retained == []


def test_harmless_command_lines_stay_whole() -> None:
    changed = [
        (line, redact.arguments(shlex.split(line)))
        for line in HARMLESS
        if redact.arguments(shlex.split(line)) != shlex.split(line)
    ]

    assert changed == []


def test_what_is_redacted_stays_as_it_is() -> None:
    for line, _ in SECRET:
        shown = redact.arguments(shlex.split(line))
        assert redact.arguments(shown) == shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("db -p hunter2", ["db", "-p", "[redacted]"]),
        ("serve -p 8080", ["serve", "-p", "8080"]),
        ("sh -c 'db -p hunter2'", ["sh", "-c", "db -p [redacted]"]),
    ],
)
def test_what_follows_p_is_a_password_unless_it_is_a_port(
    line: str, shown: list[str]
) -> None:
    assert redact.arguments(shlex.split(line)) == shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Authorization: Bearer abcdefgh", "Authorization: [redacted]"),
        ("using HF_TOKEN=hf_abcdefghijk", "using HF_TOKEN=[redacted]"),
        ("password: hunter2", "password: [redacted]"),
        ("api_key='a1b2c3d4e5'", "api_key='[redacted]'"),
        ("GET https://x.org/a?sig=abc 200", "GET https://x.org/a?[redacted] 200"),
        ("clone https://ann:abc@x.org/a", "clone https://[redacted]@x.org/a"),
        ("a.py:7: UserWarning: called", None),
        ("Token indices sequence length is longer", None),
        ("pad_token: <pad>, eos_token='</s>'", None),
        ("token: 4096, tokens/s: 12.5, key: layer", None),
        ("loss=0.1 lr=0.001 step=10 key=attention", None),
        ("unexpected key: model.layers.0.weight", None),
        ("/cache/torchinductor/jh/cjhfortg3rh4rdpxoobxasetiaqp3hwo7iqgsxfr.py", None),
        ("logged in with aB3dE5gH7jK9mN1pQ3sT5vX7", "logged in with [redacted]"),
        ("'Zx81qLm02KpVt47RbYw9'", "'[redacted]'"),
        ("at 2e43b17f88dff30ef0d2fdf3692fb6a142ab1ed5 (main)", None),
        (
            "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            None,
        ),
        ("fx graph cache hit for key fjxlqsd3q5jvnzgcg7p4fy2ezk7mkzf4q2jy7", None),
        ("GPU-8f2a1b3c-4d5e-6f70-8192-a3b4c5d6e7f8 at 0x7F3aB2c4D5e6", None),
        ("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15FillFunctorE", None),
        ("Cijk_Ailk_Bljk_HHS_BH_Bias_AS_SAV_UserArgs_MT128x128x32_MI16x16x1", None),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT BiasBF16Relu128x64x32x4", None),
        ("/mnt/aB3dE5gH7jK9mN1pQ3sT5vX7/train.py:3: UserWarning: slow", None),
        ("at::native::BatchNormUpdateOutputKernel2dNHWC<float>", None),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs4096)", None),
    ],
)
def test_a_log_loses_what_looks_like_a_credential(line: str, shown: str | None) -> None:
    assert redact.log(line) == (shown or line)


@pytest.mark.parametrize(
    ("argument", "shown"),
    [("/home/ann/x", "~/x"), ("/home/ann", "~"), ("/work/x", "x"), ("/", ".")],
)
def test_a_folder_is_never_absolute(argument: str, shown: str) -> None:
    assert redact.folder(argument, home="/home/ann") == shown


@pytest.mark.slow
@pytest.mark.parametrize("part", ["a", "a=", "://", "-a ", "token=<", "Ab"])
def test_a_long_line_ends_in_linear_time(part: str) -> None:
    text = part * 50_000

    assert redact.log(text) == text


def test_warnings_are_kept_without_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[object] = []
    monkeypatch.setattr(warnings, "showwarning", lambda *given: shown.append(given[0]))
    log = module("agent.warning_log").WarningLog()
    log.open(tmp_path / "rank-0.log")
    log.install()

    warnings.showwarning("HF_TOKEN=hf_abcdefghijk", UserWarning, "a.py", 7)

    text = (tmp_path / "rank-0.log").read_text()
    assert text.startswith("a.py:7: UserWarning: HF_TOKEN=[redacted]")
    assert shown == ["HF_TOKEN=hf_abcdefghijk"]


@pytest.mark.real
def test_neither_run_nor_log_has_a_secret(tmp_path: Path) -> None:
    program = "import sys; sys.stderr.write('token=' + 'a1b2c3d4e5' + '\\nBear')"
    program += "; sys.stderr.flush(); sys.stderr.write('er zzzz9999\\nplain')"
    command = [sys.executable, "-c", program, "--token", "hunter2"]
    run = collect(tmp_path, command, ("--label", "token=hunter2", "--label", "n=3"))
    facts = json.dumps(run.facts)

    assert "hunter2" not in facts
    assert run.facts["labels"] == {"token": "[redacted]", "n": "3"}
    assert run.facts["cwd"] == tmp_path.name
    log = (run.folder / "stderr.log").read_text()
    assert log == "token=[redacted]\nBearer [redacted]\nplain"
