"""The rule engine: configuration, selection, packs, skipped, crashed, allowed."""

from __future__ import annotations

import json
import sys
import textwrap
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from command import traceq
from linting import bundled_rules, outcome
from msgspec import structs

from traceq.errors import ConfigError, PackError, UsageError
from traceq.linter import Evidence, Fix, Need, Rule, View
from traceq.linter.config import Config, configured, find_config, read_config
from traceq.linter.engine import lint
from traceq.linter.pack import load_rules
from traceq.linter.select import find_rule, selected
from traceq.model.finding import Place, Severity
from traceq.model.lint_report import Allow
from traceq.model.recording import Recording
from traceq.testing import draw, load_drawn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from traceq.linter import Finding
    from traceq.model.lint_report import RecordingReport

WAITS = """
host   [ProfilerStep#1                                    ]
host    [train.py(3): main                               ]
host     [aten::mm          ] [aten::item              ]
host     [cudaLaunchKernel>1]  [cudaStreamSynchronize ]
gpu 7               [gemm<1                     ]
"""
RULE = '''
"""{code}: something."""

from __future__ import annotations

from dataclasses import dataclass

from traceq.linter import Bad, Fix, Good, Rule, Severity, option


@dataclass(frozen=True)
class {name}(Rule):
    """Every trace is wrong.

    ## What it does

    Finds something.
    """

    code = "{code}"
    priced = False
    most: int = option(3, "How many are accepted.")
    share: float = option(0.5, "Which share is accepted.")
    loud: bool = option(False, "Whether to shout.")
    called: str = option("it", "What to call it.")

    examples = (
        Bad("host [aten::mm ]", finds=("wrong",)),
        Good("host [aten::add ]"),
    )

    def check(self, view):
        {body}
'''
FINDS = 'yield self.finding("wrong", subject="all", ops=[0])'
FINDS_PRODUCTS = (
    'if "aten::mm" in view.ops["name"].to_list():\n'
    '            yield self.finding("wrong", subject="mm")'
)


def write_rule(
    folder: Path, name: str = "TooLoud", code: str = "USR001", body: str = FINDS
) -> Path:
    """Write a rule of a user, and return its pack."""
    folder.mkdir(parents=True, exist_ok=True)
    text = RULE.format(name=name, code=code, body=body)
    (folder / f"{name.lower()}.py").write_text(text, encoding="utf-8")
    return folder


def write_trace(folder: Path, drawing: str = WAITS, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(draw(drawing)), encoding="utf-8")
    return path


def write_config(folder: Path, text: str, name: str = "traceq.toml") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return path


def waits(drawing: str = WAITS) -> Recording:
    return Recording("waits.json", load_drawn(drawing))


@dataclass(frozen=True)
class ItemCall(Rule):
    """The program calls item()."""

    code = "ITM001"

    def check(self, view: View) -> Iterator[Finding]:
        calls = view.ops.filter(pl.col("name") == "aten::item")
        if calls.height:
            yield self.finding(
                "item() is called",
                subject="aten::item",
                place=view.place(calls.row(0, named=True)),
                count=calls.height,
                fix=Fix(ops=calls["id"]),
            )


@dataclass(frozen=True)
class NeedsGpu(ItemCall):
    """The program calls item() on the GPU."""

    code = "GPU001"
    needs = frozenset({Need.GPU})


@dataclass(frozen=True)
class Quiet(Rule):
    """Finds nothing."""

    code = "QUI001"

    def check(self, view: View) -> Iterator[Finding]:  # noqa: ARG002 - what rules take
        yield from ()


@dataclass(frozen=True)
class Broken(Rule):
    """Fails."""

    code = "BRO001"

    def check(self, view: View) -> Iterator[Finding]:
        msg = "no such column\nand a long story"
        raise pl.exceptions.ColumnNotFoundError(msg)
        yield self.finding(str(view), subject="never")


RULES: dict[str, type[Rule]] = {"ITM001": ItemCall, "QUI001": Quiet}


