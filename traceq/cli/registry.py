"""Names, panels, help and examples of the commands, known before any is imported."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A command before it is imported: its module, and its row in ``--help``."""

    place: str
    """Module and function, or a dictionary of functions for a command of several."""
    panel: str
    """Heading in ``--help``. A new command joins a panel."""
    help: str
    """First sentence of the function's docstring; a test compares them."""
    example: str


LOOK = "Look"
COMPARE = "Compare"
KEEP = "Keep"
RECORD = "Record"
EXTEND = "Extend"

COMMANDS = {
    "lint": Entry(
        "lint:command",
        LOOK,
        "Report what is wrong in a trace or a memory snapshot, worst first, with a"
        " fix.",
        "traceq lint trace.json.gz --log train.log",
    ),
    "summary": Entry(
        "summary:command",
        LOOK,
        "Show where the time of a step goes: what bounds it, phases, ops, kernels,"
        " memory.",
        "traceq summary before.json.gz after.json.gz",
    ),
    "report": Entry(
        "report:command",
        LOOK,
        "Write one page to look at: verdict, findings, a step as a picture, flame"
        " graph.",
        "traceq report trace.json.gz -o report.html",
    ),
    "open": Entry(
        "open:command",
        LOOK,
        "Show a trace with its findings in Perfetto, in this machine's browser.",
        "traceq open trace.json.gz",
    ),
    "regions": Entry(
        "regions:command",
        LOOK,
        "Show what each region or module costs: host, GPU, its backward, idle time.",
        "traceq regions trace.json.gz --compare EMA_FFT EMA_SEQ",
    ),
    "roofline": Entry(
        "roofline:command",
        LOOK,
        "Show how far each op is from what the GPU can do, and what that costs a step.",
        "traceq roofline trace.json.gz",
    ),
    "memory": Entry(
        "memory:command",
        LOOK,
        "Show what holds the GPU's memory at its peak: by category, module and your"
        " line.",
        "traceq memory snapshot.pickle",
    ),
    "ranks": Entry(
        "ranks:command",
        LOOK,
        "Show which ranks of a job hold the others up, by how much, and why.",
        "traceq ranks traces/",
    ),
    "diff": Entry(
        "diff:command",
        COMPARE,
        "Show what changed in a step from one recording to another, and why.",
        "traceq diff before.json.gz after.json.gz",
    ),
    "check": Entry(
        "check:command",
        COMPARE,
        "Lint the fixtures and compare: findings with findings.json, numbers with"
        " budgets.",
        "traceq check fixtures",
    ),
    "fix": Entry(
        "fix:command",
        COMPARE,
        "Edit the lines that findings name, where the fix needs no decision.",
        "traceq fix traceq-runs/train --only GEM001,LCH004 --diff",
    ),
    "history": Entry(
        "history:COMMANDS",
        COMPARE,
        "Keep digests of runs, show which run changed what, and bisect commits.",
        "traceq history add traceq-runs/train",
    ),
    "annotate": Entry(
        "annotate:command",
        KEEP,
        "Write the trace with its findings as tracks, to open in Perfetto.",
        "traceq annotate trace.json.gz -o annotated.json.gz",
    ),
    "shrink": Entry(
        "shrink:command",
        KEEP,
        "Make a small trace of a large one, with the same findings and no private"
        " data.",
        "traceq shrink trace.json.gz -o fixtures/attention",
    ),
    "cache": Entry(
        "cache:COMMANDS",
        KEEP,
        "Show or clear the cache of what was read and found before.",
        "traceq cache clear",
    ),
    "collect": Entry(
        "collect:command",
        RECORD,
        "Run an unmodified PyTorch program and record a few of its steps.",
        "traceq collect -- python train.py",
    ),
    "try": Entry(
        "trial:command",
        RECORD,
        "Apply fixes to a program while it runs, measure them, and prove their effect.",
        "traceq try -- python train.py",
    ),
    "sweep": Entry(
        "sweep:command",
        RECORD,
        "Run a program over a grid of configurations, measure each, and compare them.",
        "traceq sweep --grid seq_len=512,1024 -- python bench.py --seq-len {seq_len}",
    ),
    "demo": Entry(
        "demo:command",
        RECORD,
        "Write two recordings to try the commands on, and lint the first.",
        "traceq demo",
    ),
    "rules": Entry(
        "rules:list_command",
        EXTEND,
        "List the rules: code, name, and what each one finds. Or start a new one.",
        "traceq rules",
    ),
    "rule": Entry(
        "rules:page_command",
        EXTEND,
        "Print a rule's page: what it finds, why that is bad, how to fix it.",
        "traceq rule SYN001",
    ),
    "test": Entry(
        "test_pack:command",
        EXTEND,
        "Run the examples of a rule pack: Bad must find its sentences, Good nothing.",
        "traceq test ci/my_rules",
    ),
    "query": Entry(
        "query:command",
        EXTEND,
        "Query the tables of a trace in SQL; `traceq schema` describes them.",
        'traceq query trace.json "SELECT name, sum(dur) AS ns FROM kernels GROUP BY'
        ' name ORDER BY ns DESC LIMIT 5"',
    ),
    "agent": Entry(
        "agent:COMMANDS",
        EXTEND,
        "Help coding agents: a guide, a skill to install, an MCP server.",
        "traceq agent guide",
    ),
    "schema": Entry(
        "schema:command",
        EXTEND,
        "Describe the columns of each table: type, unit and meaning.",
        "traceq schema kernels",
    ),
}
