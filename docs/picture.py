"""Picture of a report's top, taken in a real browser.

python docs/picture.py        writes docs/images/report.png, for the README; the pages
                              on the web have one that their build takes
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
FIXTURE = ROOT / "fixtures" / "copies"
PICTURE = ROOT / "docs" / "images" / "report.png"
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--window-size=1280,1180",
)


def take(page: Path, picture: Path) -> bool:
    """Write the picture of a page; return False where there is no browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        return False
    call = [browser, *_OPTIONS, f"--screenshot={picture}", page.resolve().as_uri()]
    subprocess.run(call, check=True, capture_output=True)  # noqa: S603
    return True


def main() -> None:
    """Write the report of a fixture, and take its picture."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        report = [sys.executable, "-m", "traceq", "report", FIXTURE, "-o", page]
        subprocess.run([*report, "--step-ms", "13.2"], check=True)  # noqa: S603
        if not take(page, PICTURE):
            sys.exit("there is no chromium here")


if __name__ == "__main__":
    main()