def found_in(recording: Recording, **config: Any) -> RecordingReport:  # noqa: ANN401 - what Config takes
    """Return what the rules above say of a recording."""
    return lint([recording], RULES, Config(**config)).outcomes[0]


# The configuration.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "selct = ['SYN']",  # codespell:ignore
            "unknown key 'selct': did you mean 'select'?",  # codespell:ignore
        ),
        ("file = 'x'", "unknown key 'file': known: ['allow', 'budget', 'budgets', "),
        ("select = 'SYN'", "select must be a list of texts, not 'SYN'"),
        ("ignore = [1]", "ignore must be a list of texts, not [1]"),
        ("packs = 'ci'", "packs must be a list of texts, not 'ci'"),
        ("fail-on = 'fatal'", "fail-on cannot be 'fatal': give info, warning, error"),
        ("fail-on = true", "fail-on cannot be 'True'"),
        ("min-cost-us = -1", "min-cost-us must be a number of 0 or more, not -1"),
        ("min-cost-us = '1'", "min-cost-us must be a number of 0 or more, not '1'"),
        ("min-cost-us = true", "min-cost-us must be a number of 0 or more, not True"),
        ("min-cost-us = nan", "min-cost-us must be a number of 0 or more, not nan"),
        ("rules = 3", "rules must hold a table for each rule, as [rules.SYN001]"),
        ("rules.SYN001 = 3", "rules must hold a table for each rule"),
        ("allow = 3", "write each allowed finding as a table [[allow]]"),
        ("[allow]\nrule = 'SYN001'", "write each allowed finding as a table [[allow]]"),
        ("allow = ['SYN001']", "write each allowed finding as a table [[allow]]"),
        ("[[allow]]\nrule = 'SYN001'", "an entry of allow needs a reason"),
        (
            "[[allow]]\nrule = 'SYN001'\nreason = ' '",
            "an entry of allow needs a reason",
        ),
        ("[[allow]]\nreason = 'old'", "an entry of allow needs a rule"),
        (
            "[[allow]]\nrule = 'SYN001'\nreason = 'old'\nwher = 'x'",
            "allow: unknown key 'wher': did you mean 'where'?",
        ),
        ("select = [", "is not TOML"),
    ],
)
def test_a_configuration_that_cannot_be_followed_is_refused(
    text: str, message: str, tmp_path: Path
) -> None:
    path = write_config(tmp_path, text)

    with pytest.raises(ConfigError) as error:
        read_config(path)

    assert message in str(error.value)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize(
    "text", ["tool = 'traceq'", "[tool]\ntraceq = 3", "[tool]\ntraceq = 'lint'"]
)
def test_a_pyproject_whose_part_is_no_table_is_refused(
    text: str, tmp_path: Path
) -> None:
    write_config(tmp_path, text, "pyproject.toml")
    (tmp_path / "sub").mkdir()

    with pytest.raises(ConfigError, match="must be a table"):
        find_config(tmp_path / "sub")


@pytest.mark.parametrize(
    "text",
    [
        "[tool.traceq]\nselect = ['SYN']",
        "  [ 'tool' . \"traceq\" ]\nselect = ['SYN']",
        "[tool]\ntraceq.select = ['SYN']",
        "tool.traceq.select = ['SYN']",
        "tool = { traceq = { select = ['SYN'] } }",
        '["t\\u006fol".traceq]\nselect = ["SYN"]',
        "[tool.ruff]\nselect = ['ALL']\n[tool.traceq]\nselect = ['SYN']",
    ],
)
def test_a_pyproject_may_set_traceq_in_each_way_of_toml(
    text: str, tmp_path: Path
) -> None:
    file = write_config(tmp_path, text, "pyproject.toml")

    assert find_config(tmp_path).select == ("SYN",)
    assert find_config(tmp_path).file == file


