"""A real browser for the tests that need one, driven through a pipe.

Nothing but Python's own library is needed: the browser reads commands of its DevTools
protocol from one pipe and answers on another.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "msedge")
# The browser looks for its pipes at 3 and 4, and nowhere else.
_PIPED = """
import os, sys
pipes = [os.dup(int(number)) for number in sys.argv[1:3]]
for pipe, place in zip(pipes, (3, 4)):
    os.dup2(pipe, place)
    os.set_inheritable(place, True)
os.execv(sys.argv[3], sys.argv[3:])
"""
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--remote-debugging-pipe",
    "--window-size=1200,900",
)


class Page:
    """A page in the browser, and what it asked for and complained of."""

    def __init__(self, to: int, answers: int) -> None:
        self._to, self._answers = to, answers
        self._session = ""
        self._count = 0
        self._rest = b""
        self.events: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self._call(f"{domain}.enable")

    def open(self, path: Path) -> None:
        """Open a file and wait until it is there."""
        self.events.clear()
        self._call("Page.navigate", url=path.as_uri())
        self._until("Page.loadEventFired")

    def follow(self, script: str) -> str:
        """Run a script that leads to another page; return its address once there."""
        self.events.clear()
        self.value(script)
        self._until("Page.loadEventFired")
        address: str = self.value("location.href")
        return address

    def value(self, script: str, *, wait: bool = False) -> Any:  # noqa: ANN401 - whatever the script returns
        """Return what a script in the page says; wait for what it promises."""
        result = self._call(
            "Runtime.evaluate",
            expression=script,
            returnByValue=True,
            awaitPromise=wait,
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def move_mouse(self, x: float, y: float) -> None:
        """Move the mouse to a place in the window."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def wheel(self, x: float, y: float, by: float) -> None:
        """Turn the wheel at a place in the window; up is less than 0."""
        self._call(
            "Input.dispatchMouseEvent",
            type="mouseWheel",
            x=x,
            y=y,
            deltaX=0,
            deltaY=by,
        )

    def drag(self, start: tuple[float, float], x: float, *, shift: bool) -> None:
        """Drag sideways with the mouse from a place in the window, to another x."""
        held = {"button": "left", "modifiers": 8 if shift else 0, "y": start[1]}

        def mouse(kind: str, at: float, **more: int) -> None:
            self._call("Input.dispatchMouseEvent", type=kind, x=at, **held, **more)

        mouse("mousePressed", start[0], clickCount=1)
        mouse("mouseMoved", (start[0] + x) / 2, buttons=1)
        mouse("mouseMoved", x, buttons=1)
        mouse("mouseReleased", x, clickCount=1)

    def write(self, text: str) -> None:
        """Write a text where the focus is."""
        self._call("Input.insertText", text=text)

    def press(self, key: str, code: int = 0, text: str = "") -> None:
        """Press a key, as Tab, ArrowRight or +, and let it go."""
        held = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        typed = {"text": text} if text else {}
        self._call("Input.dispatchKeyEvent", type="keyDown", **held, **typed)
        self._call("Input.dispatchKeyEvent", type="keyUp", **held)

    def look(self, width: int, height: int, *, dark: bool) -> None:
        """Show pages in a window of this size, to people who like it light or dark."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self) -> bytes:
        """Return all of the page as a PNG."""
        result = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(result["data"])

    def asked_for(self) -> list[str]:
        """Return the addresses that the page asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Return errors of scripts, and what the page's own policy forbade."""
        logged = [
            event["params"]["entry"]["text"]
            for event in self.events
            if event["method"] == "Log.entryAdded"
        ]
        thrown = [
            str(event["params"]["exceptionDetails"])
            for event in self.events
            if event["method"] == "Runtime.exceptionThrown"
        ]
        return logged + thrown

    def _call(self, method: str, **params: object) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _until(self, method: str) -> None:
        if any(event["method"] == method for event in self.events):
            return
        while self._next().get("method") != method:
            pass

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._answers, 1 << 16)
            assert part, "the browser has ended"
            self._rest += part
        whole, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(whole)
        if "method" in message:
            self.events.append(message)
        return message


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Start a browser with a profile of its own; skip where there is none."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip(f"there is no browser here: none of {', '.join(_NAMES)}")
    to_read, to = os.pipe()
    answers, to_write = os.pipe()
    started = [program, *_FLAGS, f"--user-data-dir={folder}"]
    process = subprocess.Popen(
        [sys.executable, "-c", _PIPED, str(to_read), str(to_write), *started],
        pass_fds=(to_read, to_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(to_write)
    try:
        yield Page(to, answers)
    finally:
        process.terminate()
        process.wait(timeout=30)
        os.close(to)
        os.close(answers)
