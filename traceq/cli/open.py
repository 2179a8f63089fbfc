"""`traceq open`: a trace in Perfetto's page, from this machine to its browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traceq.cli import output
from traceq.cli.options import NoCache, Own, RankNumber, StepMs, paths_argument
from traceq.errors import InputError, UsageError

_CHECKED_S = 0.2
# Who has opened the page by then, has it.
_PATIENCE_S = 600.0


def command(
    path: Annotated[
        Path, paths_argument("A trace, or a folder, archive or run folder with one.")
    ],
    *,
    as_it_is: Annotated[
        bool,
        typer.Option("--as-is", help="Show the file as it is, without findings."),
    ] = False,
    steps: Annotated[
        str | None,
        typer.Option(
            help="Only this many steps, as 2, or only these, as 3-5.", metavar="STEPS"
        ),
    ] = None,
    no_browser: Annotated[
        bool,
        typer.Option("--no-browser", help="Print the address; open no browser."),
    ] = False,
    step_ms: StepMs = None,
    own: Own = None,
    rank: RankNumber = None,
    no_cache: NoCache = False,
) -> None:
    """Show a trace with its findings in Perfetto, in this machine's browser.

    Serves one file to the page of Perfetto on 127.0.0.1, once, at an address that
    nobody can guess. The page runs in the browser, so the trace stays on this machine.
    Exits 0 once the page has it, and 2 if it did not ask for it within ten minutes.
    """
    import tempfile

    from traceq.api import settings
    from traceq.cli._annotate import Annotating, annotated
    from traceq.formats.kinds import kind_of
    from traceq.formats.nsys.recognition import is_export
    from traceq.inputs.load_recording import load_trace_with_notices
    from traceq.inputs.temporary import chrome_trace

    if as_it_is:
        if is_export(path):
            load = settings.load_options(own=own, rank=rank, cache=not no_cache)
            path = chrome_trace(path, load_trace_with_notices(path, load))
        elif kind_of(path) != "trace":
            msg = f"{path} is not a trace: give the file that the profiler wrote"
            raise InputError(msg)
        _serve(path, browser=not no_browser)
        return
    with tempfile.TemporaryDirectory(prefix="traceq-") as folder:
        file = Path(folder) / "annotated.json.gz"
        wanted = settings.configuration(None)
        load = settings.load_options(wanted, own=own, rank=rank, cache=not no_cache)
        step_ns = settings.nanoseconds(step_ms)
        options = settings.LintOptions(config=wanted, load=load, step_ns=step_ns)
        how = Annotating(lint=options, steps=steps)
        output.write(annotated([path], file, how))
        _serve(file, browser=not no_browser)


def _serve(file: Path, *, browser: bool) -> None:
    import threading
    import webbrowser
    from time import monotonic

    from traceq.annotate.serving import PAGE, Served, server

    served = Served(file)
    with server(served) as serving:
        port = serving.server_address[1]
        link = served.link(port)
        output.write(
            f"serving {file.name} to {PAGE} at 127.0.0.1:{port}, to this machine only"
            f" and until it is fetched (Ctrl-C ends it)\nopen {link}\n"
        )
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        try:
            if browser and not webbrowser.open(link):
                output.say("no browser was found: open the address in one")
            last = monotonic() + _PATIENCE_S
            while not served.fetched.wait(_CHECKED_S) and monotonic() < last:
                pass
        finally:
            serving.shutdown()
    if not served.fetched.is_set():
        minutes = f"{_PATIENCE_S / 60:.0f} minutes"
        msg = (
            f"{PAGE} did not fetch the trace within {minutes}: open the address sooner,"
            " or drop the file on that page"
        )
        raise UsageError(msg)
    output.write("Perfetto has it: the trace stays in this browser\n")