@pytest.mark.parametrize(
    "text",
    ["this is no TOML", "[project]\nname = 'traceq'\n[tool.ruff]\nline-length = "],
)
def test_a_pyproject_that_sets_nothing_for_traceq_is_not_looked_into(
    text: str, tmp_path: Path
) -> None:
    write_config(tmp_path, text, "pyproject.toml")

    assert find_config(tmp_path).file is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("mots = 4", "rules.too-loud: unknown key 'mots': did you mean 'most'?"),
        ("most = 'four'", "rules.too-loud: most must be of type int, not 'four'"),
        ("most = 4.5", "most must be of type int, not 4.5"),
        ("most = true", "most must be of type int, not True"),
        ("share = true", "share must be of type float, not True"),
        ("loud = 1", "loud must be of type bool, not 1"),
        ("called = 1", "called must be of type str, not 1"),
    ],
)
def test_an_option_of_a_rule_that_does_not_fit_is_refused(
    options: str, message: str, tmp_path: Path
) -> None:
    rules = load_rules([write_rule(tmp_path / "pack")])
    config = read_config(write_config(tmp_path, f"[rules.USR001]\n{options}"))

    with pytest.raises(ConfigError) as error:
        # Also where the rule does not run.
        configured(rules, selected(rules, ["SYN"], []), config)

    assert message in str(error.value)


@pytest.mark.parametrize("key", ["USR001", "usr001", "too-loud"])
def test_options_reach_the_rule_by_its_code_or_name(key: str, tmp_path: Path) -> None:
    rules = load_rules([write_rule(tmp_path / "pack")])
    text = f"[rules.{key}]\nmost = 4\nshare = 1\nloud = true\ncalled = 'x'"
    config = read_config(write_config(tmp_path, text))

    (rule,) = configured(rules, selected(rules, ["USR"], []), config)

    assert [getattr(rule, name) for name in ("most", "share", "loud", "called")] == [
        4,
        1,
        True,
        "x",
    ]


def test_options_of_an_unknown_rule_are_refused(tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path, "[rules.SYN01]\nx = 1"))

    with pytest.raises(UsageError, match=r"there is no rule|is a family"):
        lint([], bundled_rules(), config)


def test_the_nearest_configuration_counts_and_its_own_file_first(
    tmp_path: Path,
) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert find_config(inner) == Config()

    write_config(tmp_path, "select = ['TRC']")
    write_config(tmp_path / "a", "[tool.other]\nx = 1", "pyproject.toml")
    assert find_config(inner).select == ("TRC",)

    write_config(
        tmp_path / "a",
        "[tool.traceq]\nselect = ['NET']\npacks = ['ci']",
        "pyproject.toml",
    )
    assert find_config(inner).select == ("NET",)
    assert find_config(inner).packs == (tmp_path / "a" / "ci",)

    write_config(tmp_path / "a", "select = ['DAT']")
    assert find_config(inner).select == ("DAT",)


def test_a_configuration_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = write_trace(tmp_path)

    answer = traceq("lint", path, "--config", tmp_path / "none.toml")

    assert answer.status == 2
    assert "none.toml cannot be read" in answer.err


# Which rules run.


@pytest.mark.parametrize(
    "wanted", ["SYN001", "syn001", "implicit-device-sync", "Implicit-Device-Sync"]
)
def test_a_rule_is_selected_by_code_or_name(wanted: str) -> None:
    assert list(selected(bundled_rules(), [wanted], [])) == ["SYN001"]
    assert find_rule(bundled_rules(), wanted).code == "SYN001"


def test_a_prefix_selects_its_family_and_ignoring_wins() -> None:
    rules = bundled_rules()
    family = [code for code in rules if code.startswith("TRC")]

    assert list(selected(rules, ["trc"], [])) == family
    assert list(selected(rules, ["ALL"], ["TRC"])) == [
        code for code in rules if code not in family
    ]


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        ("SYN002X", "did you mean SYN00"),
        ("implicit-device-synk", "did you mean implicit-device-sync?"),
        ("xyzzy", "see `traceq rules`"),
        ("", "see `traceq rules`"),
    ],
)
def test_an_unknown_rule_is_refused_with_a_hint(wanted: str, hint: str) -> None:
    for ask in (
        lambda: selected(bundled_rules(), [wanted], []),
        lambda: selected(bundled_rules(), ["ALL"], [wanted]),
        lambda: find_rule(bundled_rules(), wanted),
    ):
        with pytest.raises(UsageError) as error:
            ask()
        assert hint in str(error.value)


