"""The launcher and its folder, without torch: names, secrets, Pythons, terminals."""

from __future__ import annotations

import ast
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from collecting import (
    COLLECT,
    Run,
    collect,
    collect_program,
    environment,
    module,
    words,
)
from command import traceq

run_folder = module("launcher.run_folder")
options = module("launcher.options")
redact = module("shared.redact")
run_facts = module("launcher.run_facts")
launch = module("launcher.launch")
recorded_parts = module("launcher.recorded_parts")

OLDEST = 6
SUPPORTED = range(9, 14)


@cache
def find_python(minor: int) -> str | None:
    """Return a Python of this machine that starts, of a minor version."""
    if minor == sys.version_info.minor:
        return sys.executable
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    retained = [str(item) for item in root.glob(f"3.{minor}.*/bin/python")]
    for path in [shutil.which(f"python3.{minor}"), *retained]:
        if path and _starts(path):
            return path
    return None


def python_of(minor: int) -> str:
    """Return a Python of a minor version, or skip."""
    text = find_python(minor)
    if text is None:
        pytest.skip(f"no Python 3.{minor} is on this machine")
    return text


def _starts(python: str) -> bool:
    done = subprocess.run([python, "-c", ""], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.real
@pytest.mark.parametrize("minor", SUPPORTED)
@pytest.mark.slow
def test_launcher_and_agent_run_on_each_python(minor: int, tmp_path: Path) -> None:
    python = python_of(minor)
    code = "import sys; print(sorted(n for n in sys.modules if 'traceq' in n))"
    out = ["--out", str(tmp_path / "out"), "--name", "run"]
    done = subprocess.run(
        [python, str(COLLECT), *out, "--", python, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert "never imported torch" in done.stderr
    assert ast.literal_eval(done.stdout) == [
        "_traceq_agent",
        "_traceq_agent.agent",
        "_traceq_agent.agent.after_import",
        "_traceq_agent.agent.hook",
        "_traceq_agent.agent.stand_in",
        "_traceq_agent.shared",
        "_traceq_agent.shared.own_numbers",
        "_traceq_agent.shared.status_files",
    ]


@pytest.mark.real
@pytest.mark.parametrize("minor", SUPPORTED)
@pytest.mark.slow
def test_every_module_compiles_on_each_python(minor: int, tmp_path: Path) -> None:
    shutil.copytree(COLLECT, tmp_path / "collect")
    command = [python_of(minor), "-m", "compileall", "-q", str(tmp_path / "collect")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.real
@pytest.mark.parametrize("minor", range(OLDEST, min(SUPPORTED)))
@pytest.mark.slow
def test_a_python_too_old_for_us_is_left_in_peace(minor: int, tmp_path: Path) -> None:
    run = collect(tmp_path, [python_of(minor), "-c", "print('ran')"])
    assert run.out == "ran\n"
    assert (run.folder / "stderr.log").read_text() == ""


@pytest.mark.collect
def test_a_copy_of_the_folder_works_where_traceq_is_not_installed(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    shutil.copytree(COLLECT, tmp_path / "elsewhere")
    program = (
        "import importlib.util, torch\n"
        "layer = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)\n"
        "for _ in range(9):\n"
        "    layer(torch.ones(2)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    (tmp_path / "program.py").write_text(program)
    oldest = next(filter(None, map(find_python, SUPPORTED)))
    # -I and -S: neither the working directory nor site-packages, and so no traceq.
    launcher = [oldest, "-I", "-S", "elsewhere", "--name", "run", "--warmup", "1"]
    command = ["--timed", "2", "--active", "1", "--", sys.executable, "program.py"]
    done = subprocess.run(
        [*launcher, *command],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    run = Run(done.returncode, done.stdout, done.stderr, tmp_path / "traceq-runs/run")
    assert run.status == 0, run.err
    assert len(run.step_names()) == 1


@pytest.mark.real
def test_the_command_of_traceq_is_the_same_one(tmp_path: Path) -> None:
    answer = traceq("collect", "--help")
    assert answer.status == 0
    assert "traceq collect -- python train.py" in answer.out
    alone = [sys.executable, str(COLLECT), "--help"]
    done = subprocess.run(
        alone, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    shown = os.environ.get("COLUMNS")
    if shown is None:
        assert done.stdout.replace("python collect", "traceq collect") == answer.out


@pytest.mark.real
def test_traceq_collect_passes_every_word_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "import sys; print(sys.argv[1:]); sys.exit(3)"
    command = [sys.executable, "-c", code, "--help", "--", "-x"]
    answer = traceq("collect", "--out", str(tmp_path), "--", *command)
    assert answer.status == 3
    assert capfd.readouterr().out == "['--help', '--', '-x']\n"


@pytest.mark.real
def test_a_command_that_does_not_exist_is_a_shells_127(tmp_path: Path) -> None:
    run = collect(tmp_path, ["no-such-command"])
    assert run.status == 127
    assert "cannot run no-such-command: No such file" in run.err
    assert "nothing was recorded: the program did not start" in run.err


@pytest.mark.real
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_changes_no_exit_status(tmp_path: Path, closed: str) -> None:
    command = shlex.join(words(tmp_path, ["sh", "-c", "exit 3"]))
    assert (
        subprocess.run(["bash", "-c", f"{command} {closed}"], check=False).returncode
        == 3
    )
    assert Run(3, "", "", tmp_path / "out" / "run").facts["exit"]["status"] == 3


def test_a_named_run_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out" / "run").mkdir(parents=True)
    run = collect(tmp_path, [sys.executable, "-c", "print('ran')"])
    assert (run.status, run.out) == (2, "")
    assert "runs are not overwritten" in run.err
    assert run.files == set()


def test_a_run_without_a_name_gets_the_next_free_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_folder, "default_name", lambda _: "train")
    made = [run_folder.create(tmp_path, None, ["python"], None).name for _ in range(3)]
    assert made == ["train", "train-2", "train-3"]


def test_launchers_of_several_nodes_share_a_named_folder(tmp_path: Path) -> None:
    first = run_folder.create(tmp_path, "run", [], 1)
    (first / run_folder.run_file(1)).touch()
    assert run_folder.create(tmp_path, "run", [], 0) == first
    with pytest.raises(run_folder.TakenError):
        run_folder.create(tmp_path, "run", [], 1)
    assert run_folder.run_file(0) == "run.json"
    assert run_folder.run_file(1) == "run.node-1.json"


@pytest.mark.parametrize(
    ("command", "env", "index"),
    [
        (["torchrun", "train.py"], {}, None),
        (["torchrun", "--node-rank=2", "train.py"], {}, 2),
        (["torchrun", "--node_rank", "3", "train.py"], {}, 3),
        (["accelerate", "launch", "--machine_rank", "1", "train.py"], {}, 1),
        (["python", "train.py"], {"RANK": "5"}, 5),
        (["python", "train.py"], {"SLURM_PROCID": "4", "SLURM_NTASKS": "8"}, None),
        (
            ["python", "train.py"],
            {"SLURM_PROCID": "4", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0"},
            4,
        ),
    ],
)
def test_which_launcher_of_several_this_is(
    command: list[str], env: dict[str, str], index: int | None
) -> None:
    assert run_folder.launch_index(command, env) == index


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "code/train.py", "--x"], "train"),
        (["python3.11", "-m", "my.trainer"], "my"),
        (["torchrun", "--nproc-per-node", "2", "train.py"], "train"),
        (["bash", "run.sh"], "run"),
        (["accelerate", "launch", "train.py"], "train"),
        (["uv", "run", "my-trainer", "--x"], "my-trainer"),
        (["./train"], "train"),
        (["python"], "python"),
    ],
)
def test_a_run_is_named_after_the_program(command: list[str], name: str) -> None:
    assert run_folder.program_name(command) == name


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ("--lr 0.1 --batch 32", "--lr 0.1 --batch 32"),
        ("--token abc --x", "--token [redacted] --x"),
        ("--api-key=abc", "--api-key=[redacted]"),
        ("--wandb_key abc", "--wandb_key [redacted]"),
        ("db.password=abc", "db.password=[redacted]"),
        ("--auth abc", "--auth [redacted]"),
        ("--max-tokens 512", "--max-tokens 512"),
        ("--tokenizer gpt2", "--tokenizer gpt2"),
        ("--use-token --x", "--use-token --x"),
        ("hf_abcdefghij", "[redacted]"),
        ("--x=sk-abcdefgh1234", "--x=[redacted]"),
        ("ghp_abcdefghij", "[redacted]"),
        ("AKIAABCDEFGHIJ", "[redacted]"),
        ("s3://me:word@host/x", "s3://[redacted]@host/x"),
    ],
)
def test_what_looks_like_a_secret_is_left_out(argument: str, shown: str) -> None:
    assert redact.arguments(argument.split()) == shown.split()


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        ("/work/data/x", "data/x"),
        ("/work", "."),
        ("/home/ann/x", "~/x"),
        ("--data=/home/ann/x", "--data=~/x"),
        ("/home/anna/x", "/home/anna/x"),
        ("/opt/x", "/opt/x"),
        ("/scratch/ann/x", "/scratch/[user]/x"),
        ("ann", "ann"),
    ],
)
def test_paths_are_shortened(argument: str, shown: str) -> None:
    assert redact.paths(argument, cwd="/work", home="/home/ann") == shown


