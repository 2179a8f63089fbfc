"""Writing a rule: the scaffold, the page, and what is said of an author's mistakes."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

import pytest
from command import traceq
from conftest import ROOT
from recordings import FIXTURE_TRACES, loaded

from traceq import __version__
from traceq.linter import Fix, Rule, Seen, SnapshotView, View, retired
from traceq.linter.config import Config
from traceq.linter.engine import lint
from traceq.linter.pack import load_pack, load_rules
from traceq.model.recording import Recording
from traceq.report.rule_pages import page
from traceq.testing.timeline import load_drawn

if TYPE_CHECKING:
    from pathlib import Path

PAGE = (ROOT / "rules" / "README.md").read_text(encoding="utf-8")
# The rule that a newcomer wrote from the page alone, the first time it was tried.
NONZERO = '''
from __future__ import annotations
from dataclasses import dataclass
import polars as pl
from traceq.linter import Bad, Evidence, Fix, Good, Need, Rule, View

@dataclass(frozen=True)
class NonzeroInForward(Rule):
    """The forward pass asks the GPU which elements are not zero."""

    code = "DYN001"
    needs = frozenset({Need.GPU, Need.OPS})
    advice = "use torch.where(mask, a, b)"

    def check(self, view: View):
        found = view.by_place(
            view.ops.filter(
                pl.col("name") == "aten::nonzero", pl.col("phase") == "forward"
            )
        )
        for row in found.iter_rows(named=True):
            calls = view.runtime.filter(pl.col("op").is_in(row["ids"]))
            yield self.finding(
                "the forward asks for the elements that are not zero",
                subject="aten::nonzero",
                place=view.place(row),
                count=len(row["ids"]) / view.steps,
                fix=Fix(syncs=calls["id"]),
            )
'''


def pack(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "rule.py").write_text(text, encoding="utf-8")
    return folder


def minimal(body: str, decorator: str = "@dataclass(frozen=True)") -> str:
    return f'''
from __future__ import annotations
from dataclasses import dataclass
import polars as pl
from traceq.linter import Bad, Good, Rule, option

{decorator}
class Odd(Rule):
    """A sentence."""

    code = "ODD001"
    smallest: int = option(1, "It is small.")
    examples = (
        Bad("host [ProfilerStep#1 ]", finds="it is odd"),
        Good("host [ProfilerStep#1 ]"),
    )

    def check(self, view):
        {body}
'''


@pytest.mark.parametrize(
    "line",
    [
        "needs = Good({1, 2})",
        "needs = frozenset({'gpu'})",
        "advice = 3",
        "severity = 'warning'",
        "see = 'torch.compile'",
        "examples = ('host [a ]',)",
        "seen = 'a finding'",
        "since = 1",
    ],
)
def test_a_variable_of_another_type_is_an_error(line: str, tmp_path: Path) -> None:
    text = minimal("yield from ()").replace(
        "    def check", f"    {line}\n\n    def check"
    )

    answer = traceq("rules", "--rules", pack(tmp_path, text))

    assert answer.status == 2
    assert f"Odd has {line.split(maxsplit=1)[0]} of another type" in answer.err


def test_an_option_needs_a_default(tmp_path: Path) -> None:
    text = minimal("yield from ()").replace(' = option(1, "It is small.")', "")

    answer = traceq("rules", "--rules", pack(tmp_path, text))

    assert answer.status == 2
    assert "Odd needs a default for its option smallest" in answer.err


def test_an_option_may_be_a_plain_field(tmp_path: Path) -> None:
    text = minimal("yield from ()").replace('option(1, "It is small.")', "1")

    answer = traceq("rule", "ODD001", "--rules", pack(tmp_path, text))

    assert (answer.status, answer.err) == (0, "")


# The scaffold.


def test_a_new_rule_loads_and_its_bad_example_does_not_hold_yet(tmp_path: Path) -> None:
    wrote = traceq("rules", "--new", "slow-thing", "--code", "SLO001", "--to", tmp_path)
    tested = traceq("test", tmp_path)

    assert (wrote.status, tested.status) == (0, 1)
    assert (tmp_path / "slow_thing.py").is_file()
    assert "SLO001-Bad-0 does not hold" in tested.out
    assert "1 of 2 examples hold" in tested.out


def test_a_new_rule_whose_example_holds_has_all_parts_of_its_page(
    tmp_path: Path,
) -> None:
    traceq("rules", "--new", "slow-thing", "--code", "SLO001", "--to", tmp_path)
    file = tmp_path / "slow_thing.py"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("aten::the_op_to_look_for", "aten::sort"), "utf-8")

    tested = traceq("test", tmp_path)
    (rule,) = load_pack(tmp_path, "new_pack")

    assert tested.out == "2 of 2 examples hold\n"
    assert rule.since == __version__
    assert rule.seen == Seen(text="")
    assert rule.example()
    sections = re.findall(r"^## .*\n\n(.+)", rule.page(), re.MULTILINE)
    assert len(sections) == 4
    # What lint prints is not known yet.
    assert "## A finding" not in page(rule)


@pytest.mark.parametrize("below", ["", "family"])
def test_a_new_rule_has_a_row_in_the_measurements_of_its_pack(
    below: str, tmp_path: Path
) -> None:
    rows = [f'  {{ rule = "SLO00{number}", note = "…" }},\n' for number in (1, 3)]
    measured = tmp_path / "measured.toml"
    measured.write_text(f"rows = [\n{''.join(rows)}]\n", encoding="utf-8")

    wrote = traceq(
        "rules", "--new", "slow-thing", "--code", "SLO002", "--to", tmp_path / below
    )

    assert str(measured) in wrote.out
    rows.insert(1, '  { rule = "SLO002", note = "Not tried on a GPU." },\n')
    assert measured.read_text(encoding="utf-8") == f"rows = [\n{''.join(rows)}]\n"


def test_measurements_of_another_form_are_left_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "measured.toml").write_text("[[rows]]\n", encoding="utf-8")

    answer = traceq("rules", "--new", "slow-thing", "--to", tmp_path)

    assert answer.status == 2
    assert "measured.toml cannot be extended: rows = [ is missing" in answer.err
    assert [file.name for file in tmp_path.iterdir()] == ["measured.toml"]


def test_a_new_rule_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "slow_thing.py").write_text("mine")

    answer = traceq("rules", "--new", "slow-thing", "--to", tmp_path)

    assert answer.status == 2
    assert "exists" in answer.err
    assert (tmp_path / "slow_thing.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--new", "SlowThing"), "as nonzero-in-forward"),
        (("--new", "slow-thing", "--code", "1"), "as DYN001"),
        (("--new", "slow-thing", "--code", "SYN001"), "another --code"),
    ],
)
def test_a_new_rule_needs_a_name_and_a_free_code(
    options: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    answer = traceq("rules", *options, "--to", tmp_path)

    assert answer.status == 2
    assert words in answer.err
    assert not list(tmp_path.iterdir())


# The page.


@pytest.mark.parametrize("view", [View, SnapshotView])
def test_the_page_names_every_member_of_a_view(view: type) -> None:
    members = {name for name in dir(view) if not name.startswith("_")}
    fields = set(inspect.get_annotations(view))

    missing = [
        name
        for name in sorted(members | fields)
        if not re.search(rf"`{name}[`(]", PAGE)
    ]

    assert missing == []


@pytest.mark.parametrize("about", [Fix, Rule.finding])
def test_the_page_names_everything_that_a_finding_takes(about: object) -> None:
    names = [name for name in inspect.signature(about).parameters if name != "self"]  # type: ignore[arg-type]  # a class and a function

    assert [name for name in names if not re.search(rf"`{name}\b", PAGE)] == []


def test_a_rule_written_from_the_page_finds_the_case_once_with_its_saving(
    tmp_path: Path,
) -> None:
    rules = load_rules([pack(tmp_path, NONZERO)])
    trace = loaded(FIXTURE_TRACES["twins/moe_loop"])

    (outcome,) = lint(
        [Recording("moe", trace)], rules, Config(select=("DYN", "SYN001"))
    ).outcomes
    own = [finding for finding in outcome.findings if finding.code == "SYN001"]
    (result,) = [finding for finding in outcome.findings if finding.code == "DYN001"]

    assert result.place.file == "dev_cases.py"
    # Nobody but nonzero makes the host wait in the forward pass of this program, so
    # that one of the two rules says all.
    assert result.after == ("SYN001",)
    alone = max(finding.saves_ns for finding in own)
    assert result.saves_alone_ns == pytest.approx(alone, rel=0.05)


def test_a_saving_that_is_only_a_sync_is_printed(tmp_path: Path) -> None:
    answer = traceq(
        "lint",
        ROOT / "fixtures/twins/moe_loop/trace.json.gz",
        "--rules",
        pack(tmp_path, NONZERO),
        "--select",
        "DYN",
    )

    assert re.search(r"DYN001 nonzero-in-forward +saves [\d.]+ .s/step", answer.out)


# An author's mistakes.


def test_a_crash_names_the_rule_and_its_line(tmp_path: Path) -> None:
    folder = pack(tmp_path, minimal('yield view.ops.select("nonsense")'))

    answer = traceq("test", folder)

    assert answer.status == 1
    assert "ODD001-Bad-0 crashed: ColumnNotFoundError" in answer.out
    assert "(rule.py:19)" in answer.out
    assert "internal error" not in answer.err


def test_a_message_that_is_no_text_is_a_crash_of_its_rule(tmp_path: Path) -> None:
    folder = pack(tmp_path, minimal("yield self.finding(Good, subject='a')"))

    answer = traceq("test", folder)

    assert answer.status == 1
    assert "TypeError: the message of a finding is text, not type" in answer.out


def test_a_rule_that_is_not_a_dataclass_is_refused(tmp_path: Path) -> None:
    folder = pack(tmp_path, minimal("return iter(())", decorator=""))

    answer = traceq("test", folder)

    assert answer.status == 2
    assert "Odd must be a dataclass" in answer.err


def test_one_sentence_may_be_expected_as_a_text(tmp_path: Path) -> None:
    body = 'yield self.finding("it is odd", subject="x")'

    answer = traceq("test", pack(tmp_path, minimal(body)))

    assert "ODD001-Bad-0" not in answer.out
    assert "1 of 2 examples hold" in answer.out


@pytest.mark.parametrize(
    "line",
    ["host [aten::mm   [aten::add ]", "host  aten::mm ] [aten::add ]"],
)
def test_a_bracket_without_its_other_half_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match="bracket is not closed"):
        load_drawn(f"host [ProfilerStep#1 ]\n{line}\nhost [aten::mul]")


# The life of a rule.


def test_a_retired_code_is_refused_with_what_finds_the_same_now(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(retired.RETIRED, "ODD001", "in 0.2, use SYN001")

    asked = traceq("rule", "ODD001")
    used = traceq("test", pack(tmp_path, minimal("return iter(())")))

    assert "ODD001 was retired: in 0.2, use SYN001" in asked.err
    assert "never used again" in used.err


def test_a_page_says_since_when_a_rule_exists() -> None:
    assert "\nSince 0.1.0.\n" in traceq("rule", "SYN001").out


def test_every_rule_says_since_when_it_exists() -> None:
    rules = load_rules()

    assert [code for code, rule in rules.items() if not rule.since] == []


def test_a_rule_on_trial_never_fails_a_run(tmp_path: Path) -> None:
    text = NONZERO.replace('code = "DYN001"', 'code = "DYN001"\n    preview = True')
    command = (
        "lint",
        ROOT / "fixtures/twins/moe_loop/trace.json.gz",
        "--rules",
        pack(tmp_path, text),
        "--select",
        "DYN",
    )

    answer = traceq(*command)

    assert "DYN001" in answer.out
    assert answer.status == 0