def test_a_family_is_not_one_rule() -> None:
    with pytest.raises(
        UsageError, match="TRC is a family of rules: name one of TRC001"
    ):
        find_rule(bundled_rules(), "TRC")


def test_selecting_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="ignores all rules it selects"):
        lint([], bundled_rules(), Config(select=("TRC",), ignore=("TRC",)))


# Packs.


@pytest.mark.real
def test_a_pack_of_the_user_runs_beside_our_own(tmp_path: Path) -> None:
    pack = write_rule(tmp_path / "pack")

    answer = traceq("lint", write_trace(tmp_path), "--rules", pack, "--select", "USR")

    assert answer.status == 1
    assert "USR001 too-loud" in answer.out
    assert "too-loud" in traceq("rules", "--rules", pack).out


def test_packs_of_a_configuration_lie_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rule(tmp_path / "ci" / "pack")
    config = write_config(tmp_path / "ci", "packs = ['pack']\nselect = ['USR']")
    trace = write_trace(tmp_path)
    monkeypatch.chdir(tmp_path / "ci" / "pack")
    traceq("rules", "--trust", tmp_path / "ci" / "pack")

    assert "USR001" in traceq("lint", trace, "--config", config).out
    assert "USR001" in traceq("lint", trace).out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("def (", "SyntaxError"),
        ("import there_is_no_such_module", "ModuleNotFoundError"),
        ("raise SystemError('at import')", "SystemError: at import"),
        (
            "from traceq.linter import Rule\nclass Odd(Rule):\n    code = 'odd'\n",
            "Odd needs a code such as SYN001",
        ),
        (
            "from traceq.linter import Rule\nclass Odd(Rule):\n    pass\n",
            "Odd needs a code such as SYN001",
        ),
    ],
)
def test_a_broken_pack_is_never_a_green_run(
    content: str, message: str, tmp_path: Path
) -> None:
    pack = tmp_path / "pack"
    pack.mkdir()
    (pack / "bad.py").write_text(content)

    for command in (
        ("lint", write_trace(tmp_path), "--rules", pack),
        ("rules", "--rules", pack),
        ("test", pack),
    ):
        answer = traceq(*command)
        assert answer.status == 2
        assert message in answer.err
        assert answer.err.count("\n") == 1


def test_a_pack_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    answer = traceq("lint", write_trace(tmp_path), "--rules", tmp_path / "nowhere")

    assert answer.status == 2
    assert "is not a rule pack: a pack is a folder of Python files" in answer.err


@pytest.mark.parametrize("code", ["SYN001", "USR001"])
def test_a_code_is_given_once(code: str, tmp_path: Path) -> None:
    packs = [
        write_rule(tmp_path / "one", code="USR001"),
        write_rule(tmp_path / "two", name="TooOdd", code=code),
    ]

    with pytest.raises(PackError) as error:
        load_rules(packs)

    assert code in str(error.value)
    assert "another code" in str(error.value)
    assert str(tmp_path / "two") in str(error.value)


def test_a_pack_may_be_called_rules_and_changes_nothing_for_the_program(
    tmp_path: Path,
) -> None:
    write_rule(tmp_path / "rules")
    before, known = list(sys.path), set(sys.modules)

    rules = load_rules([tmp_path / "rules"])

    assert {"SYN001", "USR001"} <= set(rules)
    assert sys.path == before
    assert all(name.startswith("_traceq") for name in set(sys.modules) - known)


def test_modules_of_a_pack_may_share_helpers(tmp_path: Path) -> None:
    pack = write_rule(tmp_path / "pack", body="yield from found(self)")
    (pack / "_help.py").write_text(
        "def found(rule):\n    yield rule.finding('helped', subject='x')\n"
    )
    rule = pack / "tooloud.py"
    rule.write_text(
        rule.read_text().replace(
            "from traceq.linter", "from ._help import found\nfrom traceq.linter", 1
        )
    )

    answer = traceq("lint", write_trace(tmp_path), "--rules", pack, "--select", "USR")

    assert "helped" in answer.out