@pytest.mark.real
def test_no_variable_but_those_on_the_list_is_kept(tmp_path: Path) -> None:
    env = {"MY_SECRET": "very-secret-value", "HOSTNAME": "very-secret-host"}
    run = collect(tmp_path, [sys.executable, "-c", ""], env=env)
    text = "".join(file.read_text() for file in run.folder.iterdir())
    assert "very-secret" not in text
    assert run.facts["host"] is None


@pytest.mark.real
def test_host_and_paths_are_kept_if_asked_for(tmp_path: Path) -> None:
    run = collect(tmp_path, [sys.executable, "-c", ""], ("--keep-paths",))
    assert run.facts["host"]
    assert run.facts["cwd"] == str(tmp_path)
    assert run.facts["command"][0] == sys.executable


@pytest.mark.real
def test_the_commit_of_the_program_is_kept(tmp_path: Path) -> None:
    place = tmp_path / "repo"
    place.mkdir()
    (place / "train.py").touch()
    git(place, "init", "-q")
    git(place, "add", "train.py")
    git(place, "commit", "-qm", "first")
    result = run_facts.git(run_facts.program_folder([str(place / "train.py")]))
    assert re.fullmatch(r"[0-9a-f]{40}", result["commit"])
    assert result["dirty"] is False
    (place / "train.py").write_text("changed")
    assert run_facts.git(place)["dirty"] is True


