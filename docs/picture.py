"""Draw the README's picture again: the top of a fixture's report, in a real browser.

python docs/picture.py        needs chromium; writes docs/images/report.png
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


def main() -> None:
    """Write the report, open it and keep what is seen first."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("there is no chromium here")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        report = [sys.executable, "-m", "traceq", "report", FIXTURE, "-o", page]
        subprocess.run([*report, "--step-ms", "13.2"], check=True)  # noqa: S603
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
            "--window-size=1280,1180",
            f"--screenshot={PICTURE}",
        ]
        subprocess.run([browser, *options, page.as_uri()], check=True)  # noqa: S603


if __name__ == "__main__":
    main()
