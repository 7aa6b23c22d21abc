"""A headless Chromium for tests and screenshots, driven by its own protocol over a WebSocket.

with Chromium() as browser:
    page = browser.open(path)        # counts every request that is no file of ours
    page.run("vksched.view.to")
    page.press("+")
    page.shot("out.png")
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-port=0",
)
START_S = 60.0


def find_chromium() -> str | None:
    """Return the path of a Chromium or Chrome: that of $VKSCHED_CHROMIUM, or the first found."""
    chosen = os.environ.get("VKSCHED_CHROMIUM")
    return chosen or next((path for name in NAMES if (path := shutil.which(name))), None)


def _without_layers() -> dict[str, str]:
    """Return the environment for a browser, whose own use of Vulkan no layer of ours looks at."""
    return {key: value for key, value in os.environ.items() if key != "VK_INSTANCE_LAYERS"}


class Chromium:
    """One browser with a profile of its own, which goes with it."""

    def __init__(self, width: int = 1280, height: int = 800) -> None:
        path = find_chromium()
        if path is None:
            raise FileNotFoundError(f"expected one of {', '.join(NAMES)}, found none")
        self.size = width, height
        self._open = contextlib.ExitStack()
        self._profile = tempfile.mkdtemp(prefix="vksched-chromium-")
        self._process = subprocess.Popen(
            [path, *OPTIONS, f"--user-data-dir={self._profile}", "about:blank"],
            env=_without_layers(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._connection = self._connect()
        except BaseException:
            self.close()
            raise
        self._last = 0
        self.events: list[dict[str, Any]] = []

    def _connect(self) -> Any:
        from websockets.sync.client import connect

        port_file = Path(self._profile) / "DevToolsActivePort"
        until = time.monotonic() + START_S
        while not (port_file.exists() and len(port_file.read_text().split()) == 2):
            if self._process.poll() is not None or time.monotonic() > until:
                raise OSError("the browser did not start")
            time.sleep(0.05)
        port, place = port_file.read_text().split()
        address = f"ws://127.0.0.1:{port}{place}"
        return self._open.enter_context(connect(address, max_size=None, ping_interval=None))

    def call(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """Return the answer of the browser to a call of its protocol; store events that come."""
        self._last += 1
        asked: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        self._connection.send(json.dumps({**asked, **({"sessionId": session} if session else {})}))
        while True:
            answer = json.loads(self._connection.recv(timeout=START_S))
            if answer.get("id") != self._last:
                self.events.append(answer)
                continue
            if "error" in answer:
                raise RuntimeError(f"{method}: {answer['error']['message']}")
            return answer["result"]

    def open(self, path: str | Path, dark: bool = False) -> Page:
        """Return a page with a file of this machine, or of a server on it, once it is loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        page.resize(*self.size)
        page.set_dark(dark)
        is_url = isinstance(path, str) and path.startswith("http://127.0.0.1:")
        page.call("Page.navigate", url=str(path) if is_url else Path(path).resolve().as_uri())
        page.wait_until("location.href !== 'about:blank' && document.readyState === 'complete'")
        return page

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._open.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


KEYS = {
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
    "Enter": 13,
    "Escape": 27,
    "Tab": 9,
}
SHIFT = 8


class Page:
    """A page of the browser."""

    def __init__(self, browser: Chromium, session: str, target: str) -> None:
        self._browser = browser
        self._session = session
        self._target = target

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page, as JSON carries it."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", "error"))
        return answer["result"].get("value")

    def settle(self) -> None:
        """Wait until what was changed is painted."""
        self.run("new Promise(d => requestAnimationFrame(() => requestAnimationFrame(() => d(1))))")

    def wait_until(self, script: str) -> None:
        until = time.monotonic() + START_S
        while not self.run(script):
            if time.monotonic() > until:
                raise TimeoutError(script)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def set_dark(self, dark: bool) -> None:
        value = "dark" if dark else "light"
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": value}],
        )

    def press(self, key: str, shift: bool = False) -> None:
        """Presses a key as a person does; a single letter is typed, too."""
        about: dict[str, Any] = {"key": key, "modifiers": SHIFT if shift else 0}
        if key in KEYS:
            about["windowsVirtualKeyCode"] = KEYS[key]
            about["code"] = key
        if len(key) == 1 or key == "Enter":
            about["text"] = "\r" if key == "Enter" else key
        self.call("Input.dispatchKeyEvent", type="keyDown", **about)
        about.pop("text", None)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)
        self.settle()

    def type(self, text: str) -> None:
        for letter in text:
            self.press(letter)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def move(self, x: float, y: float) -> None:
        self.mouse("mouseMoved", x, y)
        self.settle()

    def click(self, x: float, y: float, count: int = 1) -> None:
        for number in range(1, count + 1):
            about = {"button": "left", "clickCount": number}
            self.mouse("mousePressed", x, y, buttons=1, **about)
            self.mouse("mouseReleased", x, y, buttons=0, **about)
        self.settle()

    def drag(self, x: float, y: float, to_x: float, to_y: float) -> None:
        self.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
        for part in (0.3, 0.6, 1.0):
            place = x + part * (to_x - x), y + part * (to_y - y)
            self.mouse("mouseMoved", *place, button="left", buttons=1)
        self.mouse("mouseReleased", to_x, to_y, button="left", buttons=0, clickCount=1)
        self.settle()

    def wheel(self, x: float, y: float, down: float) -> None:
        self.mouse("mouseWheel", x, y, deltaX=0, deltaY=down)
        self.settle()

    def shot(self, path: str | Path) -> None:
        """Write what is seen as a PNG file."""
        Path(path).write_bytes(self.picture())

    def picture(self) -> bytes:
        """Return the screenshot as PNG."""
        self.settle()
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    @property
    def requests(self) -> list[str]:
        """The addresses that this page has asked for, in order."""
        self.run("1")
        return [
            event["params"]["request"]["url"]
            for event in self._browser.events
            if event.get("sessionId") == self._session
            and event["method"] == "Network.requestWillBeSent"
        ]

    @property
    def complaints(self) -> list[str]:
        """Errors of scripts, and what the browser logged."""
        self.run("1")
        out: list[str] = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            if event["method"] == "Runtime.exceptionThrown":
                out.append(event["params"]["exceptionDetails"]["exception"]["description"])
            elif event["method"] == "Log.entryAdded":
                out.append(event["params"]["entry"]["text"])
        return out

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)