def test_asking_for_the_commit_writes_nothing_into_the_repository(
    tmp_path: Path,
) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True)

    git("init", "-q")
    (tmp_path / "train.py").touch()
    git("add", "train.py")
    git("commit", "-q", "-m", "x")
    os.utime(tmp_path / "train.py", (1, 1))  # git would refresh its index
    index = (tmp_path / ".git" / "index").read_bytes()
    assert not run_facts.git(tmp_path)["dirty"]
    assert (tmp_path / ".git" / "index").read_bytes() == index


def test_a_program_outside_of_a_repository_has_no_commit(tmp_path: Path) -> None:
    assert run_facts.git(tmp_path) is None


def git(place: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(place), *who, *arguments], check=True)


@pytest.mark.parametrize(
    "argument",
    [
        "",
        "--",
        "--warmup -1 -- python x.py",
        "--warmup x -- python x.py",
        "--max-mb 0 -- python x.py",
        "--seconds 0 -- python x.py",
        "--steps-by wish -- python x.py",
        "--label novalue -- python x.py",
        "--name ../up -- python x.py",
        "--unknown -- python x.py",
        "python x.py -- python x.py",
    ],
)
def test_a_wrong_command_line_is_refused(
    argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        options.parse(argument.split(), "collect")
    assert end.value.code == 2
    assert "collect: " in capsys.readouterr().err


def test_the_two_dashes_may_be_left_out() -> None:
    result = options.parse(
        ["--warmup", "3", "python", "x.py", "--warmup", "9"], "collect"
    )
    assert result.warmup == 3
    assert result.command == ["python", "x.py", "--warmup", "9"]


@pytest.mark.real
def test_on_a_terminal_the_program_has_one_too(tmp_path: Path) -> None:
    ours, end = pty.openpty()
    code = "import sys; print(sys.stderr.isatty()); print('a\\nb', file=sys.stderr)"
    done = subprocess.run(
        words(tmp_path, [sys.executable, "-c", code]),
        stderr=end,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env=environment(),
    )
    os.close(end)
    shown = os.read(ours, 10_000)
    os.close(ours)
    assert done.stdout == "True\n"
    assert b"a\r\nb\r\n" in shown  # as a terminal shows it: once turned, not twice
    assert (tmp_path / "out/run/stderr.log").read_bytes() == b"a\nb\n"


def test_progress_is_one_line_that_moves_on_a_terminal(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    screen = make_screen(moving=True)
    screen.progress("waiting", 1, 10)
    screen.progress("waiting", 2, 10)
    screen.passed(b"hello\n")
    shown = capfdbinary.readouterr().err
    assert b"step 1 of 10" in shown
    assert shown.count(b"\n") == 1
    assert shown.endswith(b"\x1b[Khello\n")


def test_progress_keeps_out_of_a_line_that_the_program_has_begun(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    screen = make_screen(moving=True)
    screen.passed(b"loading ...")
    screen.progress("waiting", 1, 10)
    assert capfdbinary.readouterr().err == b"loading ..."


def test_elsewhere_progress_is_a_line_a_phase(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    screen = make_screen(moving=False)
    for done in range(3):
        screen.progress("timing", done, 3)
    screen.progress("tracing", 0, 3)
    lines = capfdbinary.readouterr().err.decode().splitlines()
    assert lines == ["traceq: timing without the profiler", "traceq: tracing"]


def make_screen(*, moving: bool) -> Any:  # noqa: ANN401 - of collect/, by path
    screen = module("launcher.screen").Screen()
    screen.moving = moving
    return screen


def test_where_steps_differ_the_median_is_said_too() -> None:
    alike = {"ms": 16.3, "median_ms": 16.2, "steps": 20}

    assert "median" not in recorded_parts.step_time(alike)
    assert recorded_parts.step_time(alike | {"ms": 26.5}) == (
        "26.50 ms per step, measured without the profiler over 20 steps; 16.20 ms at"
        " the median, as steps differ"
    )


def test_a_log_is_bounded_and_says_that_it_was_cut(tmp_path: Path) -> None:
    tee = module("launcher.tee").Tee(tmp_path / "log", lambda _: None)
    tee.LIMIT = 10
    os.write(tee.end, b"0123456789abc")
    tee.started()
    while tee.pump(0.1):
        pass
    tee.close()
    assert (tmp_path / "log").read_bytes() == b"0123456789"
    assert tee.truncated


FAILING = "import sys\nimport nowhere_to_be_imported\n"


def test_a_program_that_dies_at_import_is_reported_as_that(tmp_path: Path) -> None:
    run = collect_program(tmp_path, FAILING)

    assert run.status == 1
    assert (
        "nothing was recorded: the program ended with status 1 before its first step:"
        " ModuleNotFoundError: No module named 'nowhere_to_be_imported'"
    ) in run.err


def test_a_program_that_is_killed_early_is_reported_as_that(tmp_path: Path) -> None:
    run = collect_program(tmp_path, "import os\nos.kill(os.getpid(), 9)\n")

    assert "the program was ended by SIGKILL before its first step" in run.err


def test_the_usual_folder_of_runs_is_kept_out_of_git(tmp_path: Path) -> None:
    for out in ("traceq-runs", "mine"):
        words = [sys.executable, str(COLLECT), "--out", out, "--", sys.executable]
        subprocess.run(
            [*words, "-c", ""], cwd=tmp_path, capture_output=True, check=False
        )

    assert (tmp_path / "traceq-runs" / ".gitignore").read_text() == "*\n"
    # It may be a folder that has other things in it.
    assert not (tmp_path / "mine" / ".gitignore").exists()


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        ("--keep-slow", "0.5", "no number above 1"),
        ("--seconds", "x", "no number above 0"),
        ("--warmup", "-1", "no whole number"),
        ("--label", "x", "no KEY=VALUE"),
        ("--ranks", "3-1", "no list of ranks"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_expected(
    option: str, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        options.parse([f"{option}={text}", "--", "python", "x.py"], "collect")

    assert f"{text!r} is {words}" in capsys.readouterr().err