# The drawn examples of a pack.


def test_examples_that_hold_pass(tmp_path: Path) -> None:
    answer = traceq("test", write_rule(tmp_path / "pack", body=FINDS_PRODUCTS))

    assert (answer.status, answer.out) == (0, "2 of 2 examples hold\n")


def test_examples_that_do_not_hold_are_shown(tmp_path: Path) -> None:
    body = 'yield self.finding("odd", subject="all")'

    answer = traceq("test", write_rule(tmp_path / "pack", body=body))

    assert answer.status == 1
    assert answer.lines == [
        "USR001-Bad-0 does not hold",
        "  should find: wrong",
        "  but finds:   odd",
        "USR001-Good-0 does not hold",
        "  but finds:   odd",
        "0 of 2 examples hold",
    ]


def test_a_pack_without_rules_or_examples_proves_nothing(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    bare = write_rule(tmp_path / "bare")
    rule = bare / "tooloud.py"
    rule.write_text(rule.read_text().replace("    examples = (", "    shown = ("))

    assert traceq("test", empty).status == 2
    assert "has no rule" in traceq("test", empty).err
    assert traceq("test", bare).status == 2
    assert "USR001 without examples" in traceq("test", bare).err


# What was skipped, and what crashed.


def test_a_rule_whose_needs_are_not_met_is_skipped_with_the_reason() -> None:
    host_only = "\n".join(line for line in WAITS.splitlines() if "gpu" not in line)

    report = lint([waits(host_only)], RULES | {"GPU001": NeedsGpu}, Config())

    (result,) = report.outcomes
    assert [(skipped.code, skipped.reason) for skipped in result.skipped] == [
        ("GPU001", Need.GPU.value)
    ]
    assert result.ran == 2


def test_a_log_alone_skips_all_that_needs_a_trace() -> None:
    log = pl.DataFrame({"line": [1], "text": ["hello"]})

    report = outcome(Recording("a.log", log=log), "SYN001", "LOG006")

    assert [(skipped.code, skipped.reason) for skipped in report.skipped] == [
        ("SYN001", "there is no trace")
    ]
    assert report.ran == 1


def test_a_rule_that_crashes_is_shown_and_the_others_go_on() -> None:
    report = lint([waits()], {"BRO001": Broken, **RULES}, Config())

    (result,) = report.outcomes
    assert [(crashed.code, crashed.error) for crashed in result.crashed] == [
        ("BRO001", "ColumnNotFoundError: no such column")
    ]
    assert [finding.code for finding in result.findings] == ["ITM001"]
    assert result.ran == 2
    assert report.crashed


def test_a_run_in_which_a_rule_crashed_is_not_clean(tmp_path: Path) -> None:
    pack = write_rule(tmp_path / "pack", body="yield 1 / 0")
    trace = write_trace(tmp_path, "host [aten::mm ]")

    answer = traceq("lint", trace, "--rules", pack, "--select", "USR,NET")

    assert answer.status == 2
    assert "USR001 crashed: ZeroDivisionError: division by zero" in answer.out
    assert "1 rule crashed; this run cannot be called clean" in answer.err


# What is allowed.

ALLOW = Allow("ITM001", reason="once an epoch")


@pytest.mark.parametrize(
    "entry",
    [
        ALLOW,
        structs.replace(ALLOW, rule="item-call"),
        structs.replace(ALLOW, where="train.py"),
        structs.replace(ALLOW, where="*.py"),
        structs.replace(ALLOW, where="main"),
        structs.replace(ALLOW, where="aten::it*"),
        structs.replace(ALLOW, trace="waits*"),
    ],
)
def test_an_allowed_finding_is_not_listed_but_told(entry: Allow) -> None:
    report = lint([waits()], RULES, Config(allow=(entry,)))

    (result,) = report.outcomes
    assert not result.findings
    assert [allowed.reason for allowed in result.allowed] == ["once an epoch"]
    assert not report.unused


@pytest.mark.parametrize(
    "entry",
    [
        structs.replace(ALLOW, rule="QUI001"),
        structs.replace(ALLOW, where="other.py"),
        structs.replace(ALLOW, trace="other*"),
    ],
)
def test_an_entry_that_allows_nothing_is_told(entry: Allow) -> None:
    report = lint([waits()], RULES, Config(allow=(entry,)))

    assert [finding.code for finding in report.outcomes[0].findings] == ["ITM001"]
    assert report.unused == (entry,)


def test_an_entry_for_an_unknown_rule_is_refused_even_if_nothing_is_found() -> None:
    config = Config(select=("QUI",), allow=(structs.replace(ALLOW, rule="ITM9"),))

    with pytest.raises(UsageError, match="there is no rule 'ITM9'"):
        lint([waits()], RULES, config)


def in_region(region: str) -> Recording:
    """Return a trace whose item() lies in a region."""
    inner = f"host                         [@{region:<26}]\n"
    return waits(WAITS.replace("host     [aten::mm", f"{inner}host     [aten::mm"))


@pytest.mark.parametrize(
    "region",
    [
        "traceq: allow ITM001",
        "traceq:allow ITM",
        "traceq: allow QUI001, ITM001",
        "traceq: allow itm001",
        "traceq: allow item-call",
        "traceq: allow ITM001: why",
    ],
)
def test_a_region_of_the_program_allows_what_lies_in_it(region: str) -> None:
    report = found_in(in_region(region))

    assert not report.findings
    assert [allowed.reason for allowed in report.allowed] == ["allowed in the program"]


@pytest.mark.parametrize(
    "region",
    [
        "traceq: allow QUI001",
        "traceq: allow ITM0012",
        "traceq: allow I",
        "traceq: allow I, T",
        "traceq: allow QUI001: ITM001",
        "traceq: allow QUI001 ITM001",
        "allow ITM001",
    ],
)
def test_a_region_allows_nothing_else(region: str) -> None:
    assert found_in(in_region(region)).findings


def test_a_region_allows_only_if_everything_lies_in_it() -> None:
    drawing = """
    host   [ProfilerStep#1                                                   ]
    host    [@traceq: allow ITM001  ]
    host     [aten::item           ] [aten::item                            ]
    """

    assert found_in(waits(drawing)).findings
    inside = drawing.replace("[aten::item                            ]", "")
    assert not found_in(waits(inside)).findings


# Fingerprints, order and cost.


@pytest.mark.real
def test_a_fingerprint_is_the_same_at_another_time_and_line() -> None:
    later = WAITS.replace("host ", "host      ").replace("gpu 7", "gpu 7     ")
    moved = later.replace("train.py(3)", "train.py(9)")

    (first,) = found_in(waits()).findings
    (second,) = found_in(waits(moved)).findings

    assert first.place.line != second.place.line
    assert first.fingerprint == second.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        lambda one: replace(one, code="ITM002"),
        lambda one: replace(one, subject="aten::nonzero"),
        lambda one: replace(one, place=Place("train.py", 3, "other")),
        lambda one: replace(one, place=Place("other.py", 3, "main")),
    ],
)
def test_another_finding_has_another_fingerprint(
    change: Callable[[Finding], Finding],
) -> None:
    (finding,) = found_in(waits()).findings

    assert change(finding).fingerprint != finding.fingerprint


