"""Headless Chromium over its pipe: open a page, ask it things, and hear what it complains about."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
WHY_NOT = "needs headless Chromium (Debian: apt-get install chromium)"


class Browser:
    """One page. `complaints` holds console errors, exceptions and refused requests; `requests` every address."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        (theirs, self._out), (self._in, answers) = os.pipe(), os.pipe()
        flags = "--headless --no-sandbox --disable-gpu --no-first-run --hide-scrollbars --remote-debugging-pipe"
        command = f"exec {CHROMIUM} {flags} --user-data-dir={profile} about:blank 3<&{theirs} 4>&{answers}"
        self._process = subprocess.Popen(
            ["bash", "-c", command], pass_fds=(theirs, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs)
        os.close(answers)
        self._buffer, self._number, self._session = b"", 0, None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = next(one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *rest: object) -> None:
        os.close(self._out)
        os.close(self._in)
        self._process.terminate()
        self._process.wait(timeout=30)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the protocol, and its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (found := self._next()).get("id") != self._number:
            pass
        assert "error" not in found, found["error"]
        return found["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = os.read(self._in, 2**16)
            assert read, "chromium has gone"
            self._buffer += read
        line, self._buffer = self._buffer.split(b"\0", 1)
        found = json.loads(line)
        self._hear(found.get("method", ""), found.get("params", {}))
        return found

    def _hear(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"]["text"])
        if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(params["args"]))
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def ask(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def open(self, page: Path, width: int = 1200, height: int = 900, dark: bool = False, media: str = "") -> None:
        """Show a file at a size, in light or dark, on screen or on paper."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.call("Page.navigate", url=page.resolve().as_uri())
        deadline = time.monotonic() + 60
        while self.ask("document.readyState + location.protocol") != "completefile:" and time.monotonic() < deadline:
            time.sleep(0.05)

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def paper(self) -> bytes:
        """The page as it would be printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])