def test_every_layer_has_the_same_fingerprint() -> None:
    (finding,) = found_in(waits()).findings
    first, second = (
        replace(finding, place=Place(module=f"Net_0/Block_{layer}/Linear_7"))
        for layer in (1, 12)
    )

    assert first.fingerprint == second.fingerprint
    assert (
        first.fingerprint != replace(finding, place=Place(module="Net_0")).fingerprint
    )


def test_a_fingerprint_does_not_depend_on_cost_count_or_message() -> None:
    (finding,) = found_in(waits()).findings

    other = replace(finding, message="x", count=9, kernel_ns=9, host_ns=9, saves_ns=9)

    assert other.fingerprint == finding.fingerprint


def test_findings_that_say_the_same_are_one(tmp_path: Path) -> None:
    body = (
        'yield self.finding("wrong", subject="x", count=2, fix=Fix(ops=[1]))\n'
        '        yield self.finding("wrong", subject="x", count=3, fix=Fix(ops=[2]))'
    )
    rules = load_rules([write_rule(tmp_path / "pack", body=body)])

    (finding,) = lint([waits()], rules, Config(select=("USR",))).outcomes[0].findings

    assert (finding.count, len(finding.fixes), finding.ops) == (5, 2, frozenset({1, 2}))


def test_evidence_without_content_is_left_out() -> None:
    lines = [Evidence("dtype", ""), Evidence("waits", value=0, unit="ns")]

    (finding,) = [Quiet().finding("wrong", subject="x", evidence=lines)]

    assert [evidence.label for evidence in finding.evidence] == ["waits"]


def test_a_finding_below_one_percent_of_the_step_is_worth_knowing_no_more() -> None:
    recording = waits()
    (dear,) = found_in(recording).findings
    slow = replace(recording, step_ns=100_000_000)

    (cheap,) = found_in(slow).findings

    assert (dear.severity, cheap.severity) == (Severity.warning, Severity.info)


def test_findings_below_the_least_cost_are_counted_not_listed() -> None:
    report = found_in(waits(), min_cost_us=1_000)

    assert (report.findings, report.below_min_cost) == ((), 1)


def test_a_cost_is_never_more_than_the_step(tmp_path: Path) -> None:
    body = 'yield self.finding("wrong", subject="x", fix=[Fix(ops=view.ops["id"])] * 9)'
    rule = load_rules([write_rule(tmp_path / "pack", body=body)])["USR001"]
    priced = type("TooLoud", (rule,), {"priced": True})

    report = lint([waits()], {"USR001": priced}, Config())

    (finding,) = report.outcomes[0].findings
    assert 0 < finding.saves_ns <= report.outcomes[0].step_ns


def test_a_finding_of_what_is_not_in_the_trace_fails_its_rule_alone(
    tmp_path: Path,
) -> None:
    body = 'yield self.finding("wrong", subject="x", fix=Fix(kernels=[10**6]))'
    rule = load_rules([write_rule(tmp_path / "pack", body=body)])["USR001"]
    priced = type("TooLoud", (rule,), {"priced": True})

    (outcome,) = lint([waits()], {"USR001": priced}, Config()).outcomes

    assert [finding.message for finding in outcome.findings] == ["wrong"]
    assert [crashed.code for crashed in outcome.crashed] == ["USR001"]


def test_severity_comes_before_cost(tmp_path: Path) -> None:
    body = (
        'yield self.finding("dear", subject="a", fix=Fix(ops=[1]))\n'
        '        yield self.finding("bad", subject="b", severity=Severity.error)\n'
        '        yield self.finding("note", subject="c", severity=Severity.info,'
        " fix=Fix(ops=view.ops['id']))"
    )
    rules = load_rules([write_rule(tmp_path / "pack", body=body)])

    (report,) = lint([waits()], rules, Config(select=("USR",))).outcomes

    assert [finding.message for finding in report.findings] == ["bad", "dear", "note"]


# Exit statuses.


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ((), 1),
        (("--fail-on", "info"), 1),
        (("--fail-on", "warning"), 1),
        (("--fail-on", "error"), 0),
        (("--fail-on", "fatal"), 2),
        (("--select", "NET"), 0),
        (("--select", "NONE"), 2),
        (("--ignore", "USR001"), 2),
        (("--select", "ALL", "--ignore", "ALL"), 2),
        (("--log", "none.log"), 2),
        (("--format", "nonsense"), 2),
    ],
)
def test_the_exit_status_says_what_was_found(
    options: tuple[str, ...], status: int, tmp_path: Path
) -> None:
    pack = write_rule(tmp_path / "pack")
    wanted = () if "--select" in options else ("--select", "USR")

    answer = traceq("lint", write_trace(tmp_path), "--rules", pack, *wanted, *options)

    assert answer.status == status
    assert bool(answer.err) == (status == 2)


@pytest.mark.parametrize(
    ("fail_on", "status"), [("info", 1), ("warning", 0), ("error", 0)]
)
def test_what_is_worth_knowing_fails_only_on_demand(
    fail_on: str, status: int, tmp_path: Path
) -> None:
    body = 'yield self.finding("so", subject="x", severity=Severity.info)'
    pack = write_rule(tmp_path / "pack", body=body)

    answer = traceq(
        *("lint", write_trace(tmp_path), "--rules", pack),
        *("--select", "USR", "--fail-on", fail_on),
    )

    assert (answer.status, answer.err) == (status, "")


def test_a_file_that_cannot_be_read_does_not_stop_the_others(tmp_path: Path) -> None:
    pack = write_rule(tmp_path / "pack")
    paths = (tmp_path / "none.json", write_trace(tmp_path))

    answer = traceq("lint", *paths, "--rules", pack, "--select", "USR")

    assert answer.status == 2
    assert "USR001" in answer.out
    assert "1 of 2 files could not be read" in answer.err


def test_a_log_is_a_recording_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("CUDA out of memory. Tried to allocate 2.00 GiB\n")

    answer = traceq("lint", log, "--fail-on", "error", "-v")

    assert answer.status == 1
    assert "LOG006 out-of-memory (error)" in answer.out


def test_a_report_goes_to_a_file_or_says_why_not(tmp_path: Path) -> None:
    pack = write_rule(tmp_path / "pack")
    wanted = (
        *("lint", write_trace(tmp_path), "--rules", pack, "--select", "USR"),
        *("--format", "json", "--output"),
    )

    written = traceq(*wanted, tmp_path / "out.json")
    refused = traceq(*wanted, tmp_path / "none" / "out.json")

    assert (written.status, written.out) == (1, "")
    assert json.loads((tmp_path / "out.json").read_text())["failing"] == 1
    assert refused.status == 2
    assert "cannot be written" in refused.err


def test_the_configuration_of_the_folder_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = (
        "row = view.ops.row(0, named=True)\n"
        '        yield self.finding("wrong", subject="x", place=view.place(row))'
    )
    write_rule(tmp_path / "pack", body=body)
    trace = write_trace(tmp_path)
    write_config(
        tmp_path,
        """
        packs = ["pack"]
        select = ["USR001"]
        [[allow]]
        rule = "USR001"
        where = "train.py"
        reason = "it is a test"
        [[allow]]
        rule = "TRC001"
        reason = "no stacks here"
        """,
    )
    monkeypatch.chdir(tmp_path)
    traceq("rules", "--trust", tmp_path / "pack")

    answer = traceq("lint", trace)

    assert answer.status == 0
    assert "USR001 is allowed in main (train.py:3): it is a test" in answer.out
    assert "allows TRC001 at *, but no finding matches: remove the entry" in answer.out


# Pages.


def test_a_page_shows_all_there_is_to_a_rule(tmp_path: Path) -> None:
    pack = write_rule(tmp_path / "pack")

    page = traceq("rule", "too-loud", "--rules", pack).out

    assert page.startswith("# too-loud (USR001)\n\nEvery trace is wrong.\n")
    assert "- `most = 3` How many are accepted." in page
    assert "- `loud = false` Whether to shout." in page
    assert '- `called = "it"` What to call it.' in page
    assert "### Bad\n\n    host [aten::mm ]\n\n> wrong" in page
    assert "### Good\n\n    host [aten::add ]" in page


def test_the_page_of_no_rule_is_refused_with_a_hint() -> None:
    answer = traceq("rule", "SYN0001")

    assert answer.status == 2
    assert "did you mean SYN001?" in answer.err


def test_every_rule_has_a_line_in_the_list() -> None:
    lines = traceq("rules").lines

    assert [line.split()[0] for line in lines] == list(bundled_rules())
    assert all(
        rule.name() in line and rule.summary() in line
        for line, rule in zip(lines, bundled_rules().values(), strict=True)
    )
